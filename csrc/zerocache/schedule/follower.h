// Finds where a run is in the trace of an earlier one. A run that leaves the trace (another expert,
// an early exit, one more batch) is found again near by, and the way it took is remembered as a
// detour: the next run that takes it is on known ground. A detour that has become the usual way
// changes places with the stretch of the trace that it goes around. Nothing is ever forgotten at
// once.
//
// Cost: O(log n) an operator that the trace or a detour has, O(places of its key) any other; O(n)
// at the end of a run.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <vector>

#include "zerocache/schedule/trace.h"

namespace taco::zerocache {

class Follower {
 public:
  // False until the end of the first run, which is recorded.
  bool known() const { return known_; }
  const Trace& trace() const { return trace_; }

  // Where the next operator is expected.
  Position position() const { return position_; }
  // Whether this run of a program with so many pages has more that is new than any step has: it is
  // one that never ends (gradients are computed, and no optimizer steps), and is to be ended and
  // begun anew for what is kept of it to be bounded.
  bool is_endless(std::size_t pages) const {
    return new_entries_ > kMinEntries + kEntriesOfPage * pages;
  }

  struct Step {
    Position at = kNoPosition;  // of this operator in the trace; kNoPosition: not in it
    // Operators that were expected and passed over, or (later < earlier) gone back over.
    Position expected = 0, next = 0;
  };
  // The operator that began last is none that is known here.
  bool off_course() const { return !unknown_.empty(); }
  void begin_run();
  // An operator starts. `compute` of it is told by took().
  Step begin(OperatorKey key, std::span<const Access> accesses);
  // How long the operator that began last has computed.
  void took(Duration compute);
  // True where the trace is another one afterwards.
  bool end_run();

  // The first place from `from` on at which a known detour that uses the page begins; kNeverUsed
  // where there is none. O(log n).
  Position possible_use(PageId page, Position from) const;

  // The uses still to come of the detour that the run is on, before position().
  std::span<const Use> rest_of_detour() const;

 private:
  static constexpr std::size_t kEntriesOfPage = 512, kMinEntries = std::size_t{1} << 18;
  // From `from` the run goes through `uses` and then on at `rejoin`.
  struct Detour {
    Position from = 0, rejoin = 0;
    std::vector<Use> uses;
    double weight = 0;  // how usual it has been of late, 0 to 1
    bool taken = false;

    bool usual() const;
  };

  Step on_trace(Position at);
  Step off_trace(OperatorKey key, std::span<const Access> accesses);
  std::optional<Position> look_for(OperatorKey key) const;
  Detour* detour_to(OperatorKey key);
  void close_detour(Position rejoin);
  bool promote();
  void find_possible_uses();

  Trace trace_;
  bool known_ = false;
  bool began_ = false;         // an operator of this run
  std::vector<Use> recorded_;  // the first run
  Position position_ = 0;
  Position current_ = kNoPosition;  // of the operator that began last
  std::multimap<Position, Detour> detours_;
  std::vector<std::pair<PageId, Position>> possible_;  // uses in detours, by page and position
  const Detour* on_ = nullptr;                         // the detour that the run is on, and how far
  std::size_t done_ = 0;
  std::vector<Use> unknown_;  // operators since the trace was left, by no known way
  // Operators and accesses of this run that are kept since no trace and no detour has them.
  std::size_t new_entries_ = 0;
  Duration* took_ = nullptr;
};

}  // namespace taco::zerocache
