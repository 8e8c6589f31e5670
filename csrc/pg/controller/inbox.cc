#include "pg/controller/inbox.h"

#include <utility>

namespace taco::pg::controller {

void Inbox::post(Letter letter) {
  std::shared_ptr<harp::Event> sleeper;
  {
    std::lock_guard lock(mutex_);
    letters_.push_back(std::move(letter));
    sleeper = std::exchange(sleeper_, nullptr);
    posted_.notify_one();
  }
  if (sleeper == nullptr) return;
  sleeper->set();
  // An engine that ends an operation wakes those who wait for it itself.
  harp::Engine& engine = stack_->engine();
  if (!engine.in_engine()) engine.wake_waiters();
}

std::size_t Inbox::read() {
  {
    std::lock_guard lock(mutex_);
    reading_.swap(letters_);
  }
  const std::size_t count = reading_.size();
  for (Letter& letter : reading_) {
    if (letter) letter();
  }
  reading_.clear();
  return count;
}

bool Inbox::sleep(Time until, bool drives) {
  if (stack_ == nullptr || !drives) {
    doze(until);
    return true;
  }
  const auto sleeper = std::make_shared<harp::Event>();
  {
    std::lock_guard lock(mutex_);
    if (!letters_.empty()) return true;
    sleeper_ = sleeper;
  }
  sleeps_.fetch_add(1, std::memory_order_relaxed);
  const bool woken = stack_->engine().wait(*sleeper, until);
  {
    std::lock_guard lock(mutex_);
    sleeper_ = nullptr;
    if (woken || !letters_.empty()) return true;
  }
  return monotonic_now() >= until || stack_->usable().ok();
}

void Inbox::doze(Time until) {
  std::unique_lock lock(mutex_);
  if (!letters_.empty()) return;
  sleeps_.fetch_add(1, std::memory_order_relaxed);
  (void)posted_.wait_until(lock, until, [this] { return !letters_.empty(); });
}

}  // namespace taco::pg::controller
