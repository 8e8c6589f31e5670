// Tasks on their way from any thread to the engine: an intrusive lock-free stack that the engine
// takes whole and turns round, so tasks run in the order of submission. No allocation, no bound.
//
// push() and empty(): any thread. take_all(): the token's holder.
#pragma once

#include <atomic>

#include "base/cache_line.h"
#include "harp/engine/stack.h"

namespace taco::harp {

class alignas(kCacheLine) SubmitQueue {
 public:
  // Sequentially consistent on purpose: a submitter pushes and then asks whether the engine
  // sleeps, the engine says that it sleeps and then looks here. One of them must see the other.
  void push(Task& task) {
    Task* head = head_.load(std::memory_order_relaxed);
    do {
      task.next_.store(head, std::memory_order_relaxed);
    } while (!head_.compare_exchange_weak(head, &task, std::memory_order_seq_cst,
                                          std::memory_order_relaxed));
  }

  bool empty() const { return head_.load(std::memory_order_seq_cst) == nullptr; }

  // The oldest of all queued tasks; next() walks to younger ones. A task may be pushed again as
  // soon as its run_st has begun, so read next() first.
  Task* take_all() {
    Task* newest = head_.exchange(nullptr, std::memory_order_seq_cst);
    Task* oldest = nullptr;
    while (newest != nullptr) {
      Task* older = newest->next_.load(std::memory_order_relaxed);
      newest->next_.store(oldest, std::memory_order_relaxed);
      oldest = newest;
      newest = older;
    }
    return oldest;
  }

  static Task* next(const Task& task) { return task.next_.load(std::memory_order_relaxed); }

 private:
  std::atomic<Task*> head_{nullptr};
};

}  // namespace taco::harp
