// The order in which a program uses pages: operators one after the other, each with the pages that
// it needs at once. Learned from a first run, then asked for the next use of every page.
//
// Plain data without locks: one thread at a time.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "zerocache/pages/access.h"
#include "zerocache/pages/operator_keys.h"
#include "zerocache/pages/page.h"

namespace taco::zerocache {

// One operator as it ran.
struct Use {
  OperatorKey key = 0;
  Duration compute = 0;  // how long it takes once all its pages are there
  std::vector<Access> accesses;
};

// A place in a trace: operators before it.
using Position = std::int64_t;
inline constexpr Position kNoPosition = -1;
inline constexpr Position kNeverUsed = std::numeric_limits<Position>::max() / 4;

class Trace {
 public:
  Trace() : Trace(std::vector<Use>()) {}
  explicit Trace(std::vector<Use> uses);

  Position size() const { return static_cast<Position>(uses_.size()); }
  const Use& at(Position position) const { return uses_[static_cast<std::size_t>(position)]; }
  const std::vector<Use>& uses() const { return uses_; }
  std::size_t accesses() const { return positions_.size(); }

  // The first use of `page` at `from` or later; kNeverUsed where there is none. O(log uses).
  Position next_use(PageId page, Position from) const;
  // The positions of operators with this key, ascending.
  std::span<const Position> places_of(OperatorKey key) const;
  // When the operator at `position` starts if no operator waits; of size(), how long all take.
  Duration start_of(Position position) const { return starts_[static_cast<std::size_t>(position)]; }
  // The operator at `position` took that long this time.
  void set_compute(Position position, Duration compute);
  // Takes what set_compute() said into start_of().
  void update_starts();

 private:
  std::vector<Use> uses_;
  std::vector<Duration> starts_;
  // The uses of page p: positions_[first_of_[p]] up to first_of_[p + 1].
  std::vector<std::uint32_t> first_of_;
  std::vector<Position> positions_;
  std::unordered_map<OperatorKey, std::vector<Position>> places_;
};

}  // namespace taco::zerocache
