// The state of a Mover, for its own files: mover.cc is what callers do, mover_thread.cc what the
// thread does. All of it is guarded by one mutex, but what the thread alone touches.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/condition.h"
#include "base/fork.h"
#include "zerocache/mover/mover.h"
#include "zerocache/mover/mover_carrier.h"
#include "zerocache/schedule/open_uses.h"
#include "zerocache/schedule/run_record.h"
#include "zerocache/schedule/scheduler.h"

namespace taco::zerocache {

struct Mover::State {
  // A begin() that blocks. On its caller's stack.
  struct Waiter {
    std::span<const Access> accesses;
    Way way = Way::kUpload;  // of the copy that ended last while it waited
    int failures = 0;
    Status failure;
    bool ended = false;  // its pages are there, or it has failed too often
    bool failed = false;
  };

  State(const MoverOptions& options, const Layout& layout, const Capacities& capacities,
        const Costs& costs);

  // mover.cc, with the lock held.
  void open_run(const std::string& name);
  void ensure_run();
  void close_run();
  void begin_operator(Time now, OperatorKey key, std::span<const Access> needed);
  void computing(Time now);
  void change_operator(OperatorKey key, std::span<const PageId> spent);
  void decide();
  bool there(std::span<const Access> accesses) const;
  Status check(std::span<const Access> accesses) const;
  Result<OpenUses::Id> open_if_fits(OperatorKey key, std::span<const Access> accesses);
  Result<OpenUses::Id> open(OperatorKey key, std::vector<Access>& accesses);
  std::vector<PageId> blank(std::span<const Access> accesses) const;
  void renew_takes(std::span<const Access> accesses);
  Status wait(std::unique_lock<std::mutex>& lock, std::span<const Access> accesses);
  void give_up(OpenUses::Id id, std::vector<PageId> blank);
  void measure();

  // mover_thread.cc.
  void run();
  void carry_out(std::unique_lock<std::mutex>& lock);
  void land(const Landed& landed);
  void show(const Landed& landed, Time began);
  void end_waits();
  void press_on();
  bool fail(Waiter& waiter, const Status& why) const;
  std::string describe(PageId page);

  // A page's place in a table with a row for each of device and host.
  std::size_t index(PageId page, Tier tier) const {
    return static_cast<std::size_t>(index_of(tier)) * max_pages + page;
  }

  const Layout& layout;
  const std::size_t page_bytes;
  const std::uint32_t max_pages;
  const Capacities capacities;
  const std::uint32_t generation = fork_generation();
  std::mutex layout_mutex;

  std::mutex mutex;  // guards what follows
  Condition ended;   // a waiter has
  Scheduler scheduler;
  RunRecorder recorder;
  OpenUses uses;
  bool run_open = false;
  std::vector<Waiter*> waiters;
  Status failure;  // of the copy that failed last

  // Actions are counted as they are decided; those up to `carried` have been carried out.
  std::vector<Action> actions;
  std::uint64_t decided = 0, carried = 0;
  std::vector<std::uint64_t> taken;    // by tier and page: the action that gives it a frame
  std::vector<std::uint8_t> no_frame;  // by tier and page: there was none when that was carried out
  Time again = kNever;                 // when the scheduler wants to be asked again
  Time sleeps_until = 0;               // the thread does; 0: it is awake
  bool ending = false;

  Costs costs;
  MoverStats stats;
  Time busy_until[kWays] = {};
  WayStats measured[kWays];  // when the costs were measured last

  // The thread's own.
  std::vector<Action> batch;
  std::vector<Landed> landed;
  std::unique_ptr<PageCarrier> carrier;
  std::thread thread;
};

}  // namespace taco::zerocache
