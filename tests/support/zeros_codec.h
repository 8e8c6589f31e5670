// A codec for tests: leaves out the bytes that are zero. Nothing is lost, so results can be
// compared with plain ones, and how long a block becomes depends on what is in it.
#pragma once

#include <memory>

#include "pg/codec.h"

namespace taco::pg::testing {

class ZerosCodec final : public Codec {
 public:
  // `expected_share`: what it tells the planner to expect of most().
  explicit ZerosCodec(double expected_share = 1,
                      std::uint64_t longest_block = std::uint64_t{4} << 20)
      : expected_share_(expected_share), longest_block_(longest_block) {}
  const char* name() const override { return "zeros left out"; }
  std::uint64_t most(std::uint64_t bytes) const override;
  std::uint64_t expected(std::uint64_t bytes) const override;
  double bytes_per_second() const override { return 2e9; }
  std::uint64_t longest_block() const override { return longest_block_; }
  Result<std::size_t> encode(Coding& coding, std::size_t budget) const override;
  // kMismatch when the block ends too early or too late, or says what cannot be.
  Result<std::size_t> decode(Coding& coding, std::size_t budget) const override;

 private:
  const double expected_share_;
  const std::uint64_t longest_block_;
};

}  // namespace taco::pg::testing
