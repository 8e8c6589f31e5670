// connect() and accept() come back when both sides have called them.
#include <vector>

#include "nccl_net/broken/sound.h"

using namespace harp::nccl::broken;

// More than is kept for somebody who has not asked for it.
static std::vector<std::byte> greeting(4 << 20);

static void await(void* request) {
  for (int done = 0; request != nullptr && done == 0;) sound().test(request, &done, nullptr);
}

static Result connect(void* ctx, int dev, void* handle, void** comm,
                      harp::nccl::abi::DeviceHandle** device) {
  Result result;
  do {
    result = sound().connect(ctx, dev, handle, comm, device);
  } while (result == harp::nccl::abi::kSuccess && *comm == nullptr);
  void* request = nullptr;
  if (*comm != nullptr) {
    sound().isend(*comm, greeting.data(), greeting.size(), 0, nullptr, nullptr, &request);
  }
  await(request);
  return result;
}

static Result accept(void* listening, void** comm, harp::nccl::abi::DeviceHandle** device) {
  const Result result = sound().accept(listening, comm, device);
  void *request = nullptr, *data = greeting.data();
  std::size_t bytes = greeting.size();
  int tag = 0;
  if (*comm != nullptr) {
    sound().irecv(*comm, 1, &data, &bytes, &tag, nullptr, nullptr, &request);
  }
  await(request);
  return result;
}

BROKEN_PLUGIN(net) {
  net.connect = connect;
  net.accept = accept;
}
