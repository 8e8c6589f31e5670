// The thread that carries out what is decided, and tells the scheduler what has become of it.
#include <algorithm>

#include "base/timeline.h"
#include "zerocache/mover/mover_state.h"

namespace taco::zerocache {
namespace {

constexpr int kRetries = 3;

}  // namespace

void Mover::State::run() {
  std::unique_lock lock(mutex);
  while (!ending) {
    carry_out(lock);
    press_on();
    const Time now = monotonic_now();
    const bool busy = !actions.empty() || ending;
    sleeps_until = busy ? 0 : again;
    const Duration wait = busy ? 0 : again == kNever ? kNever : std::max<Duration>(0, again - now);
    landed.clear();
    lock.unlock();
    carrier->complete(wait, &landed);
    lock.lock();
    sleeps_until = 0;
    for (const Landed& each : landed) land(each);
    if (!landed.empty() || monotonic_now() >= again) decide();
    end_waits();
  }
}

void Mover::State::carry_out(std::unique_lock<std::mutex>& lock) {
  if (actions.empty()) return;
  batch.clear();
  batch.swap(actions);
  // A page that is written is read first, for its checksum: reads from the disk begin before that.
  std::stable_partition(batch.begin(), batch.end(), [](const Action& action) {
    return action.kind != Action::Kind::kCopy || action.copy.to != Tier::kDisk;
  });
  lock.unlock();
  std::vector<Status> results;
  for (const Action& action : batch) results.push_back(carrier->carry_out(action));
  lock.lock();
  carried += batch.size();
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const auto& [kind, copy] = batch[i];
    if (kind == Action::Kind::kCopy || copy.to == Tier::kDisk) continue;
    no_frame[index(copy.page, copy.to)] = results[i].ok() ? 0 : 1;
    if (!results[i].ok()) failure = results[i];
  }
  end_waits();
}

void Mover::State::land(const Landed& arrival) {
  const PageId page = arrival.copy.page;
  const Way way = way_of(arrival.copy.from, arrival.copy.to);
  Time& until = busy_until[static_cast<int>(way)];
  WayStats& counts = stats.ways[static_cast<std::size_t>(way)];
  const Time began = std::max(arrival.started, until);  // before, another one was on its way
  counts.busy += std::max<Duration>(0, arrival.ended - began);
  show(arrival, began);
  until = std::max(until, arrival.ended);
  const bool copied = arrival.status.ok();
  ++(copied ? counts.copies : counts.failed);
  if (copied) {
    counts.bytes += page_bytes;
    recorder.copied(way);
  } else {
    failure = arrival.status;
  }
  scheduler.done(arrival.copy, copied);
  for (Waiter* const waiter : waiters) {
    waiter->way = way;
    if (copied || way == Way::kWrite) continue;
    const bool its = std::any_of(waiter->accesses.begin(), waiter->accesses.end(),
                                 [&](const Access& access) { return access.page == page; });
    if (!its) continue;
    waiter->failed = waiter->ended = fail(*waiter, arrival.status);
    if (!waiter->failed) scheduler.ask_again();
  }
}

// Copies may wait for one another; only the first of these is under way.
void Mover::State::show(const Landed& landed, Time began) {
  if (!timeline::enabled()) return;
  const Way way = way_of(landed.copy.from, landed.copy.to);
  const std::string queued = std::to_string((began - landed.started) / kMicrosecond);
  timeline::add({.name = describe(landed.copy.page),
                 .track = "pages, " + std::string(name_of(way)),
                 .started = began,
                 .ended = landed.ended,
                 .arguments = "\"bytes\":" + std::to_string(page_bytes) + ",\"queued_us\":" +
                              queued + (landed.status.ok() ? "" : ",\"failed\":true")});
}

// True once it has failed too often.
bool Mover::State::fail(Waiter& waiter, const Status& why) const {
  waiter.failure = why;
  return ++waiter.failures > kRetries;
}

void Mover::State::end_waits() {
  bool any = false;
  for (Waiter* const waiter : waiters) {
    if (!waiter->ended) waiter->ended = there(waiter->accesses);
    any |= waiter->ended;
  }
  if (any) ended.notify_all();
}

// Nothing moves, nothing is to be done, and somebody waits: something has failed. It is tried
// again, then those who wait are told.
void Mover::State::press_on() {
  const auto stuck = [this] {
    return actions.empty() && scheduler.idle() &&
           std::any_of(waiters.begin(), waiters.end(),
                       [](const Waiter* waiter) { return !waiter->ended; });
  };
  while (stuck()) {
    for (Waiter* const waiter : waiters) {
      if (waiter->ended) continue;
      Status why = failure;
      if (why.ok()) {
        const auto missing = std::find_if_not(waiter->accesses.begin(), waiter->accesses.end(),
                                              [this](const Access& access) {
                                                return there({&access, 1});
                                              });
        why = Status(Code::kResource, describe(missing->page) +
                                          " is waited for, and nothing that is in memory can go: "
                                          "give the cache more memory or disk");
      }
      renew_takes(waiter->accesses);
      waiter->failed = waiter->ended = fail(*waiter, why);
    }
    if (stuck()) {
      scheduler.ask_again();
      decide();
    }
    end_waits();
  }
}

std::string Mover::State::describe(PageId page) {
  std::lock_guard lock(layout_mutex);
  return layout.describe(page);
}

}  // namespace taco::zerocache
