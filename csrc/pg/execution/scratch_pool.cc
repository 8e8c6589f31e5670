#include "pg/execution/scratch_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>

namespace taco::pg {
namespace {
constexpr std::size_t kHugePage = std::size_t{2} << 20;
}

ScratchPool::~ScratchPool() {
  for (auto& blocks : free_)
    for (ScratchBlock& block : blocks) std::free(block.data);
}

ScratchBlock ScratchPool::take(std::size_t bytes) {
  if (bytes == 0) return {};
  const int order = std::max(kSmallest, static_cast<int>(std::bit_width(bytes - 1)));
  if (order > 46) return {};
  if (!free_[order].empty()) {
    ScratchBlock block = free_[order].back();
    free_[order].pop_back();
    kept_ -= block.bytes;
    return block;
  }
  ScratchBlock block;
  block.bytes = std::size_t{1} << order;
  const std::size_t alignment = block.bytes >= kHugePage ? kHugePage : 64;
  block.data = static_cast<std::byte*>(std::aligned_alloc(alignment, block.bytes));
  if (block.data != nullptr && block.bytes >= kHugePage)
    madvise(block.data, block.bytes, MADV_HUGEPAGE);
  return block;
}

void ScratchPool::give(ScratchBlock block) {
  if (block.data == nullptr) return;
  if (kept_ + block.bytes > kKeptBytes) {
    std::free(block.data);
    return;
  }
  kept_ += block.bytes;
  free_[std::bit_width(block.bytes) - 1].push_back(block);
}

}  // namespace taco::pg
