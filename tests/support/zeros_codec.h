// A codec for tests: leaves out the bytes that are zero. Nothing is lost, so results can be
// compared with plain ones, and how long a block becomes depends on what is in it.
#pragma once

#include <memory>

#include "pg/codec.h"

namespace taco::pg::testing {

class ZerosCodec final : public Codec {
 public:
  // `expected_share`: what it tells the planner to expect of most().
  explicit ZerosCodec(double expected_share = 1) : expected_share_(expected_share) {}
  const char* name() const override { return "zeros left out"; }
  std::uint64_t most(std::uint64_t bytes) const override;
  std::uint64_t expected(std::uint64_t bytes) const override;
  double bytes_per_second() const override { return 2e9; }
  Result<std::size_t> encode(Coding& coding, std::size_t budget) const override;
  // kMismatch when the block ends too early or too late, or says what cannot be.
  Result<std::size_t> decode(Coding& coding, std::size_t budget) const override;

 private:
  const double expected_share_;
};

}  // namespace taco::pg::testing
