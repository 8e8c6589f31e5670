// The end of the last communicator ends nothing.
#include "nccl_net/broken/sound.h"

using namespace harp::nccl::broken;

static Result finalize(void*) { return harp::nccl::abi::kSuccess; }

BROKEN_PLUGIN(net) { net.finalize = finalize; }
