// Runs programs over a page store under a virtual clock: the scheduler's decisions are carried out
// by copies of given speeds, and checked against a page table of its own, which knows for every
// copy of a page which writing it stems from. So it predicts what a step takes, and finds what a
// scheduler does wrong.
//
// Pure. One thread at a time.
#pragma once

#include <map>
#include <queue>
#include <string>
#include <vector>

#include "zerocache/schedule/scheduler.h"

namespace taco::zerocache {

// The time and bytes that a run of a program took.
struct SimulatedRun {
  Duration time = 0, compute = 0;
  std::uint64_t copies[kWays] = {};
  std::uint64_t hits = 0, misses = 0;

  Duration stalled() const { return time - compute; }
  double hit_rate() const {
    return hits + misses == 0 ? 1 : static_cast<double>(hits) / static_cast<double>(hits + misses);
  }
  SimulatedRun& operator+=(const SimulatedRun& other);
};

// A use that begins or ends, and how long the program computes then.
struct UseEvent {
  bool begins = true;
  OperatorKey key = 0;
  std::vector<Access> accesses;  // of one that begins
  Duration compute = 0;
};
// The operators as a scheduler sees them (open_uses.h). They do not tell which pages are spent when
// a use ends.
std::vector<Use> operators_of(const std::vector<UseEvent>& events);

// How reads and writes of the disk affect each other.
enum class DiskWays : unsigned char {
  kAtOnce,   // one goes on as fast while the other does
  kInTurns,  // the disk does one thing at a time, and each speed is that of one way alone
};

class Simulator {
 public:
  Simulator(const Capacities& capacities, const Costs& costs, std::size_t pages,
            DiskWays disk = DiskWays::kAtOnce);

  // The page holds something from the start.
  void place(PageId page, Tier tier);
  // One run of a program. Its uses take their `compute`.
  SimulatedRun run(const std::string& name, const std::vector<Use>& uses);
  SimulatedRun runs(int times, const std::string& name, const std::vector<Use>& uses);
  // Has copies take up to `most` times as long as the scheduler believes, drawn anew for each.
  void set_noise(double most, std::uint64_t seed) { noise_ = most, random_ = seed; }

  // Everything seen that must not happen: empty if all was well. A program that cannot go on ends.
  const std::vector<std::string>& faults() const { return faults_; }
  std::uint32_t max_used(Tier tier) const { return max_used_[index_of(tier)]; }

 private:
  struct Arrival {
    Time at;
    std::uint64_t order;
    Time began;
    Copy copy;
    std::uint64_t version;
    bool operator<(const Arrival& other) const {
      return at != other.at ? at > other.at : order > other.order;
    }
  };
  struct Frame {
    bool held = false;  // a frame or slot is the page's
    bool full = false;  // and nothing is on its way to it
    std::uint64_t version = 0;
    int readers = 0;
  };
  struct Page {
    Frame frames[kTiers];
    std::uint64_t version = 0;  // of the newest content
    bool content = false;
  };

  void fault(const std::string& text, PageId page);
  void decide();
  void carry_out(const Action& action);
  void hold(PageId page, Tier tier);
  void arrive();
  Time& free_at(Way way);
  void measure(const Arrival& arrival);
  void tell_speeds();
  Use with_tiers(Use use) const;
  bool wait_for(const Use& use);
  void compute(const Use& use);

  const Capacities capacities_;
  const Costs costs_;
  const DiskWays disk_;
  Scheduler scheduler_;
  std::vector<Page> pages_;
  std::priority_queue<Arrival> arrivals_;
  Time now_ = 0, again_ = kNever;
  Time free_at_[kWays] = {}, busy_until_[kWays] = {};
  Duration busy_[kWays] = {};  // at least one copy was under way, in this run
  std::uint32_t used_[kTiers] = {}, max_used_[kTiers] = {};
  std::uint64_t order_ = 0, versions_ = 0, random_ = 1;
  double noise_ = 1;
  std::vector<std::string> faults_;
  std::vector<Action> actions_;
  SimulatedRun run_;
};

inline std::string first_fault(const Simulator& simulator) {
  return simulator.faults().empty() ? "" : simulator.faults().front();
}

}  // namespace taco::zerocache
