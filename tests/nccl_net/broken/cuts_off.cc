// A message longer than its receive is cut to the room that there is, without an error.
#include <algorithm>

#include "nccl_net/broken/own_buffers.h"

using namespace harp::nccl::broken;

static Result test(void* request, int* done, int* sizes) {
  Result result;
  for (const OwnBuffer& own : test_own(request, done, sizes, &result)) {
    const std::size_t bytes = std::min(own.room, static_cast<std::size_t>(*sizes));
    std::copy_n(own.bytes.get(), bytes, own.data);
    *sizes = static_cast<int>(bytes);
  }
  return result;
}

BROKEN_PLUGIN(net) {
  net.irecv = receive_into_own;
  net.test = test;
}
