#include "zerocache/steps/workers.h"

#include <unistd.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/condition.h"
#include "base/thread.h"

namespace taco::zerocache {

namespace {

// Pieces of work follow each other within microseconds as a rule, and to wake who sleeps takes
// longer: it is looked for a while before anybody sleeps.
constexpr Duration kLook = 50 * kMicrosecond;

void look_for(const auto& what) {
  const Time end = monotonic_now() + kLook;
  while (!what() && monotonic_now() < end) {
  }
}

}  // namespace

// Atomic members are read without the mutex, but change under it.
struct Workers::State {
  std::mutex mutex;
  Condition begun, ended;
  const std::function<void(unsigned)>* work = nullptr;
  std::atomic<std::uint64_t> round = 0;
  std::atomic<unsigned> busy = 0;
  bool ending = false;
  std::vector<std::thread> threads;
  const pid_t process = getpid();

  void loop(unsigned index) {
    for (std::uint64_t seen = 0;;) {
      look_for([&] { return round.load(std::memory_order_relaxed) != seen; });
      std::unique_lock lock(mutex);
      begun.wait(lock, [&] { return ending || round != seen; });
      if (ending) return;
      seen = round;
      const std::function<void(unsigned)>& current = *work;
      lock.unlock();
      current(index);
      lock.lock();
      if (--busy == 0) ended.notify_one();
    }
  }
};

Workers::Workers(std::unique_ptr<State> state) : state_(std::move(state)) {}

Result<std::unique_ptr<Workers>> Workers::start(unsigned threads, const char* name) {
  std::unique_ptr<Workers> workers(new Workers(std::make_unique<State>()));
  State* const state = workers->state_.get();
  for (unsigned i = 1; i < threads; ++i) {
    auto thread = start_thread(name, [state, i] { state->loop(i); });
    if (!thread.ok()) return thread.status();
    state->threads.push_back(std::move(thread).value());
  }
  return workers;
}

Workers::~Workers() {
  if (getpid() != state_->process) {
    // The threads are the parent's; to destroy what they sleep on would be to wait for them.
    static_cast<void>(state_.release());
    return;
  }
  {
    std::lock_guard lock(state_->mutex);
    state_->ending = true;
  }
  state_->begun.notify_all();
  for (std::thread& thread : state_->threads) thread.join();
}

unsigned Workers::count() const { return static_cast<unsigned>(state_->threads.size()) + 1; }

void Workers::run(const std::function<void(unsigned)>& work) {
  if (count() > 1) {
    std::lock_guard lock(state_->mutex);
    state_->work = &work;
    state_->busy = count() - 1;
    ++state_->round;
    state_->begun.notify_all();
  }
  work(0);
  look_for([&] { return state_->busy.load(std::memory_order_relaxed) == 0; });
  std::unique_lock lock(state_->mutex);
  state_->ended.wait(lock, [&] { return state_->busy == 0; });
}

}  // namespace taco::zerocache
