#include "pg/completion_thread.h"

#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "base/clock.h"

namespace taco::pg::completion {
namespace {

constexpr Duration kPatience = 2 * kMillisecond;

struct Job {
  std::function<void()> callback;
  Time posted;
};

struct Pool {
  const pid_t process = getpid();
  std::mutex mutex;
  std::condition_variable wake;
  std::condition_variable ended;
  std::deque<Job> jobs;
  int users = 0;
  int alive = 0;
  int idle = 0;
  int running = 0;  // inside a callback and not known to be blocked
  bool ending = false;
};

thread_local bool t_on_completion_thread = false;

// Never destroyed: callbacks may outlive static destruction. A forked child, which has inherited
// the object but none of its threads, gets a new one.
Pool& pool() {
  static std::mutex mutex;
  static Pool* current = nullptr;
  std::lock_guard lock(mutex);
  if (current == nullptr || current->process != getpid()) current = new Pool;
  return *current;
}

// Whether this thread should start the head of the queue now.
bool may_take(const Pool& pool, Time now) {
  return !pool.jobs.empty() && (pool.running == 0 || now - pool.jobs.front().posted >= kPatience);
}

void run(Pool* pool);

// With the lock held: somebody must be there to take the queue's head if its turn comes.
void ensure_stand_by(Pool& pool) {
  if (pool.jobs.empty()) return;
  if (pool.idle > 0) {
    pool.wake.notify_one();
  } else if (pool.alive < kMaxThreads) {
    ++pool.alive;
    std::thread(run, &pool).detach();  // `alive` is what the last user waits for
  }
}

void run(Pool* pool) {
  t_on_completion_thread = true;
  pthread_setname_np(pthread_self(), "taco-callbacks");
  std::unique_lock lock(pool->mutex);
  while (true) {
    if (may_take(*pool, monotonic_now())) {
      Job job = std::move(pool->jobs.front());
      pool->jobs.pop_front();
      ++pool->running;
      ensure_stand_by(*pool);
      lock.unlock();
      job.callback();
      job.callback = nullptr;  // what it holds is released outside the lock too
      lock.lock();
      --pool->running;
      continue;
    }
    if (pool->ending && pool->jobs.empty()) break;
    ++pool->idle;
    if (pool->jobs.empty()) {
      pool->wake.wait(lock);
    } else {
      const Duration left = pool->jobs.front().posted + kPatience - monotonic_now();
      pool->wake.wait_for(lock, std::chrono::nanoseconds(left > 0 ? left : 0));
    }
    --pool->idle;
  }
  --pool->alive;
  pool->ended.notify_all();
}

}  // namespace

void post(std::function<void()> callback) {
  Pool& p = pool();
  std::lock_guard lock(p.mutex);
  p.jobs.push_back({std::move(callback), monotonic_now()});
  ensure_stand_by(p);
}

bool on_completion_thread() { return t_on_completion_thread; }

Blocked::Blocked() : counted_(t_on_completion_thread) {
  if (!counted_) return;
  Pool& p = pool();
  std::lock_guard lock(p.mutex);
  --p.running;
  ensure_stand_by(p);
}

Blocked::~Blocked() {
  if (!counted_) return;
  Pool& p = pool();
  std::lock_guard lock(p.mutex);
  ++p.running;
}

void add_user() {
  Pool& p = pool();
  std::lock_guard lock(p.mutex);
  ++p.users;
  p.ending = false;
}

void remove_user() {
  Pool& p = pool();
  std::unique_lock lock(p.mutex);
  if (p.users == 0 || --p.users > 0) return;
  p.ending = true;
  p.wake.notify_all();
  const int self = t_on_completion_thread ? 1 : 0;
  p.ended.wait_for(lock, std::chrono::seconds(1), [&] { return p.alive <= self || !p.ending; });
}

int threads() {
  Pool& p = pool();
  std::lock_guard lock(p.mutex);
  return p.alive;
}

}  // namespace taco::pg::completion
