// Memory in which the tensors of several requests lie one after the other while one operation runs
// on all of them: made when it is first needed, on large pages where the host gives some, and used
// again. One holder at a time; the controller's thread.
#pragma once

#include <bit>
#include <cstddef>
#include <utility>

#include "base/arena.h"
#include "base/status.h"

namespace taco::pg::controller {

class FusionBuffer {
 public:
  // More than `keeps` bytes go back to the host after use.
  explicit FusionBuffer(std::size_t keeps) : keeps_(keeps) {}

  bool is_taken() const { return taken_; }
  // kResource: the host has no such memory.
  Result<std::byte*> take(std::size_t bytes) {
    if (bytes > arena_.size()) {
      arena_ = Arena();  // before the new one: both may be too much
      const std::size_t rounded = bytes <= keeps_ ? std::bit_ceil(bytes) : bytes;
      Result<Arena> made = Arena::create("taco-fusion", rounded, Arena::Sharing::kPrivate);
      if (!made.ok()) return made.status();
      arena_ = std::move(made).value();
    }
    taken_ = true;
    return arena_.data();
  }
  void give() {
    taken_ = false;
    if (arena_.size() > 2 * keeps_) arena_ = Arena();
  }

 private:
  const std::size_t keeps_;
  Arena arena_;
  bool taken_ = false;
};

}  // namespace taco::pg::controller
