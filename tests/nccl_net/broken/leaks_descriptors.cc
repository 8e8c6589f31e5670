// Each listening comm leaves a descriptor behind.
#include <unistd.h>

#include "nccl_net/broken/sound.h"

using namespace harp::nccl::broken;

static Result listen(void* ctx, int dev, void* handle, void** comm) {
  if (dup(STDERR_FILENO) < 0) return harp::nccl::abi::kSystemError;
  return sound().listen(ctx, dev, handle, comm);
}

BROKEN_PLUGIN(net) { net.listen = listen; }
