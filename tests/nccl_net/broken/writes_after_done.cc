// A late duplicate: the last receive's first byte is written again when the next request is tested.
#include <algorithm>

#include "nccl_net/broken/own_buffers.h"

using namespace harp::nccl::broken;

static std::byte* late;
static std::byte duplicate;

static Result test(void* request, int* done, int* sizes) {
  if (late != nullptr) *late = duplicate;
  late = nullptr;
  Result result;
  for (const OwnBuffer& own : test_own(request, done, sizes, &result)) {
    std::copy_n(own.bytes.get(), *sizes, own.data);
    late = own.data;
    duplicate = own.bytes[0] ^ std::byte{1};
  }
  return result;
}

BROKEN_PLUGIN(net) {
  net.irecv = receive_into_own;
  net.test = test;
}
