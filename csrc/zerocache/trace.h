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
#include "zerocache/page.h"

namespace taco::zerocache {

// The caller's number of an operator. The same part of a program has the same key in every run, its
// forward and its backward pass different ones.
using OperatorKey = std::uint64_t;

struct Access {
  PageId page = kNoPage;
  Tier tier = Tier::kDevice;  // where the page has to be: kDevice or kHost
  bool reads = true;          // false: all of it is written first, so nothing need be fetched
  bool writes = false;
  bool last = false;  // what it holds is not needed afterwards: a gradient that was consumed
  // Either memory will do, and `tier` is what has been chosen: arithmetic on the host that reaches
  // the device's memory, too.
  bool anywhere = false;
  bool operator==(const Access&) const = default;
};

// An access to a page in that tier; in either memory if none is given.
inline Access access_in(std::optional<Tier> tier, PageId page, bool reads, bool writes) {
  return {.page = page,
          .tier = tier.value_or(Tier::kDevice),
          .reads = reads,
          .writes = writes,
          .anywhere = !tier.has_value()};
}

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
