// Memory that the TopK codec needs while it works on a block, kept for the next one: a codec is
// shared by all engines of the process, and none may allocate in a steady state, or wait.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/select.h"

namespace taco::pg {

// It never shrinks: its vectors may be longer than a block needs.
struct TopKScratch {
  struct Range {
    std::size_t begin = 0, end = 0;  // elements of the block
  };

  template <class T>
  static T* room(std::vector<T>& vector, std::size_t count) {
    if (vector.size() < count) vector.resize(count);
    return vector.data();
  }

  kernels::SelectScratch select;
  std::vector<float> taken;  // k values, and where they were
  std::vector<std::uint32_t> indices;
  std::vector<float> decoded;  // k values as their receivers find them
  std::vector<Range> held;     // ascending; parameters whose residual is held back
  std::vector<float> held_residual, held_momentum;  // of all ranges, one after the other
  std::vector<float> taken_momentum;                // k, for restore()
};

// Any thread. More threads at a time than there are slots allocate each time.
class TopKScratchSlots {
 public:
  TopKScratchSlots() = default;
  ~TopKScratchSlots() {
    for (auto& slot : slots_) delete slot.load();
  }
  TopKScratchSlots(const TopKScratchSlots&) = delete;
  TopKScratchSlots& operator=(const TopKScratchSlots&) = delete;

  std::unique_ptr<TopKScratch> take() {
    for (auto& slot : slots_) {
      if (TopKScratch* scratch = slot.exchange(nullptr)) {
        return std::unique_ptr<TopKScratch>(scratch);
      }
    }
    return std::make_unique<TopKScratch>();
  }
  void give(std::unique_ptr<TopKScratch> scratch) {
    for (auto& slot : slots_) {
      TopKScratch* empty = nullptr;
      if (!slot.compare_exchange_strong(empty, scratch.get())) continue;
      (void)scratch.release();  // the slot has it
      return;
    }
  }

 private:
  std::array<std::atomic<TopKScratch*>, 8> slots_{};
};

class TopKScratchLease {
 public:
  explicit TopKScratchLease(TopKScratchSlots& slots) : slots_(slots), scratch_(slots.take()) {}
  ~TopKScratchLease() { slots_.give(std::move(scratch_)); }
  TopKScratchLease(const TopKScratchLease&) = delete;
  TopKScratchLease& operator=(const TopKScratchLease&) = delete;
  TopKScratch* operator->() const { return scratch_.get(); }
  TopKScratch& operator*() const { return *scratch_; }

 private:
  TopKScratchSlots& slots_;
  std::unique_ptr<TopKScratch> scratch_;
};

}  // namespace taco::pg
