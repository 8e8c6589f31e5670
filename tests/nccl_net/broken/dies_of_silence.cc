// Two seconds without a call are the end of a connection.
#include <time.h>

#include "nccl_net/broken/sound.h"

using namespace harp::nccl::broken;

static time_t last;

static Result test(void* request, int* done, int* sizes) {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  const bool silent = last != 0 && now.tv_sec - last >= 2;
  last = now.tv_sec;
  *done = 0;
  if (silent) return harp::nccl::abi::kRemoteError;
  return sound().test(request, done, sizes);
}

BROKEN_PLUGIN(net) { net.test = test; }
