// The engine's ownership token: only its holder may touch the engine's sessions, timers and
// sockets. It is free, or held by the engine's own thread, or by a caller that drives the engine
// inline while it waits. Functions that need it end in _st.
//
// The token only excludes others. Duty decides who is woken when it changes hands (duty.h).
#pragma once

#include <atomic>
#include <cstdint>

#include "base/cache_line.h"

namespace taco::harp {

class alignas(kCacheLine) Token {
 public:
  // Any thread. Never blocks. Not recursive: a holder that asks again is refused.
  bool try_acquire() {
    std::uintptr_t expected = 0;
    // The plain load keeps a crowd of refused callers from bouncing the line.
    if (word_.load(std::memory_order_seq_cst) != 0) return false;
    if (!word_.compare_exchange_strong(expected, this_thread(), std::memory_order_seq_cst)) {
      return false;
    }
    tenure_.store(tenure_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    return true;
  }

  // The holder. Sequentially consistent, since what follows is always "is there somebody to wake?"
  void release() { word_.store(0, std::memory_order_seq_cst); }

  bool held_by_me() const { return word_.load(std::memory_order_relaxed) == this_thread(); }
  bool is_free() const { return word_.load(std::memory_order_seq_cst) == 0; }
  // Grows with every acquisition: tells the same long tenure from many short ones.
  std::uint64_t tenure() const { return tenure_.load(std::memory_order_relaxed); }

 private:
  // An address that no two live threads share.
  static std::uintptr_t this_thread() {
    static thread_local char identity;
    return reinterpret_cast<std::uintptr_t>(&identity);
  }

  std::atomic<std::uintptr_t> word_{0};
  std::atomic<std::uint64_t> tenure_{0};
};

}  // namespace taco::harp
