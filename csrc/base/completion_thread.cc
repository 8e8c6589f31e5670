#include "base/completion_thread.h"

#include <pthread.h>

#include <chrono>
#include <deque>
#include <list>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "base/cache_line.h"
#include "base/clock.h"
#include "base/condition.h"
#include "base/log.h"
#include "base/per_process.h"

namespace taco::completion {
namespace {

constexpr Duration kPatience = 2 * kMillisecond;
constexpr std::chrono::seconds kJoinLimit(1);

struct Job {
  std::function<void()> callback;
  Time posted;
};

struct alignas(kCacheLine) Pool {
  std::mutex mutex;
  Condition wake;
  Condition ended;
  std::deque<Job> jobs;
  std::list<std::thread> alive;
  std::list<std::thread> returned;  // from their last callback; to be joined
  int users = 0;
  int idle = 0;
  int running = 0;  // inside a callback and not known to be blocked
  bool ending = false;
};

thread_local bool t_on_completion_thread = false;

constinit PerProcess<Pool> pool;

// Whether this thread should start the head of the queue now.
bool may_take(const Pool& pool, Time now) {
  return !pool.jobs.empty() && (pool.running == 0 || now - pool.jobs.front().posted >= kPatience);
}

void run(Pool* pool, std::list<std::thread>::iterator self);

// With the lock held: those who have returned needed it to say so, and have let go of it.
void join_returned(Pool& pool) {
  for (std::thread& thread : pool.returned) thread.join();
  pool.returned.clear();
}

int threads_beside_this_one(const Pool& pool) {
  return static_cast<int>(pool.alive.size()) - (t_on_completion_thread ? 1 : 0);
}

// With the lock held. A callback that is blocked for longer than the limit keeps its thread, which
// is joined when the next one is made or at the process's exit.
void end_threads(Pool& pool, std::unique_lock<std::mutex>& lock) {
  pool.ending = true;
  pool.wake.notify_all();
  pool.ended.wait_for(lock, kJoinLimit,
                      [&] { return threads_beside_this_one(pool) <= 0 || !pool.ending; });
  join_returned(pool);
  if (pool.ending && threads_beside_this_one(pool) > 0) {
    TACO_LOG_WARNING("base", "%d callbacks of futures still run after the last group's end",
                     threads_beside_this_one(pool));
  }
}

// With the lock held: somebody must be there to take the queue's head if its turn comes.
void ensure_stand_by(Pool& pool) {
  if (pool.jobs.empty()) return;
  if (pool.idle > 0) {
    pool.wake.notify_one();
  } else if (pool.alive.size() < kMaxThreads) {
    join_returned(pool);
    const auto self = pool.alive.emplace(pool.alive.end());
    *self = std::thread(run, &pool, self);
  }
}

void run(Pool* pool, std::list<std::thread>::iterator self) {
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
  pool->returned.splice(pool->returned.end(), pool->alive, self);
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
  end_threads(p, lock);
}

void join() {
  Pool& p = pool();
  std::unique_lock lock(p.mutex);
  if (p.users == 0) end_threads(p, lock);
}

int threads() {
  Pool& p = pool();
  std::lock_guard lock(p.mutex);
  return static_cast<int>(p.alive.size() + p.returned.size());
}

}  // namespace taco::completion
