// The base of what the objects of harp.h have behind them: a copy of it in a forked child is left
// as it is (base/fork.h).
#pragma once

#include <cstdint>
#include <new>

#include "base/fork.h"

namespace harp {

template <class State>
class EndsUnlessCopied {
 public:
  EndsUnlessCopied(const EndsUnlessCopied&) = delete;
  EndsUnlessCopied& operator=(const EndsUnlessCopied&) = delete;
  static void operator delete(EndsUnlessCopied* base, std::destroying_delete_t) {
    taco::end_unless_copied(static_cast<State*>(base));
  }

  const std::uint32_t generation = taco::fork_generation();  // of the process that made it

 protected:
  EndsUnlessCopied() = default;
  ~EndsUnlessCopied() = default;
};

}  // namespace harp
