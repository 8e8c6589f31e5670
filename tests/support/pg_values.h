// Buffers of small whole numbers for the process group's tests: exact in every dtype, whatever the
// order of the additions, so that results are compared bit by bit.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/kernels.h"
#include "pg/operation.h"

namespace taco::testing {

using Bytes = std::vector<std::byte>;

// `count` values that depend on the rank, the index and the salt: 1 or 2, and 2 is rare enough for
// products over 8 ranks to stay below 128.
Bytes values(kernels::Dtype dtype, std::size_t count, int rank, int salt = 0);

// The reduction of `operands` in order, with the factor of kAvg and kPremulSum applied.
Bytes reduced(kernels::ReduceOp op, kernels::Dtype dtype, const std::vector<Bytes>& operands,
              double premul = 1.0);

// Equal bytes; a failure names the first that differs.
::testing::AssertionResult same(const Bytes& got, const Bytes& expected);

inline pg::Piece piece(Bytes& bytes) { return {bytes.data(), bytes.size()}; }

}  // namespace taco::testing
