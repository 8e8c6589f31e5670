// *done is written only when it is 1.
#include "nccl_net/broken/sound.h"

using namespace harp::nccl::broken;

static Result test(void* request, int* done, int* sizes) {
  int known = 0;
  const Result result = sound().test(request, &known, sizes);
  if (known != 0) *done = known;
  return result;
}

BROKEN_PLUGIN(net) { net.test = test; }
