// Describes an operation in 64 bits, which every message carries. Both of its ranks must have the
// same ones. They can be decoded, so that a mismatch is reported in words and not in numbers.
//
//   bits 60..63 kind   56..59 dtype   52..55 reduction   51 hashed
//   bits 35..50 root    0..34 count   or, where these do not fit or sizes are uneven, hashed: all
//                                     51 of them are a hash of the root and of every size
//
// In an all_reduce or reduce_scatter that may be coded, the dtype is 15 (they are all float32) and
//   bits 31..50 the codec's settings (Codec::code)   0..30 count, or the most there can be, or,
//                                                   hashed, of every size where they are uneven
//
// A signature describes the call and nothing else. Ranks agree on how they plan it at their
// rendezvous: settings are compared in full at that time, and hosts and costs come from one table
// (pg/c10d/group_rendezvous.h).
//
// A pure value; any thread.
#pragma once

#include <cstdint>
#include <string>

#include "pg/operation.h"

namespace taco::pg {

// Equal on every rank exactly when the ranks mean the same operation, as far as a rank can know it:
// the blocks of an all_to_all are compared message by message instead, unless `equal_splits`.
std::uint64_t signature_of(const OperationSpec& spec);

// "all_reduce SUM float32 x 4", "broadcast float32 x 10 root 2", "send int64 x 3", "all_reduce AVG
// float32 x 4 coded as TopK 1%".
std::string describe_signature(std::uint64_t signature);
// Describes a signature beside one that differs, with what to do about it where the words alone do
// not say so.
std::string describe_beside(std::uint64_t signature, std::uint64_t other);
std::string describe(const OperationSpec& spec);

}  // namespace taco::pg
