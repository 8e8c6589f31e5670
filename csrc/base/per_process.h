// A thing that a process has one of, and a forked child one of its own. A mutex that another thread
// held while forking stays locked in the child for good, and what it guards may be half changed: so
// the child begins anew, and its parent's is left where it is.
//
// Never destroyed: its users may outlive static destruction. Any thread.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/fork.h"

namespace taco {

// A static one needs no initialisation, which a fork could interrupt.
template <class Value>
class PerProcess {
 public:
  constexpr PerProcess() = default;
  PerProcess(const PerProcess&) = delete;
  PerProcess& operator=(const PerProcess&) = delete;

  // Made when a process first asks.
  Value& operator()() {
    for (;;) {
      Instance* known = newest_.load(std::memory_order_acquire);
      if (known != nullptr && known->generation == fork_generation()) return known->value;
      auto* const made = new Instance;
      if (newest_.compare_exchange_strong(known, made)) return made->value;
      delete made;
    }
  }

 private:
  struct Instance {
    const std::uint32_t generation = fork_generation();
    Value value;
  };

  std::atomic<Instance*> newest_{nullptr};
};

}  // namespace taco
