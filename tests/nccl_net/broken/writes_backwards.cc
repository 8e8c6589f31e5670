// A message is written from its last byte to its first, byte by byte.
#include "nccl_net/broken/own_buffers.h"

using namespace harp::nccl::broken;

static Result test(void* request, int* done, int* sizes) {
  Result result;
  for (const OwnBuffer& own : test_own(request, done, sizes, &result)) {
    auto* const to = const_cast<volatile std::byte*>(own.data);
    for (std::size_t i = static_cast<std::size_t>(*sizes); i-- > 0;) to[i] = own.bytes[i];
  }
  return result;
}

BROKEN_PLUGIN(net) {
  net.irecv = receive_into_own;
  net.test = test;
}
