// A codec with a memory for tests: adds to each element what it has kept of it, sends one in so
// many and keeps the others. Elements are float32, or, where the executor does not say so, whole
// numbers of 32 bits that wrap around.
#pragma once

#include "pg/codec.h"

namespace taco::pg::testing {

class KeepingCodec final : public Codec {
 public:
  // `sends_one_in` 1: all of them, so that nothing is lost or kept.
  explicit KeepingCodec(std::uint32_t sends_one_in = 1,
                        std::uint64_t longest_block = std::uint64_t{4} << 20)
      : sends_one_in_(sends_one_in), longest_block_(longest_block) {}
  const char* name() const override { return "some kept"; }
  std::uint64_t most(std::uint64_t bytes) const override;
  std::uint64_t expected(std::uint64_t bytes) const override;
  double bytes_per_second() const override { return 4e9; }
  double decoded_bytes_per_second() const override { return 12e9; }
  double added_bytes_per_second() const override { return 40e9; }
  bool has_memory() const override { return true; }
  std::uint64_t longest_block() const override { return longest_block_; }
  Result<std::size_t> encode(Coding& coding, std::size_t budget) const override;
  // kMismatch when the block ends too early or too late.
  Result<std::size_t> decode(Coding& coding, std::size_t budget) const override;

 private:
  const std::uint32_t sends_one_in_;
  const std::uint64_t longest_block_;
};

// left + right, of one element.
std::uint32_t add_elements(std::uint32_t left, std::uint32_t right, kernels::Dtype dtype);

}  // namespace taco::pg::testing
