// More sizes are written than there were receives in the request.
#include "nccl_net/broken/sound.h"

using namespace harp::nccl::broken;

static Result test(void* request, int* done, int* sizes) {
  const Result result = sound().test(request, done, sizes);
  if (*done != 0 && sizes != nullptr) sizes[1] = sizes[0];
  return result;
}

BROKEN_PLUGIN(net) { net.test = test; }
