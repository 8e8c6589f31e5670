// What an operation says about itself in every message: 64 bits that two ranks must have equal, and
// that can be read back, so that a mismatch is told in words and not in numbers.
//
//   bits 60..63 kind   56..59 dtype   52..55 reduction   51 uneven sizes (count is their hash)
//   bits 41..50 root   36..40 parameter block             0..35 count
//
// A pure value; any thread.
#pragma once

#include <cstdint>
#include <string>

#include "pg/operation.h"

namespace taco::pg {

// Equal on every rank exactly when the ranks mean the same operation, as far as a rank can know it:
// the blocks of an all_to_all are compared message by message instead, unless `equal_splits`.
std::uint64_t signature_of(const OperationSpec& spec, std::uint64_t parameter_hash);

// "all_reduce SUM float32 x 4", "broadcast float32 x 10 root 2", "send int64 x 3".
std::string describe_signature(std::uint64_t signature);
// Two that differ, in words that differ: parameter blocks are mentioned where nothing else does.
std::string describe_beside(std::uint64_t signature, std::uint64_t other);
std::string describe(const OperationSpec& spec);

}  // namespace taco::pg
