// Which of an interface's queues an engine takes: all, or those that are its share among the ranks
// of a host that use the interface beside each other, and among the engines of its rank.
//
// A pure value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "harp/local_rank.h"

namespace taco::harp {

struct QueueShare {
  std::uint32_t number = 0, shares = 1;
  std::uint32_t engines = 1;  // each has a share, next to each other those of a rank
  bool operator==(const QueueShare&) const = default;

  // The part that this engine has of a rank's share.
  QueueShare of_engine(std::uint32_t engine, std::uint32_t engines) const;
  // Those of so many; where there are more shares than queues, one that another share names, too:
  // of another rank as long as there are no fewer queues than engines.
  std::vector<std::uint32_t> of(std::uint32_t queues) const;
};

// As TACO_HARP_XDP_QUEUES says ("auto", "all", "1/4"); "auto" goes by what the launcher says of
// this rank.
QueueShare queue_share(const std::string& setting, LocalRank self);

}  // namespace taco::harp
