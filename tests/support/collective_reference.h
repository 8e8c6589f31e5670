// A reference of what a collective must do, without any schedule: made-up inputs, an arithmetic in
// which every mistake shows, and the outputs that must come of them.
//
// Elements are unsigned integers of 1 to 8 bytes (16: two of 8). Two arithmetics:
//  - kAdd wraps around, so the right sum is known whatever the order of operands;
//  - kTree hashes its operands, neither commutative nor associative, so two results are equal only
//    when they were made by the very same tree of operations.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pg/planning/schedule.h"

namespace taco::pg::testing {

using Bytes = std::vector<std::uint8_t>;
enum class Arithmetic { kAdd, kTree };

void reduce_elements(Arithmetic arithmetic, std::uint32_t element_bytes, std::uint8_t* out,
                     const std::uint8_t* left, const std::uint8_t* right, std::uint64_t bytes);
// kPremulSum's factor, another one on every rank; and kAvg's last step, which must happen once to
// the sum or once to each operand.
void scale_elements(std::uint32_t element_bytes, int rank, std::uint8_t* out,
                    const std::uint8_t* in, std::uint64_t bytes);
void divide_elements(std::uint32_t element_bytes, std::uint8_t* out, const std::uint8_t* in,
                     std::uint64_t bytes);

// How long each input and output piece of `rank` is, as OperationSpec defines them.
std::vector<std::uint64_t> input_lengths(const Problem& problem, int rank, int world);
std::vector<std::uint64_t> output_lengths(const Problem& problem, int rank, int world);

// The first contents of input `piece` of `rank`, `bytes` long.
Bytes input_contents(int rank, std::uint32_t piece, std::uint64_t bytes);

// The contents that every output of `rank` must have at the end under kAdd. Empty pieces where
// nothing is promised (the output of a reduce away from its root).
std::vector<Bytes> expected_outputs(const std::vector<Problem>& problems, int rank);

}  // namespace taco::pg::testing
