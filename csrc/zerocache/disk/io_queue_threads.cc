// Pages by pread and pwrite, a thread for each request under way: for kernels and containers that
// refuse io_uring, and for files that are not the kernel's.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <iterator>
#include <mutex>
#include <thread>
#include <utility>

#include "base/condition.h"
#include "base/thread.h"
#include "zerocache/disk/file_system.h"
#include "zerocache/disk/io_engines.h"
#include "zerocache/disk/io_transfer.h"

namespace taco::zerocache {
namespace {

// More would not make a disk faster, and each has a stack.
constexpr unsigned kMaxIoThreads = 32;

// The state that the threads share with the queue.
struct Pool {
  std::vector<File*> files;
  std::mutex mutex;
  Condition wake;   // there is work, or it is over
  Condition ended;  // a request has ended
  std::deque<IoRequest> waiting;
  std::vector<IoCompletion> complete;
  bool woken = false;
  bool ending = false;
  std::vector<std::thread> threads;
};

void work(Pool* pool) {
  std::unique_lock lock(pool->mutex);
  while (true) {
    pool->wake.wait(lock, [&] { return pool->ending || !pool->waiting.empty(); });
    if (pool->ending) return;
    const IoRequest request = pool->waiting.front();
    pool->waiting.pop_front();
    lock.unlock();
    Status status = carry_out(*pool->files[request.file], request, kIoAlignment);
    lock.lock();
    pool->complete.push_back({request.tag, std::move(status)});
    pool->ended.notify_one();
  }
}

class ThreadQueue : public IoQueue {
 public:
  explicit ThreadQueue(const std::vector<File*>& files) : pool_(new Pool) { pool_->files = files; }

  Status start(unsigned threads) {
    for (unsigned i = 0; i < threads; ++i) {
      auto thread = start_thread("taco-page-io", [pool = pool_] { work(pool); });
      if (!thread.ok()) return thread.status();
      pool_->threads.push_back(std::move(thread).value());
    }
    return {};
  }

  ~ThreadQueue() override {
    // A forked child has the memory but none of the threads, and the lock may be held for ever.
    if (process_ != getpid()) return;
    {
      std::lock_guard lock(pool_->mutex);
      pool_->ending = true;
    }
    pool_->wake.notify_all();
    for (std::thread& thread : pool_->threads) thread.join();
    delete pool_;
  }

  void submit(const IoRequest& request) override {
    ++open_;
    {
      std::lock_guard lock(pool_->mutex);
      pool_->waiting.push_back(request);
    }
    pool_->wake.notify_one();
  }

  void complete(Duration wait, std::vector<IoCompletion>* done) override {
    if (open_ == 0) return;
    std::unique_lock lock(pool_->mutex);
    const auto any = [&] { return !pool_->complete.empty() || pool_->woken; };
    if (wait == kNever) {
      pool_->ended.wait(lock, any);
    } else {
      pool_->ended.wait_for(lock, std::chrono::nanoseconds(wait), any);
    }
    pool_->woken = false;
    open_ -= pool_->complete.size();
    std::move(pool_->complete.begin(), pool_->complete.end(), std::back_inserter(*done));
    pool_->complete.clear();
  }

  void wake() override {
    std::lock_guard lock(pool_->mutex);
    pool_->woken = true;
    pool_->ended.notify_one();
  }

  void keep_busy() override {}  // the threads do that
  std::size_t open() const override { return open_; }
  std::string_view engine() const override { return "threads"; }

 private:
  Pool* const pool_;
  const pid_t process_ = getpid();
  std::size_t open_ = 0;
};

}  // namespace

Result<std::unique_ptr<IoQueue>> open_thread_queue(const IoOptions& options,
                                                   const std::vector<File*>& files) {
  auto queue = std::make_unique<ThreadQueue>(files);
  TACO_RETURN_IF_ERROR(queue->start(std::min(options.depth, kMaxIoThreads)));
  return std::unique_ptr<IoQueue>(std::move(queue));
}

}  // namespace taco::zerocache
