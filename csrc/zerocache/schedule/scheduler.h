// Decides what to fetch and what to evict, and when. Pure: no clock, no thread, no I/O; it is told
// what happens and answers with what to do, so that the same code runs in a program, in a
// simulation and in tests.
//
//   begin_run("train")
//     begin(now, key, accesses)   an operator is next; it may compute once ready()
//     computing(now), end(now)
//   end_run()
//   done(copy)                    a copy has ended, or failed
//   decide(now, actions)          after any of these, and at the time that the last call returned:
//                                 what to do now, in this order
//
// The page that is evicted is the one used furthest ahead (Belady 1966), with three exceptions: a
// page that would have to be written back gives way to clean ones that are used half as far ahead;
// a page that was changed on the device, and need not have been, stays there as long as there is
// another; and no page is evicted for one that is used later than itself ("do no harm": Cao,
// Felten, Karlin and Li, "A Study of Integrated Prefetching and Caching Strategies", 1995). What is
// fetched is what the trace needs next, as late as is safe at the speed of its way. Fetching as
// early as the others allow would move every page in every run, whatever fits: what stays resident
// costs nothing. And a page is fetched ahead once while one operator computes or waits: if it has
// to go again, something else was more urgent, and memory is too small for both; so copies come to
// an end, whatever the program.
//
// A page on disk keeps its slot while it is clean and the slot is not needed, so that reading alone
// writes nothing. A page in host memory keeps its frame while it is on the device too, as long as
// the frame is not needed. What the host has no room for goes to device memory that nobody is about
// to need, and to the disk only where there is none.
//
// One thread at a time; one operator at a time.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "zerocache/schedule/cost.h"
#include "zerocache/schedule/follower.h"
#include "zerocache/schedule/residency.h"

namespace taco::zerocache {

struct Copy {
  PageId page = kNoPage;
  Tier from = Tier::kHost, to = Tier::kDevice;
};

struct Action {
  enum class Kind : unsigned char {
    kCopy,  // to a free frame of `to`; done() tells of its end
    kDrop,  // the frame or slot of `from` is free
    kTake,  // a free frame of `to` for the page, whatever it contains
  };
  Kind kind = Kind::kCopy;
  Copy copy;
};

struct SchedulerStats {
  // Counts pages that an operator needed and that had left the tier since they were used before (or
  // had never been there): those that were back in time, and those that were not.
  std::uint64_t hits = 0, misses = 0;
};

// Whether operators that need `device_pages` and `host_pages` at once can run, with `pages` in all.
// The error names what has to be larger, and how large.
Status check_capacities(const Capacities& capacities, std::size_t page_bytes, std::size_t pages,
                        std::size_t device_pages, std::size_t host_pages);

class Scheduler {
 public:
  // Schedules the pages 0 to `pages` - 1; those that hold nothing take no room.
  Scheduler(const Capacities& capacities, const Costs& costs, std::size_t pages);

  // Where a page is before the first run. Pages that are placed nowhere hold nothing.
  void place(PageId page, Tier tier);

  // A run of this name begins: the first is recorded, later ones follow it.
  void begin_run(const std::string& name);
  void end_run();

  // Between runs: how fast the ways are, their depths as they were.
  void set_costs(const Costs& costs) { costs_ = costs; }

  // The tier where a page that may be anywhere costs least: the device only if the page is there,
  // and stays. A page that is changed on the device has to come down before it goes; so as many
  // pages are changed on the device as stay there, and the others on the host.
  Tier best_tier(PageId page) const;
  // Whether an operator can have these pages at once, each named once in a tier, beside all others
  // that hold something.
  Status fits(std::span<const Access> accesses) const;
  // An operator needs these pages, each in the tier that its access names. Fails, and nothing has
  // begun, where they do not fit.
  Status begin(Time now, OperatorKey key, std::span<const Access> accesses);
  bool ready() const { return missing_ == 0; }
  // The operator has begun to compute; end() tells how long it took.
  void computing(Time now) { computing_since_ = now; }
  void end(Time now);

  // Between operators: nobody needs what the page holds.
  void discard(PageId page);

  // A copy has ended; `copied` is false where it failed. What failed is not fetched again, and
  // nothing more is evicted by that way, until an operator begins or asks again.
  void done(const Copy& copy, bool copied = true);
  // The operator still waits for its pages: what failed is to be tried again.
  void ask_again();
  // No copy is under way.
  bool idle() const;
  // Returns when it wants to be called again if nothing happens before; kNever: not.
  Time decide(Time now, std::vector<Action>& actions);

  const Residency& pages() const { return pages_; }
  const SchedulerStats& stats() const { return stats_; }

 private:
  struct Run {
    Follower follower;
    std::string next;  // the name of the run that came after it last time
  };
  struct Cursor {
    Position at = 0;
    std::size_t access = 0;
  };
  using Marks = std::vector<std::uint8_t>;

  // scheduler.cc: runs and operators.
  Position now_at() const { return base_ + run_->follower.position(); }
  const Trace* trace_of(const std::string& name) const;
  std::array<const Trace*, 3> course() const;
  Position next_use_after(PageId page, Position from) const;
  void renew_next_uses(Position from, Position to, Position after);
  void renew_all();
  void need(const Access& access);
  void follow(const Follower::Step& step);
  void release(const Access& access);
  void forget_copies(PageId page, std::uint8_t but);

  // scheduler_ahead.cc: what will be needed.
  const Use* use_at(Position at) const;
  bool next_used_in(PageId page, Tier tier) const;
  void restart_looking();
  void look_ahead(Tier tier);
  void look_back(PageId page);
  bool concerns(Tier tier, const Access& access) const;
  bool has_spare(Tier tier) const;
  bool due(Tier tier, Position at) const;
  Duration time_until(Position at) const;
  Duration horizon(Tier tier) const;
  void want(PageId page, Tier tier, Position at);
  void unwant(PageId page, Tier tier);
  void prune_wants();
  void no_longer_ahead(PageId page, Tier tier);
  void give_up(PageId page);
  void look_at_given_up();

  // scheduler_moves.cc: frames and copies.
  void route(PageId page);
  void serve_all();
  bool step_aside();
  bool serve(Way way);
  bool serve_blank(Tier tier);
  bool make_room(Tier tier, Position at, std::uint32_t reserve, std::size_t demand);
  bool drop_any(Tier tier, Position at);
  PageId victim(Tier tier, Position at) const;
  bool evict(PageId page, Tier tier, Position at, std::size_t demand);
  bool evict_from_host(PageId page, Position at);
  bool evict_to_device(PageId page);
  bool may_evict_by(Way way) const;
  bool worth_keeping(PageId page) const;
  void start(PageId page, Tier from, Tier to, bool evicts);
  void drop(PageId page, Tier tier);
  void note_fetch(PageId page, Tier tier);
  void arrived(PageId page, Tier tier);
  std::size_t waiting_for(Tier tier) const;
  Position soonest_waiting(Tier tier) const;

  const Capacities capacities_;
  Costs costs_;
  Residency pages_;
  SchedulerStats stats_;

  // Runs. A position of the whole course is base_ + the place in the trace of this run; the runs
  // that are expected after it follow on.
  std::map<std::string, std::unique_ptr<Run>> runs_;
  std::string name_;
  Run* run_ = nullptr;
  Position base_ = 0;
  std::array<const Trace*, 3> course_{};  // this run's trace and the two that are expected next
  Position recency_ = 0;                  // of operators, where there is no trace

  // The operator.
  std::vector<Access> current_;
  std::size_t missing_ = 0;
  Time computing_since_ = kNever;

  // By page: a bit for each tier.
  Marks needed_;    // by the operator
  Marks left_;      // since it was used there
  Marks ahead_;     // fetched for an operator to come, in the place of something
  Marks evicting_;  // copied elsewhere so that it can go
  Marks fetched_;   // since an operator began
  // Fetched since an operator began, and gone again: what took its place is used sooner, and would
  // have to go if it came again. Until the next operator begins, only an operator gets it.
  Marks given_up_;
  Marks roams_;                  // changed last by an operator that would have had it anywhere
  std::vector<PageId> fetches_;  // those that have a bit in fetched_
  std::vector<std::uint8_t> writing_;
  std::array<std::vector<Position>, 2> wanted_;  // by which position; kNoPosition: not
  std::vector<std::pair<PageId, Tier>> wants_;   // all that are wanted, and some that were
  std::size_t prune_at_ = 1024;                  // that many of them

  Cursor cursors_[2];  // of the device, of the host: what comes before is there or wanted
  std::size_t ahead_count_[2] = {};
  std::size_t look_ahead_ = 0;
  std::size_t evictions_[2] = {};
  std::uint32_t under_way_[kWays] = {};
  bool fails_[kWays] = {};  // an eviction by that way has failed since an operator asked
  PageHeap queues_[3];      // pages to be uploaded, downloaded, read; the soonest on top
  PageHeap blanks_[2];      // pages that need a frame and no content
  Time now_ = 0, again_ = kNever;
  std::vector<Action> actions_;
};

}  // namespace taco::zerocache
