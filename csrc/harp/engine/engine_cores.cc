#include "harp/engine/engine_cores.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "base/conf_file.h"
#include "base/core_list.h"
#include "base/names.h"

namespace taco::harp {

Result<std::vector<int>> engine_cores(const std::string& list, int engines, LocalRank self) {
  if (list.empty()) return std::vector<int>();
  const auto cores = cores_from(list);
  const std::size_t needed = static_cast<std::size_t>(engines) * self.ranks;
  if (!cores || cores->size() != needed) {
    return invalid(setting_text("TACO_HARP_CORES", list) + " names " +
                   count_text(cores ? cores->size() : 0, "core") + ", but " +
                   count_text(engines, "engine") + " (TACO_HARP_ENGINES) in each of " +
                   count_text(self.ranks, "rank") + " of this host (LOCAL_WORLD_SIZE) need " +
                   std::to_string(needed) + ": name one core for each, rank by rank");
  }
  const auto first = cores->begin() + static_cast<std::ptrdiff_t>(engines) * self.rank;
  return std::vector<int>(first, first + engines);
}

Status pin_to_core(std::thread& thread, int core) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  const int error = pthread_setaffinity_np(thread.native_handle(), sizeof one, &one);
  if (error == 0) return {};
  const long cores = sysconf(_SC_NPROCESSORS_CONF);
  if (core >= cores) {
    return invalid("TACO_HARP_CORES" + conf_origin("TACO_HARP_CORES", "") + " names core " +
                   std::to_string(core) + ", which does not exist: this host has " +
                   std::to_string(cores) + ", from 0 on");
  }
  if (error == EINVAL) {
    return invalid("TACO_HARP_CORES" + conf_origin("TACO_HARP_CORES", "") + " names core " +
                   std::to_string(core) +
                   ", which this process may not use: it is offline, or outside the cpuset of its "
                   "container or job");
  }
  return Status(Code::kResource, "TACO_HARP_CORES" + conf_origin("TACO_HARP_CORES", "") +
                                     ": an engine's thread cannot be pinned to core " +
                                     std::to_string(core) + ": " + strerror(error));
}

}  // namespace taco::harp
