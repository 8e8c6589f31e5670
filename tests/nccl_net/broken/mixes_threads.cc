// The request that test() is asked about is kept in one place for all threads.
#include <sched.h>

#include <atomic>

#include "nccl_net/broken/sound.h"

using namespace harp::nccl::broken;

static std::atomic<void*> asked;

static Result test(void* request, int* done, int* sizes) {
  asked = request;
  sched_yield();
  return sound().test(asked, done, sizes);
}

BROKEN_PLUGIN(net) { net.test = test; }
