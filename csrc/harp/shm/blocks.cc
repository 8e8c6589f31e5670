#include "harp/shm/blocks.h"

#include <algorithm>

#include "base/assert.h"

namespace taco::harp {

ShmBlocks::ShmBlocks(Arena& arena)
    : arena_(arena), references_((arena.size() - kShmFirstBlock) / kShmBlockBytes) {
  free_.reserve(references_.size());
}

std::uint32_t ShmBlocks::take() {
  if (free_.empty() && committed_ < references_.size()) {
    shortage_ = arena_.commit(kShmFirstBlock + committed_ * kShmBlockBytes, kShmBlockBytes);
    if (shortage_.ok()) free_.push_back(static_cast<std::uint32_t>(committed_++));
  }
  if (free_.empty() && !reclaim()) return kNone;
  const std::uint32_t block = free_.back();
  free_.pop_back();
  TACO_ASSERT(references_[block] == 0);
  references_[block] = 1;
  in_use_++;
  return block;
}

void ShmBlocks::drop(std::uint32_t block) {
  TACO_ASSERT(references_[block] > 0 && in_use_ > 0);
  if (--references_[block] != 0) return;
  in_use_--;
  free_.push_back(block);
}

ShmStaged* ShmBlocks::stage() {
  if (spare_.empty()) {
    slices_.push_back(std::make_unique<ShmStaged>());
    spare_.push_back(slices_.back().get());
  }
  ShmStaged* staged = spare_.back();
  spare_.pop_back();
  staged->in_use = true;
  staged_.push_back(staged);
  return staged;
}

void ShmBlocks::unstage(ShmStaged* staged) {
  for (std::uint32_t& block : staged->blocks) {
    if (block != kNone) drop(block);
    block = kNone;
  }
  TACO_ASSERT(staged->in_use);
  staged->in_use = false;
  staged_.erase(std::find(staged_.begin(), staged_.end(), staged));
  spare_.push_back(staged);
}

// Takes blocks that only their slice refers to. Returns whether there is a free one now.
bool ShmBlocks::reclaim() {
  for (ShmStaged* staged : staged_) {
    for (std::uint32_t& block : staged->blocks) {
      if (block == kNone || references_[block] != 1) continue;
      drop(block);
      block = kNone;
    }
    if (!free_.empty()) return true;
  }
  return false;
}

}  // namespace taco::harp
