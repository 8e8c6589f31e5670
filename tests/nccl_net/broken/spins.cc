// A thread looks for work all the time, whether or not there is any.
#include <atomic>
#include <thread>

#include "nccl_net/broken/sound.h"

using namespace harp::nccl::broken;

static std::atomic<bool> ends;
static std::thread spinner;

static Result init(void** ctx, std::uint64_t id, harp::nccl::abi::CommConfig* config,
                   harp::nccl::abi::Logger logger, harp::nccl::abi::ProfilerCallback profiler) {
  if (!spinner.joinable()) {
    spinner = std::thread([] {
      while (!ends) {
      }
    });
  }
  return sound().init(ctx, id, config, logger, profiler);
}

struct End {
  ~End() {
    ends = true;
    if (spinner.joinable()) spinner.join();
  }
};
static End end;

BROKEN_PLUGIN(net) { net.init = init; }
