// Scratch memory of running operations, kept between operations: fresh pages cost more than the
// copy into them. Blocks are powers of two, 64-byte aligned. Engine only; owned by Membership.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

namespace taco::pg {

struct ScratchBlock {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

class ScratchPool {
 public:
  static constexpr std::size_t kKeptBytes = std::size_t{256} << 20;

  ScratchPool() = default;
  ~ScratchPool();
  ScratchPool(const ScratchPool&) = delete;
  ScratchPool& operator=(const ScratchPool&) = delete;

  // At least `bytes`; data is null when memory ran out or bytes is 0.
  ScratchBlock take(std::size_t bytes);
  void give(ScratchBlock block);
  std::size_t kept() const { return kept_; }

 private:
  static constexpr int kSmallest = 12;  // 4 KiB
  std::array<std::vector<ScratchBlock>, 64> free_;
  std::size_t kept_ = 0;
};

}  // namespace taco::pg
