// The arrays that one selection reads and writes on a GPU, and what its kernels share (which they
// are and in which order they run is in kernels/cuda/select.h).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/exec.h"
#include "kernels/operations.h"
#include "kernels/select.h"

namespace taco::kernels::cuda {

inline constexpr std::size_t kMaxOfBlock = kMaxSelectable;

// `count` elements in blocks of `block`, of which the last may be shorter. Each gives up its k (the
// last one last_k) largest: block b's are at values[b * k] and indices[b * k], ascending by index,
// which counts from the block's first element.
struct SelectArguments {
  std::size_t count = 0;
  std::uint32_t block = 0;
  std::uint32_t k = 0;
  std::uint32_t last_k = 0;
  const float* residual = nullptr;
  const float* gradient = nullptr;  // null: nothing is added
  const float* momentum = nullptr;  // null: no momentum correction
  float factor = 0;
  float* new_residual = nullptr;  // another array than `residual`, or that very one
  float* new_momentum = nullptr;
  float* values = nullptr;
  std::uint32_t* indices = nullptr;
  float* taken_momentum = nullptr;  // as `values`; null: not wanted
  // For each block 1, or 0 where some sum is not finite: what was written for it means nothing
  // then, but in place nothing was.
  std::uint32_t* finite = nullptr;
};

enum class Feedback : std::uint8_t { kNone, kGradient, kMomentum };

inline constexpr std::uint32_t kMagnitudeBits = 0x7FFF'FFFF;
inline constexpr std::uint32_t kLargestFiniteBits = 0x7F7F'FFFF;

struct SelectArrays : SelectArguments {
  std::uint32_t blocks;
  std::uint32_t tiles_of_block;
  std::uint32_t capacity;  // of a block's list
  float sample_wanted;     // how many of a block's sample are to be above its threshold
  float last_sample_wanted;
  bool in_place;
  std::uint32_t* thresholds;  // of each block: listed is what is not below
  std::uint32_t* found;       // how many are not below, listed or not
  std::uint32_t* tile_first;  // where in the block's list a tile's elements are
  std::uint32_t* tile_found;  // and how many
  std::uint32_t* list_bits;
  std::uint32_t* list_indices;

  TACO_DEVICE std::uint32_t length_of(std::uint32_t b) const {
    const std::size_t rest = count - std::size_t{b} * block;
    return rest < block ? static_cast<std::uint32_t>(rest) : block;
  }
  TACO_DEVICE std::uint32_t k_of(std::uint32_t b) const { return b + 1 == blocks ? last_k : k; }
};

inline constexpr std::uint32_t kTileOfSelect = 4096;
// A sample's elements, in groups that are read from the memory as one.
inline constexpr std::uint32_t kSampleGroup = 8;
inline constexpr std::uint32_t kSampleGroups = 512;
inline constexpr std::uint32_t kSample = kSampleGroup * kSampleGroups;

inline std::size_t blocks_of(const SelectArguments& of) {
  return of.block == 0 ? 0 : (of.count + of.block - 1) / of.block;
}
inline std::uint32_t tiles_of(const SelectArguments& of) {
  return (of.block + kTileOfSelect - 1) / kTileOfSelect;
}
// A threshold lies at an eighth of a power of two, and above it on purpose more than k: room for
// several times as many costs little memory, and makes a list that is too long rare.
inline std::uint32_t list_capacity(const SelectArguments& of) {
  const std::uint64_t most = std::max<std::uint64_t>(of.k, of.last_k);
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(of.block, 6 * most + 2048));
}

inline std::size_t select_workspace_bytes(const SelectArguments& of) {
  const std::size_t words_of_block = 2 + 2 * tiles_of(of) + 2 * std::size_t{list_capacity(of)};
  return blocks_of(of) * words_of_block * sizeof(std::uint32_t);
}

// The sample of n elements should have its share of the k above the threshold, and four standard
// deviations of chance more: then fewer than k are above it once in ten thousand blocks.
inline float wanted_of_sample(std::size_t n, std::uint32_t k) {
  const double share = static_cast<double>(kSample) * k / static_cast<double>(n);
  return static_cast<float>(share + 4 * std::sqrt(share) + 8);
}

inline SelectArrays lay_out(const SelectArguments& of, void* workspace) {
  SelectArrays arrays{};
  static_cast<SelectArguments&>(arrays) = of;
  arrays.blocks = static_cast<std::uint32_t>(blocks_of(of));
  arrays.tiles_of_block = tiles_of(of);
  arrays.capacity = list_capacity(of);
  const std::size_t last = of.count - (arrays.blocks - std::size_t{1}) * of.block;
  arrays.sample_wanted = wanted_of_sample(of.block, of.k);
  arrays.last_sample_wanted = wanted_of_sample(last, of.last_k);
  arrays.in_place = of.residual == of.new_residual;
  auto* words = static_cast<std::uint32_t*>(workspace);
  const auto take = [&words](std::size_t count) {
    std::uint32_t* const taken = words;
    words += count;
    return taken;
  };
  const std::size_t tiles = std::size_t{arrays.blocks} * arrays.tiles_of_block;
  arrays.thresholds = take(arrays.blocks);
  arrays.found = take(arrays.blocks);
  arrays.tile_first = take(tiles);
  arrays.tile_found = take(tiles);
  arrays.list_bits = take(std::size_t{arrays.blocks} * arrays.capacity);
  arrays.list_indices = take(std::size_t{arrays.blocks} * arrays.capacity);
  return arrays;
}

TACO_DEVICE std::uint32_t magnitude_of(float value) {
  return __builtin_bit_cast(std::uint32_t, value) & kMagnitudeBits;
}

// The addends of one element, and their sum as the host forms it: rounded after each step.
struct Addend {
  float residual = 0, gradient = 0, momentum = 0;
};
struct Added {
  float sum, momentum;
};
template <Feedback kFeedback>
TACO_DEVICE Added add_up(const Addend& of, float factor) {
  if constexpr (kFeedback == Feedback::kNone) return {of.residual, 0};
  if constexpr (kFeedback == Feedback::kGradient) return {of.residual + of.gradient, 0};
  const float momentum = of.momentum * factor + of.gradient;
  return {of.residual + momentum, momentum};
}
template <Feedback kFeedback>
TACO_DEVICE Addend addend_at(const SelectArguments& from, std::size_t i) {
  Addend addend;
  addend.residual = from.residual[i];
  if constexpr (kFeedback != Feedback::kNone) addend.gradient = from.gradient[i];
  if constexpr (kFeedback == Feedback::kMomentum) addend.momentum = from.momentum[i];
  return addend;
}

}  // namespace taco::kernels::cuda
