// Decides which thread drives the engine: the engine's own thread, or a caller that waits. At most
// one of them at a time holds the token and drives; the others sleep, but none of them sleeps while
// there is work that no other thread would notice.
//
// A caller that waits takes the token when it is free and drives the engine inline, so that a small
// message costs no thread switch. When it leaves, work that is still open passes to another waiting
// caller, else to the engine's thread. The engine's thread sleeps on the same events as a driving
// caller would, without holding the token, so a caller can take over without waking it.
//
// A caller may poll instead of waiting: it takes one turn and goes on with its program. It has a
// lease by that: until it ends, or the next poll renews it, no other thread need notice anything,
// so the engine's thread stays away and nobody wakes it. Once the lease has ended the thread looks.
//
// Where the engine has a core of its own, its thread alone drives: callers that wait sleep, those
// that poll find nothing to do, and the token never changes hands.
//
// No wake-up is lost, because every hand-over stores first and looks afterwards (sequentially
// consistent): a thread that goes to sleep announces that and then looks for work; a thread that
// adds work adds it and then looks for sleepers.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "base/cache_line.h"
#include "base/clock.h"
#include "base/list.h"
#include "harp/engine/stack.h"
#include "harp/engine/token.h"

namespace taco::harp {

// The thing that is driven: the engine, or a model of it in tests. The _st functions need the
// token.
class Driven {
 public:
  enum class Who : std::uint8_t { kEngineThread, kCaller };

  virtual ~Driven() = default;
  // One pass over everything; true when anything happened.
  virtual bool turn_st(Who who) = 0;
  virtual Time now_st() const = 0;
  virtual Time next_deadline_st() const = 0;
  // Requests are open: somebody has to drive until they complete.
  virtual bool has_open_requests_st() const = 0;

  // True: peers have been told to wake this process and nothing is waiting. False: there is work.
  virtual bool prepare_sleep_st() = 0;
  virtual void cancel_sleep_st() = 0;
  // For when nothing is open: somebody will look at `until` at the latest, and until then nobody
  // need wake this process. False: there is work.
  virtual bool prepare_doze_st(Time until) = 0;
  // As that, whatever is open.
  virtual void leave_until_st(Time until) = 0;

  virtual bool queue_empty() const = 0;  // of submitted tasks; any thread

  // block(who) returns when something arrived, at `deadline`, or after kick(who), also an earlier
  // one. It may return for no reason. The engine's thread returns at the time given to arm_st(),
  // too, which may be called while it sleeps; arm_no_later_st leaves an earlier time in force.
  virtual void arm_st(Time deadline) = 0;
  virtual void arm_no_later_st(Time deadline) = 0;
  virtual void block(Who who, Time deadline) = 0;
  virtual void kick(Who who) = 0;
};

class alignas(kCacheLine) Duty {
 public:
  enum class Drivers : std::uint8_t { kThreadAndCallers, kThreadAlone };
  Duty(Driven& driven, Token& token, Drivers drivers = Drivers::kThreadAndCallers)
      : driven_(driven), token_(token), lends_(drivers == Drivers::kThreadAndCallers) {}

  // The engine's thread: serves until stop().
  void run();
  // Any thread. run() returns and every wait() returns soon after.
  void stop();
  // After stop(), and once run() has returned: no caller is in a turn when this returns, nor
  // begins one.
  void see_callers_off();

  // See Engine::wait, Engine::poll, Engine::wake_waiters and Engine::submit (after the push).
  bool wait(const Event& event, Time deadline);
  bool poll();
  void wake_waiters();
  void submitted();

  // How long an idle driver polls, giving its core away between looks, before it sleeps: a caller,
  // whose program has nothing else to do, and the engine's thread, which runs beside a program that
  // has. Any thread.
  void set_spin(Duration caller, Duration engine_thread) {
    caller_spin_.store(caller, std::memory_order_relaxed);
    thread_spin_.store(engine_thread, std::memory_order_relaxed);
  }

  // How long after a poll the engine's thread leaves the engine alone. Any thread, between polls.
  void set_lease(Duration lease) { lease_.store(lease, std::memory_order_relaxed); }

  std::uint64_t sleeps() const { return sleeps_.load(std::memory_order_relaxed); }

 private:
  // Where the engine's thread is when it does not hold the token. The value is a futex.
  enum ThreadState : std::uint32_t { kAwake, kInBlock, kNapping, kParked };
  // The requests that a leaving caller knows to be open.
  enum class Unfinished : std::uint8_t { kNothing, kRequests, kArrivals };
  enum Woken : std::uint32_t { kAsleep, kEventSet, kHandedOver };
  struct Waiter {
    const Event* event;
    std::atomic<std::uint32_t> woken{kAsleep};
    Links<Waiter> links;
  };
  // A driver's idle time since it last found work. After a long sleep it polls only briefly, until
  // sleeps get short again: polling pays when the next event is near.
  struct Idle {
    Duration spin = 0;
    Time since = 0;
    int polls = 0;
    Time polled_at = 0;
    Time slept_at = kNever;
    bool brief = false;
  };

  bool may_be_mine() const { return lends_ && token_.is_free(); }  // a caller's
  bool is_wanted() const { return lends_ && waiters_.load(std::memory_order_seq_cst) > 0; }
  bool stopping() const { return stopping_.load(std::memory_order_seq_cst); }
  bool is_leased(Time now) const { return now < leased_until_.load(std::memory_order_seq_cst); }
  bool is_leased() const {
    return leased_until_.load(std::memory_order_seq_cst) != 0 && is_leased(monotonic_now());
  }
  Time renew_lease(Time now);
  bool worth_polling(Idle& idle, bool worked);

  void serve();
  bool doze(Time* deadline);
  void stand_by();
  void stay_away();
  bool drive(const Event& event, Time deadline);
  void leave();
  bool sleep_as_waiter(const Event& event, Time deadline);  // true: the duty was handed over

  void pass_on(Unfinished unfinished);
  bool wake(Waiter& waiter, Woken reason);
  bool wake_one_waiter();
  void kick_engine_thread();
  void wake_driver();

  Driven& driven_;
  Token& token_;
  const bool lends_;  // the token, to callers
  std::atomic<bool> stopping_{false};
  std::atomic<std::uint32_t> thread_state_{kAwake};
  std::atomic<bool> caller_asleep_{false};
  std::atomic<int> waiters_{0};                               // asleep, not yet woken
  std::atomic<int> heirs_{0};                                 // woken to take over, not yet decided
  std::atomic<Unfinished> unfinished_{Unfinished::kNothing};  // as the last leaver saw it
  Time thread_slept_at_ = kNever;                             // the engine thread's own
  std::uint64_t thread_tenure_ = 0;                           // the engine thread's last
  Time sleep_at_once_until_ = 0, crowded_until_ = 0;          // the token holder's
  std::uint64_t last_refusal_ = 0;  // tenure that refused the engine's thread last

  std::atomic<Duration> caller_spin_{20 * kMicrosecond};
  std::atomic<Duration> thread_spin_{20 * kMicrosecond};
  std::atomic<Duration> lease_{kMillisecond};
  std::atomic<Time> leased_until_{0};  // 0: nobody polls
  std::atomic<std::uint64_t> sleeps_{0};

  std::mutex waiters_mutex_;
  List<Waiter, &Waiter::links> sleepers_;  // guarded by waiters_mutex_; oldest first
};

}  // namespace taco::harp
