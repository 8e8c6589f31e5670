// Which of an interface's queues a process takes: all, or those that are its share among the ranks
// of a host that use the interface beside each other.
//
// A pure value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace taco::harp {

struct QueueShare {
  std::uint32_t number = 0, shares = 1;
  bool operator==(const QueueShare&) const = default;

  // Those of so many; where there are more shares than queues, one that another share names, too.
  std::vector<std::uint32_t> of(std::uint32_t queues) const;
};

// As TACO_HARP_XDP_QUEUES says ("auto", "all", "1/4"); "auto" goes by what a launcher calls the
// rank's number on its host and how many there are, null where nobody says.
QueueShare queue_share(const std::string& setting, const char* local_rank,
                       const char* local_world_size);

}  // namespace taco::harp
