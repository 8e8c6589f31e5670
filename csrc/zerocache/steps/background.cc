#include "zerocache/steps/background.h"

#include <unistd.h>

#include <mutex>
#include <thread>
#include <utility>

#include "base/condition.h"
#include "base/thread.h"

namespace taco::zerocache {

struct Background::State {
  std::mutex mutex;
  Condition given, done;
  std::function<void()> work;  // empty: there is none
  bool ending = false;
  std::thread thread;
  const pid_t process = getpid();

  void loop() {
    std::unique_lock lock(mutex);
    for (;;) {
      given.wait(lock, [this] { return ending || work; });
      if (!work) return;
      lock.unlock();
      work();
      lock.lock();
      work = nullptr;
      done.notify_all();
    }
  }
};

Background::Background(std::unique_ptr<State> state) : state_(std::move(state)) {}

Result<std::unique_ptr<Background>> Background::start(const char* name) {
  std::unique_ptr<Background> background(new Background(std::make_unique<State>()));
  State* const state = background->state_.get();
  auto thread = start_thread(name, [state] { state->loop(); });
  if (!thread.ok()) return thread.status();
  state->thread = std::move(thread).value();
  return background;
}

Background::~Background() {
  if (getpid() != state_->process) {
    // The thread is the parent's; to destroy what it sleeps on would be to wait for it.
    static_cast<void>(state_.release());
    return;
  }
  {
    std::lock_guard lock(state_->mutex);
    state_->ending = true;
  }
  state_->given.notify_one();
  if (state_->thread.joinable()) state_->thread.join();
}

void Background::run(std::function<void()> work) {
  wait();
  std::lock_guard lock(state_->mutex);
  state_->work = std::move(work);
  state_->given.notify_one();
}

void Background::wait() {
  if (getpid() != state_->process) return;
  std::unique_lock lock(state_->mutex);
  state_->done.wait(lock, [this] { return !state_->work; });
}

}  // namespace taco::zerocache
