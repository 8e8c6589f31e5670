// The blocks of a process's arena, in which sends are staged for peers to read. The last block
// given back is the first one taken again, so few blocks stay in use and stay in the caches. Owner
// thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/arena.h"
#include "base/assert.h"
#include "harp/shm/layout.h"

namespace taco::harp {

// The blocks of one slice that is sent to several peers: copied once, kept until the family's
// sends are over. Harp's part of a Staging.
struct ShmStaged {
  static constexpr std::uint32_t kNoBlock = UINT32_MAX;
  static constexpr std::size_t kMaxBlocks = 4;
  std::uint32_t blocks[kMaxBlocks] = {kNoBlock, kNoBlock, kNoBlock, kNoBlock};
  bool in_use = false;
};

class ShmBlocks {
 public:
  static constexpr std::uint32_t kNone = ShmStaged::kNoBlock;

  // The arena outlives this object.
  explicit ShmBlocks(Arena& arena);

  // A block with one reference, or kNone when all are referenced by peers that still read them.
  std::uint32_t take();
  void add_reference(std::uint32_t block) {
    TACO_ASSERT(references_[block] > 0);
    references_[block]++;
  }
  void drop(std::uint32_t block);
  std::byte* data(std::uint32_t block) {
    return arena_.data() + kShmFirstBlock + block * kShmBlockBytes;
  }
  std::size_t in_use() const { return in_use_; }
  std::size_t count() const { return references_.size(); }
  // Set when the host had no memory for a block that was wanted.
  const Status& shortage() const { return shortage_; }

  // A staged slice lives until unstage(). Its blocks may vanish from it at any time between two
  // calls here: when blocks run out, those that nobody reads are taken back, and staged again when
  // somebody needs them. So a family whose members are not all wanted yet never blocks others.
  ShmStaged* stage();
  void unstage(ShmStaged* staged);

 private:
  bool reclaim();

  Arena& arena_;
  std::vector<std::uint32_t> references_;
  std::vector<std::uint32_t> free_;  // committed, last in first out
  std::size_t committed_ = 0;        // blocks below have memory behind them
  std::size_t in_use_ = 0;
  std::vector<ShmStaged*> staged_;  // in use
  std::vector<ShmStaged*> spare_;
  std::vector<std::unique_ptr<ShmStaged>> slices_;
  Status shortage_;
};

}  // namespace taco::harp
