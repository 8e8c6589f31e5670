// The ranges of memory that a process has registered, and which transfers use them.
//
// Any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "base/status.h"

namespace harp {

class RegisteredMemory {
 public:
  // A transfer keeps its range for as long as it may touch it.
  struct Range {
    std::uintptr_t begin = 0, end = 0;
  };
  using Kept = std::shared_ptr<const Range>;

  // kInvalidArgument: nothing, or nothing that is mapped, or a part of it is registered already.
  taco::Result<Kept> add(const void* data, std::size_t bytes);
  // kInvalidArgument: a transfer keeps it. Else `range` is empty afterwards.
  taco::Status remove(Kept& range);
  // Also while transfers keep it.
  void forget(const Kept& range);
  // The range that all of it lies in; null: it is not registered.
  Kept covering(const void* data, std::size_t bytes) const;

 private:
  void erase(const Kept& range);

  mutable std::mutex mutex_;
  std::map<std::uintptr_t, Kept> ranges_;  // by their ends
  std::atomic<std::size_t> count_{0};      // of them
};

// The process has one table, a forked child one of its own, empty at first.
RegisteredMemory& registered_memory();

}  // namespace harp
