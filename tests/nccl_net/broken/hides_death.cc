// A request that has failed goes on for ever, and new ones find no room.
#include "nccl_net/broken/sound.h"

using namespace harp::nccl::broken;

static Result isend(void* comm, void* data, std::size_t size, int tag, void* mhandle, void* phandle,
                    void** request) {
  if (sound().isend(comm, data, size, tag, mhandle, phandle, request) != 0) *request = nullptr;
  return harp::nccl::abi::kSuccess;
}

static Result irecv(void* comm, int n, void** data, std::size_t* sizes, int* tags, void** mhandles,
                    void** phandles, void** request) {
  if (sound().irecv(comm, n, data, sizes, tags, mhandles, phandles, request) != 0) {
    *request = nullptr;
  }
  return harp::nccl::abi::kSuccess;
}

static Result test(void* request, int* done, int* sizes) {
  if (sound().test(request, done, sizes) != 0) *done = 0;
  return harp::nccl::abi::kSuccess;
}

BROKEN_PLUGIN(net) {
  net.isend = isend;
  net.irecv = irecv;
  net.test = test;
}
