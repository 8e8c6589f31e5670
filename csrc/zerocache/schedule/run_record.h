// A record of one run of a program: which operators it had and what they took, who waited for what,
// and which page came to which tier when. From this a simulation runs the same program again
// (plan.h), the least that anybody would have had to move is found (min_moves.h), and pictures
// are drawn.
//
// Plain data. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "zerocache/schedule/cost.h"
#include "zerocache/schedule/residency.h"
#include "zerocache/schedule/scheduler.h"
#include "zerocache/schedule/trace.h"

namespace taco::zerocache {

struct RunRecord {
  struct Operator {
    OperatorKey key = 0;
    Time began = 0, ended = 0;
    Time computing = kNever;       // since when nobody waited for pages
    std::size_t first_access = 0;  // in `accesses`, up to the next operator's
  };
  // A frame or slot that a page got or gave back. What is on its way has one where it goes.
  struct Change {
    Time at = 0;
    PageId page = kNoPage;
    Tier tier = Tier::kDevice;
    bool came = false;
  };
  struct Wait {
    Time from = 0, to = 0;
    Way way = Way::kUpload;  // of the copy that ended last while it lasted
  };

  std::uint64_t number = 0;  // of the runs of its name; 0: there was none
  Time began = 0, ended = 0;
  std::vector<Operator> operators;
  std::vector<Access> accesses;
  std::vector<std::uint8_t> before;  // by page: bits of the tiers that had it when the run began
  std::vector<Change> changes;
  std::vector<Wait> waits;
  // Copies that ended in it, or after it and before the next run that has a name.
  std::uint64_t copies[kWays] = {};
  // The same of all runs of its name together, but the first two: the first is where the order of
  // uses is learned, and the second begins with what the first left behind.
  std::uint64_t steady_runs = 0, steady_copies[kWays] = {};
  bool cut = false;  // it was too long to be kept: what is not a number is missing

  Duration time() const { return ended - began; }
  Duration stalled() const;
  // The uses, in the form that a simulation takes.
  std::vector<Use> uses() const;
};

// Pages in each tier at `points` moments of a run, from its beginning to its end at equal
// distances, by what they hold: page p is of kind `kinds[p]` of so many. Of tier t, kind k and
// moment m at
// [(t * count + k) * points + m].
std::vector<std::uint32_t> residency_over(const RunRecord& run, std::span<const std::uint8_t> kinds,
                                          std::size_t count, std::size_t points);

class RunRecorder {
 public:
  // Records pages 0 to `pages` - 1, all of which are nowhere at first.
  explicit RunRecorder(std::size_t pages);

  void begin_run(const std::string& name, Time now);
  void end_run(Time now);
  void begin(Time now, OperatorKey key, std::span<const Access> accesses);
  void computing(Time now);
  void waited(Time from, Time to, Way way);
  void decided(Time now, const Action& action);
  void copied(Way way);

  // The last run of this name that has ended; one of number 0 where there is none.
  RunRecord last(const std::string& name) const;

 private:
  struct Named {
    RunRecord open, last;
  };
  void end_operator(Time now);
  bool full();

  const std::size_t max_entries_;
  std::vector<std::uint8_t> resident_;  // by page: bits of tiers
  std::map<std::string, Named> runs_;
  Named* run_ = nullptr;       // that is open
  RunRecord* late_ = nullptr;  // whose copies end now
};

}  // namespace taco::zerocache
