// Memory in which the tensors of several requests lie one after the other while one operation runs
// on all of them: made when it is first needed, on large pages where the host gives some, and used
// again. One holder at a time; the controller's thread.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <utility>

#include "base/arena.h"
#include "base/status.h"

namespace taco::pg::controller {

class FusionBuffer {
 public:
  // Grows by doubling up to `keeps` bytes, which it keeps; more go back to the host after use.
  explicit FusionBuffer(std::size_t keeps) : keeps_(keeps) {}

  bool is_taken() const { return taken_; }
  // kResource: the host has no such memory.
  Result<std::byte*> take(std::size_t bytes) {
    if (bytes > arena_.size()) {
      arena_ = Arena();  // before the new one: both may be too much
      made_for_ = bytes < keeps_ ? std::min(std::bit_ceil(bytes), keeps_) : bytes;
      Result<Arena> made = Arena::create("taco-fusion", made_for_, Arena::Sharing::kPrivate);
      if (!made.ok()) return made.status();
      arena_ = std::move(made).value();
    }
    taken_ = true;
    return arena_.data();
  }
  void give() {
    taken_ = false;
    if (made_for_ > keeps_) arena_ = Arena();
  }
  std::size_t size() const { return arena_.size(); }

 private:
  const std::size_t keeps_;
  Arena arena_;
  std::size_t made_for_ = 0;  // the arena, which has whole pages
  bool taken_ = false;
};

}  // namespace taco::pg::controller
