#include "harp/engine/duty.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <optional>
#include <thread>
#include <utility>

#include "base/thread.h"

namespace taco::harp {

namespace {

// A refused engine thread looks again this soon: cheap while callers come and go, and the longest
// that work without open requests (an acknowledgement, say) waits for it.
constexpr Duration kNap = kMillisecond;
// Nobody is told of anything that arrives this soon after the last call, unless it is awaited.
constexpr Duration kDoze = kMillisecond;
// A caller that finds the token taken tries this often before it sleeps: turns are short.
constexpr int kTokenTries = 16;
// A leaving caller takes this many more turns for what arrives while it leaves.
constexpr int kLeaveTurns = 4;
// After a sleep this long, polling before the next one is cut to a fraction.
constexpr Duration kLongSleep = 500 * kMicrosecond;
constexpr int kBriefShare = 10;
// A core given away for longer than this was wanted by others; then polling pauses for a while.
constexpr Duration kCoreWasTaken = 200 * kMicrosecond;
constexpr Duration kSleepAtOnce = 5 * kMillisecond;
// For longer than this: by somebody who does not give it away, until the clock ticks. Other ranks
// do, and to ask for short turns at every wait beside them costs more than it brings.
constexpr Duration kCoreWasKept = kMillisecond;
constexpr Duration kCrowded = kSecond;  // so long somebody is taken to want it

// Sleeps while `word` holds `value`, at most until `deadline` (kNever: no limit).
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t value, Time deadline) {
  timespec at{};
  if (deadline != kNever) {
    at.tv_sec = deadline / kSecond;
    at.tv_nsec = deadline % kSecond;
  }
  // WAIT_BITSET takes an absolute CLOCK_MONOTONIC time.
  syscall(SYS_futex, &word, FUTEX_WAIT_BITSET_PRIVATE, value, deadline == kNever ? nullptr : &at,
          nullptr, FUTEX_BITSET_MATCH_ANY);
}

void futex_wake(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

// Only where there is need: ranks that share a core let each other have it, and short turns would
// have them do so more often. To begin and end that takes four system calls, so it lasts from one
// wait of the thread to the next.
void take_short_turns(bool crowded) {
  thread_local std::optional<ShortTurns> turns;
  if (crowded == turns.has_value()) return;
  if (crowded) {
    turns.emplace();
  } else {
    turns.reset();
  }
}

}  // namespace

void Duty::stop() {
  stopping_.store(true, std::memory_order_seq_cst);
  kick_engine_thread();
  if (caller_asleep_.exchange(false)) driven_.kick(Driven::Who::kCaller);
  std::lock_guard lock(waiters_mutex_);
  for (Waiter& waiter : sleepers_) wake(waiter, kEventSet);
}

void Duty::see_callers_off() {
  if (token_.held_by_me()) return;  // this one is in a turn, and takes part in no other
  while (!token_.try_acquire()) std::this_thread::yield();
  token_.release();
}

void Duty::run() {
  while (!stopping()) {
    if (is_leased()) {
      stay_away();
    } else if (token_.try_acquire()) {
      serve();
    } else {
      stand_by();
    }
  }
}

bool Duty::worth_polling(Idle& idle, bool worked) {
  const Time now = driven_.now_st();
  if (idle.slept_at != kNever) {
    idle.brief = now - idle.slept_at > kLongSleep;
    idle.slept_at = kNever;
  }
  if (worked) {
    idle.polls = 0;
    return true;
  }
  if (idle.polls == 0) {
    idle.since = now;
  } else if (now - idle.polled_at > kCoreWasTaken) {
    // Somebody with plenty to do has this core: giving it away costs us a whole round of theirs,
    // while a sleeper that is woken comes first.
    sleep_at_once_until_ = now + kSleepAtOnce;
    if (now - idle.polled_at > kCoreWasKept) crowded_until_ = now + kCrowded;
  }
  ++idle.polls;
  idle.polled_at = now;
  const int share = idle.brief ? kBriefShare : 1;
  if (now < sleep_at_once_until_) return false;
  if (now - idle.since >= idle.spin / share) return false;
  sched_yield();
  return true;
}

// The engine's thread, with the token: works until nothing is left to do, then sleeps without it.
void Duty::serve() {
  driven_.cancel_sleep_st();
  const std::uint64_t last_tenure = std::exchange(thread_tenure_, token_.tenure());
  const bool callers_come_and_go = thread_tenure_ - last_tenure > 1;
  Idle idle{.spin = thread_spin_.load(std::memory_order_relaxed)};
  idle.slept_at = std::exchange(thread_slept_at_, kNever);
  Time deadline;
  for (;;) {
    take_short_turns(driven_.now_st() < crowded_until_);
    const bool worked = driven_.turn_st(Driven::Who::kEngineThread);
    if (stopping() || is_wanted() || is_leased(driven_.now_st())) {
      token_.release();
      if (is_wanted() && wake_one_waiter()) stand_by();
      return;
    }
    if (!worked && callers_come_and_go && doze(&deadline)) break;
    if (worth_polling(idle, worked)) continue;
    if (driven_.prepare_sleep_st()) {
      deadline = driven_.next_deadline_st();
      break;
    }
  }
  driven_.arm_st(deadline);
  thread_slept_at_ = driven_.now_st();
  thread_state_.exchange(kInBlock);
  token_.release();
  if (driven_.queue_empty() && !is_wanted() && !is_leased() && !stopping()) {
    sleeps_.fetch_add(1, std::memory_order_relaxed);
    driven_.block(Driven::Who::kEngineThread, kNever);
  }
  thread_state_.exchange(kAwake);
}

// With the token, about to release it. True: nothing is open and nobody has been told of a sleep;
// the engine's thread has to look at `deadline`.
bool Duty::doze(Time* deadline) {
  if (driven_.has_open_requests_st()) return false;
  *deadline = std::min(driven_.next_deadline_st(), driven_.now_st() + kDoze);
  return driven_.prepare_doze_st(*deadline);
}

// The engine's thread, refused: a caller drives. It looks again soon, and once the same caller has
// refused it twice it sleeps until that caller leaves.
void Duty::stand_by() {
  const std::uint64_t tenure = token_.tenure();
  const ThreadState state = tenure == last_refusal_ ? kParked : kNapping;
  last_refusal_ = tenure;
  thread_state_.exchange(state);
  // A thread that released the token before it could see this state is seen here.
  const bool nobody_will_wake_me = token_.is_free() && heirs_.load() == 0;
  if (!nobody_will_wake_me && !stopping()) {
    futex_wait(thread_state_, state, state == kParked ? kNever : monotonic_now() + kNap);
  }
  thread_state_.exchange(kAwake);
}

// The engine's thread, while somebody polls: it is not needed before the lease ends.
void Duty::stay_away() {
  thread_state_.exchange(kNapping);
  const Time until = leased_until_.load(std::memory_order_seq_cst);
  if (!stopping()) futex_wait(thread_state_, kNapping, until);
  thread_state_.exchange(kAwake);
}

Time Duty::renew_lease(Time now) {
  const Time until = now + lease_.load(std::memory_order_relaxed);
  leased_until_.store(until, std::memory_order_seq_cst);
  return until;
}

// The lease is renewed before the thread's state is looked at: one that is about to sleep sees the
// lease, or is seen asleep and made to stay away instead.
bool Duty::poll() {
  if (!lends_ || stopping()) return false;
  bool worked = false;
  if (token_.try_acquire()) {
    if (stopping()) {
      token_.release();
      return false;
    }
    driven_.cancel_sleep_st();
    worked = driven_.turn_st(Driven::Who::kCaller);
    driven_.leave_until_st(renew_lease(driven_.now_st()));
    token_.release();
    if (is_wanted()) wake_one_waiter();
  } else {
    renew_lease(monotonic_now());
    if (!driven_.queue_empty()) wake_driver();
  }
  const std::uint32_t state = thread_state_.load(std::memory_order_seq_cst);
  if (state == kInBlock || state == kParked) kick_engine_thread();
  return worked;
}

bool Duty::wait(const Event& event, Time deadline) {
  bool heir = false;
  for (;;) {
    const bool over =
        event.is_set() || stopping() || (deadline != kNever && monotonic_now() >= deadline);
    const bool driving = !over && may_be_mine() && token_.try_acquire();
    if (heir) heirs_.fetch_sub(1);
    if (driving) {
      const bool set = drive(event, deadline);
      leave();
      return set;
    }
    if (over) {
      // The duty was meant for this thread, which no longer needs it.
      if (heir) pass_on(unfinished_.load());
      // A task that it has submitted, and promised to wait for, is somebody else's to run now.
      if (!driven_.queue_empty()) wake_driver();
      return event.is_set();
    }
    if (!driven_.queue_empty()) wake_driver();
    heir = sleep_as_waiter(event, deadline);
  }
}

// A caller, with the token: turns the engine's loop until its event is set or time is up.
bool Duty::drive(const Event& event, Time deadline) {
  driven_.cancel_sleep_st();
  const Duration spin = caller_spin_.load(std::memory_order_relaxed);
  Idle idle{.spin = spin};
  for (;;) {
    if (stopping()) return event.is_set();
    take_short_turns(driven_.now_st() < crowded_until_);
    const bool worked = driven_.turn_st(Driven::Who::kCaller);
    if (event.is_set()) return true;
    if (driven_.now_st() >= deadline) return false;
    if (worth_polling(idle, worked)) continue;
    if (!driven_.prepare_sleep_st()) continue;
    const Time until = std::min(deadline, driven_.next_deadline_st());
    caller_asleep_.exchange(true);
    if (driven_.queue_empty() && !event.is_set() && !stopping()) {
      sleeps_.fetch_add(1, std::memory_order_relaxed);
      driven_.block(Driven::Who::kCaller, until);
    }
    caller_asleep_.exchange(false);
    driven_.cancel_sleep_st();
    idle = Idle{.spin = spin, .slept_at = driven_.now_st()};
  }
}

// A caller, with the token, about to return to its program: leaves the engine asleep in good order,
// or somebody awake.
void Duty::leave() {
  // The engine's thread looks soon in every state: asleep, at the time it is armed for; at a nap,
  // after kNap; parked, when pass_on() kicks it.
  Time deadline;
  if (doze(&deadline)) {
    if (thread_state_.load(std::memory_order_seq_cst) == kInBlock) {
      driven_.arm_no_later_st(deadline);
    }
    unfinished_.store(Unfinished::kNothing);
    token_.release();
    return pass_on(Unfinished::kNothing);
  }
  bool quiet = driven_.prepare_sleep_st();
  for (int i = 0; i < kLeaveTurns && !quiet && !stopping(); ++i) {
    driven_.turn_st(Driven::Who::kCaller);
    quiet = driven_.prepare_sleep_st();
  }
  if (thread_state_.load(std::memory_order_seq_cst) == kInBlock) {
    driven_.arm_no_later_st(driven_.next_deadline_st());
  }
  const Unfinished unfinished = !quiet                           ? Unfinished::kArrivals
                                : driven_.has_open_requests_st() ? Unfinished::kRequests
                                                                 : Unfinished::kNothing;
  unfinished_.store(unfinished);
  token_.release();
  pass_on(unfinished);
}

// Without the token, after it was released: somebody must be awake, or asleep where the next event
// wakes them. A napping engine thread is left alone when no request is open: it looks soon.
void Duty::pass_on(Unfinished unfinished) {
  if (waiters_.load(std::memory_order_seq_cst) > 0 && wake_one_waiter()) return;
  const std::uint32_t state = thread_state_.load(std::memory_order_seq_cst);
  if (!driven_.queue_empty() || unfinished == Unfinished::kArrivals || state == kParked ||
      (state == kNapping && unfinished == Unfinished::kRequests)) {
    kick_engine_thread();
  }
}

bool Duty::sleep_as_waiter(const Event& event, Time deadline) {
  Waiter self{&event};
  {
    std::lock_guard lock(waiters_mutex_);
    sleepers_.push_back(self);
    waiters_.fetch_add(1, std::memory_order_seq_cst);
  }
  for (int i = 0; i < kTokenTries && !may_be_mine() && !event.is_set(); ++i) sched_yield();
  if (!may_be_mine() && !event.is_set() && !stopping()) {
    futex_wait(self.woken, kAsleep, deadline);
  }
  std::lock_guard lock(waiters_mutex_);
  sleepers_.erase(self);
  if (self.woken.load() == kAsleep) waiters_.fetch_sub(1, std::memory_order_seq_cst);
  return self.woken.load() == kHandedOver;
}

// With waiters_mutex_. False when the waiter is awake already.
bool Duty::wake(Waiter& waiter, Woken reason) {
  std::uint32_t asleep = kAsleep;
  if (!waiter.woken.compare_exchange_strong(asleep, reason)) return false;
  waiters_.fetch_sub(1, std::memory_order_seq_cst);
  if (reason == kHandedOver) heirs_.fetch_add(1);
  futex_wake(waiter.woken);
  return true;
}

bool Duty::wake_one_waiter() {
  std::lock_guard lock(waiters_mutex_);
  for (Waiter& waiter : sleepers_) {
    if (wake(waiter, kHandedOver)) return true;
  }
  return false;
}

void Duty::wake_waiters() {
  // An exchange, not a load: it orders this look after the event's store.
  if (!token_.held_by_me() && caller_asleep_.exchange(false)) {
    driven_.kick(Driven::Who::kCaller);
  }
  if (waiters_.fetch_add(0, std::memory_order_seq_cst) == 0) return;
  std::lock_guard lock(waiters_mutex_);
  for (Waiter& waiter : sleepers_) {
    if (waiter.event->is_set()) wake(waiter, kEventSet);
  }
}

void Duty::submitted() {
  // A holder looks at the queue on its next turn, and again before it sleeps or after it leaves.
  if (!token_.held_by_me()) wake_driver();
}

// Wakes the thread that would have to see a submission; nobody when a driver is awake, or polls.
void Duty::wake_driver() {
  if (caller_asleep_.load(std::memory_order_seq_cst)) {
    if (caller_asleep_.exchange(false)) driven_.kick(Driven::Who::kCaller);
  } else if (token_.is_free() && !is_leased()) {
    kick_engine_thread();
  }
}

void Duty::kick_engine_thread() {
  const std::uint32_t state = thread_state_.exchange(kAwake);
  if (state == kAwake) return;
  if (state == kInBlock) {
    driven_.kick(Driven::Who::kEngineThread);
  } else {
    futex_wake(thread_state_);
  }
}

}  // namespace taco::harp
