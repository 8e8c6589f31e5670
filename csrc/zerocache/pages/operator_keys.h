// The keys by which uses of pages are told apart, one range for each kind of use: what uses pages
// adds a number of its own to the first key of its range.
//
// The order of a program's uses is learned by these keys, so the same use has the same key in every
// run, and a use of another kind never has it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace taco::zerocache {

// The caller's number of an operator. The same part of a program has the same key in every run, its
// forward and its backward pass different ones.
using OperatorKey = std::uint64_t;

// Numbers within a range: pages and parts of a model have 32 bits, and some uses two keys for each.
inline constexpr OperatorKey kKeysOfRange = OperatorKey{1} << 33;

inline constexpr OperatorKey kPartKeys = 0;                         // parts of a model, two each
inline constexpr OperatorKey kForgetKeys = OperatorKey{1} << 54;    // given up for good
inline constexpr OperatorKey kGiveBackKeys = OperatorKey{1} << 55;  // given to other ranks
inline constexpr OperatorKey kWrittenKeys = OperatorKey{1} << 56;   // written by the program
inline constexpr OperatorKey kPlaceKeys = OperatorKey{1} << 57;     // placed in the store
inline constexpr OperatorKey kDropKeys = OperatorKey{1} << 58;      // gradients thrown away
inline constexpr OperatorKey kChunkKeys = OperatorKey{1} << 60;     // stepped: two a page
inline constexpr OperatorKey kLookKeys = kChunkKeys + (OperatorKey{1} << 40);  // only looked at
inline constexpr OperatorKey kSendKeys = kChunkKeys + (OperatorKey{1} << 41);
inline constexpr OperatorKey kReceiveKeys = kChunkKeys + (OperatorKey{1} << 42);
inline constexpr OperatorKey kStripeKeys = kChunkKeys + (OperatorKey{1} << 43);
inline constexpr OperatorKey kBytesKeys = OperatorKey{1} << 61;  // read or written for a caller
// The operator that a use begins has its key; the one that its end begins, its key with this bit.
inline constexpr OperatorKey kEndKeys = OperatorKey{1} << 63;

inline constexpr std::array kKeyRanges = {
    kPartKeys, kForgetKeys, kGiveBackKeys, kWrittenKeys, kPlaceKeys, kDropKeys, kChunkKeys,
    kLookKeys, kSendKeys,   kReceiveKeys,  kStripeKeys,  kBytesKeys, kEndKeys,
};
static_assert(std::adjacent_find(kKeyRanges.begin(), kKeyRanges.end(), [](auto a, auto b) {
                return b - a < kKeysOfRange || b < a;
              }) == kKeyRanges.end());

}  // namespace taco::zerocache
