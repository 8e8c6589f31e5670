// The passes of a selection over all of its elements: the guess, the look at whether all is finite,
// and the one that adds up and lists (kernels/cuda/select.h says what for).
#pragma once

#include <cstdint>

#include "kernels/cuda/exec.h"
#include "kernels/cuda/select_arrays.h"

namespace taco::kernels::cuda {

// A block of threads for each block of elements. The threshold is the largest eighth of a power of
// two that enough of the sample reaches; where the list holds all anyway, 0.
template <Feedback kFeedback>
struct ThresholdKernel {
  static constexpr unsigned kThreads = 256;
  // A bin for each eighth of a power of two: the sign aside, the upper 11 bits.
  static constexpr unsigned kBins = 2048, kShift = 20;
  static constexpr unsigned kBinsOfThread = kBins / kThreads;
  struct Shared {
    std::uint32_t bins[kBins];
    BlockSumMemory<std::uint32_t> sums;
  };

  SelectArrays arrays;

  template <class Exec>
  TACO_DEVICE void operator()(Exec& exec, Shared& shared) const {
    const std::uint32_t b = exec.block(), n = arrays.length_of(b);
    if (exec.thread() == 0) {
      arrays.found[b] = 0;
      arrays.finite[b] = 1;
      // Holds where nothing of the sample decides; 0 itself is the last to be listed, for where
      // most is 0 the list would be too long.
      arrays.thresholds[b] = n <= arrays.capacity ? 0 : 1;
    }
    if (n <= arrays.capacity) return;
    for (unsigned i = exec.thread(); i < kBins; i += kThreads) shared.bins[i] = 0;
    exec.barrier();
    const std::size_t start = std::size_t{b} * arrays.block;
    for (unsigned i = exec.thread(); i < kSample; i += kThreads) {
      const std::uint64_t group = i / kSampleGroup;
      const auto at = static_cast<std::uint32_t>(group * (n - kSampleGroup) / kSampleGroups);
      const Addend addend =
          addend_at<kFeedback>(arrays, start + at / kSampleGroup * kSampleGroup + i % kSampleGroup);
      const float sum = add_up<kFeedback>(addend, arrays.factor).sum;
      exec.atomic_add(&shared.bins[magnitude_of(sum) >> kShift], 1u);
    }
    exec.barrier();
    // Thread 0 has the uppermost bins, so that what lies before a thread's is what lies above.
    const unsigned last = kBins - 1 - exec.thread() * kBinsOfThread;
    std::uint32_t own = 0;
    for (unsigned i = 0; i < kBinsOfThread; ++i) own += shared.bins[last - i];
    std::uint32_t above = block_sum<kThreads>(exec, shared.sums, 0, own).before;
    const float wanted = b + 1 == arrays.blocks ? arrays.last_sample_wanted : arrays.sample_wanted;
    for (unsigned i = 0; i < kBinsOfThread; ++i) {
      const std::uint32_t with = above + shared.bins[last - i];
      // One bin alone is reached; the lowest of all would list zeros.
      if (static_cast<float>(above) < wanted && static_cast<float>(with) >= wanted && last > i) {
        arrays.thresholds[b] = (last - i) << kShift;
      }
      above = with;
    }
  }
};

// One tile of a block, of which each thread has kVectors times four neighbours.
struct SelectTile {
  static constexpr unsigned kThreads = 256;
  static constexpr unsigned kFour = 4, kVectors = 4;
  static_assert(kThreads * kFour * kVectors == kTileOfSelect);

  std::uint32_t block;       // this is a part of
  std::uint32_t first, end;  // its elements, counted from the block's first
  std::size_t start;         // of the block, in the arrays
  bool whole;                // all of its elements are there, and aligned to be read by fours

  TACO_DEVICE SelectTile(const SelectArrays& of, unsigned index)
      : block(index / of.tiles_of_block),
        first(index % of.tiles_of_block * kTileOfSelect),
        start(std::size_t{block} * of.block) {
    const std::uint32_t length = of.length_of(block);
    end = first + kTileOfSelect < length ? first + kTileOfSelect : length;
    const std::uintptr_t places = place(of.residual) | place(of.new_residual) | place(of.gradient) |
                                  place(of.momentum) | place(of.new_momentum);
    whole = end == first + kTileOfSelect && places % 16 == 0;
  }
  // Where a vector of this thread begins.
  template <class Exec>
  TACO_DEVICE std::uint32_t vector(const Exec& exec, unsigned v) const {
    return first + (v * kThreads + exec.thread()) * kFour;
  }

 private:
  TACO_DEVICE std::uintptr_t place(const float* array) const {
    return array == nullptr ? 0 : reinterpret_cast<std::uintptr_t>(array + start);
  }
};

template <Feedback kFeedback>
struct TileAddends {
  using Four = Pack<float, SelectTile::kFour>;
  Four residual[SelectTile::kVectors], gradient[SelectTile::kVectors],
      momentum[SelectTile::kVectors];

  TACO_DEVICE Addend of(unsigned v, unsigned c) const {
    Addend addend;
    addend.residual = residual[v].at[c];
    if constexpr (kFeedback != Feedback::kNone) addend.gradient = gradient[v].at[c];
    if constexpr (kFeedback == Feedback::kMomentum) addend.momentum = momentum[v].at[c];
    return addend;
  }
};

// This thread's elements of a tile, all asked for before any is looked at; 0 beyond its end.
template <Feedback kFeedback, class Exec>
TACO_DEVICE TileAddends<kFeedback> load_tile(Exec& exec, const SelectArguments& from,
                                             const SelectTile& tile) {
  TileAddends<kFeedback> addends;
  if (tile.whole) {
    TACO_UNROLL
    for (unsigned v = 0; v < SelectTile::kVectors; ++v) {
      const std::size_t at = tile.start + tile.vector(exec, v);
      addends.residual[v] = exec.load(pack_of<4>(from.residual + at));
      if constexpr (kFeedback != Feedback::kNone) {
        addends.gradient[v] = exec.load(pack_of<4>(from.gradient + at));
      }
      if constexpr (kFeedback == Feedback::kMomentum) {
        addends.momentum[v] = exec.load(pack_of<4>(from.momentum + at));
      }
    }
    return addends;
  }
  TACO_UNROLL
  for (unsigned v = 0; v < SelectTile::kVectors; ++v) {
    TACO_UNROLL
    for (unsigned c = 0; c < SelectTile::kFour; ++c) {
      const std::uint32_t i = tile.vector(exec, v) + c;
      const Addend one = i < tile.end ? addend_at<kFeedback>(from, tile.start + i) : Addend{};
      addends.residual[v].at[c] = one.residual;
      addends.gradient[v].at[c] = one.gradient;
      addends.momentum[v].at[c] = one.momentum;
    }
  }
  return addends;
}

// Where residual and momentum are updated in place: says of each block whether all of it is finite,
// before anything is written.
template <Feedback kFeedback>
struct FiniteKernel {
  static constexpr unsigned kThreads = SelectTile::kThreads;
  struct Shared {};

  SelectArrays arrays;

  template <class Exec>
  TACO_DEVICE void operator()(Exec& exec, Shared&) const {
    const SelectTile tile(arrays, exec.block());
    const TileAddends<kFeedback> addends = load_tile<kFeedback>(exec, arrays, tile);
    bool finite = true;
    TACO_UNROLL
    for (unsigned v = 0; v < SelectTile::kVectors; ++v) {
      TACO_UNROLL
      for (unsigned c = 0; c < SelectTile::kFour; ++c) {
        const float sum = add_up<kFeedback>(addends.of(v, c), arrays.factor).sum;
        finite &= magnitude_of(sum) <= kLargestFiniteBits;
      }
    }
    if (!finite) arrays.finite[tile.block] = 0;  // whoever writes here writes this
  }
};

template <Feedback kFeedback>
struct CollectKernel {
  static constexpr unsigned kThreads = SelectTile::kThreads;
  static constexpr unsigned kFour = SelectTile::kFour, kVectors = SelectTile::kVectors;
  static constexpr unsigned kWarps = kThreads / kLanes;
  static_assert(kWarps * kVectors == kLanes);  // one warp adds up what all have found
  struct Shared {
    std::uint32_t found[kVectors * kWarps];  // by a warp in one vector, ascending by index
    std::uint32_t first[kVectors * kWarps];  // where they go in the block's list
  };

  SelectArrays arrays;

  template <class Exec>
  TACO_DEVICE void operator()(Exec& exec, Shared& shared) const {
    const SelectTile tile(arrays, exec.block());
    // In place this has been decided before; otherwise other tiles are about to.
    if (arrays.in_place && arrays.finite[tile.block] == 0) return;
    const TileAddends<kFeedback> addends = load_tile<kFeedback>(exec, arrays, tile);
    Sums sums;
    const std::uint32_t chosen = add_and_look(exec, tile, addends, sums);
    // How many are chosen of each vector, a byte each, which 32 lanes of four cannot overflow.
    std::uint32_t counts = 0;
    TACO_UNROLL
    for (unsigned v = 0; v < kVectors; ++v) {
      counts |= count_bits(chosen >> (v * kFour) & 0xF) << (8 * v);
    }
    const std::uint32_t up_to = sum_up_to_lane(exec, counts);
    if (lane_of(exec) == kLanes - 1) {
      for (unsigned v = 0; v < kVectors; ++v) {
        shared.found[v * kWarps + warp_of(exec)] = up_to >> (8 * v) & 0xFF;
      }
    }
    exec.barrier();
    if (warp_of(exec) == 0) reserve_places(exec, shared, tile);
    exec.barrier();
    list(exec, shared, tile, sums, chosen, up_to - counts);
  }

 private:
  struct Sums {
    Pack<float, kFour> of[kVectors];
  };

  // Writes the new residual and momentum; a bit for each element that is to be listed.
  template <class Exec>
  TACO_DEVICE std::uint32_t add_and_look(Exec& exec, const SelectTile& tile,
                                         const TileAddends<kFeedback>& addends, Sums& sums) const {
    const std::uint32_t threshold = arrays.thresholds[tile.block];
    std::uint32_t chosen = 0;
    bool finite = true;
    TACO_UNROLL
    for (unsigned v = 0; v < kVectors; ++v) {
      const std::uint32_t i = tile.vector(exec, v);
      Pack<float, kFour> momentum;
      TACO_UNROLL
      for (unsigned c = 0; c < kFour; ++c) {
        const Added added = add_up<kFeedback>(addends.of(v, c), arrays.factor);
        sums.of[v].at[c] = added.sum;
        momentum.at[c] = added.momentum;
        const std::uint32_t magnitude = magnitude_of(added.sum);
        finite &= magnitude <= kLargestFiniteBits;
        const bool listed = magnitude >= threshold && i + c < tile.end;
        chosen |= (listed ? 1u : 0u) << (v * kFour + c);
      }
      write_four(exec, tile, i, arrays.new_residual, sums.of[v]);
      if constexpr (kFeedback == Feedback::kMomentum) {
        write_four(exec, tile, i, arrays.new_momentum, momentum);
      }
    }
    if (!finite) arrays.finite[tile.block] = 0;
    return chosen;
  }
  template <class Exec>
  TACO_DEVICE void write_four(Exec& exec, const SelectTile& tile, std::uint32_t i, float* to,
                              const Pack<float, kFour>& four) const {
    float* const place = to + tile.start + i;
    if (tile.whole) return exec.store(pack_of<kFour>(place), four);
    for (unsigned c = 0; c < kFour; ++c) {
      if (i + c < tile.end) place[c] = four.at[c];
    }
  }

  template <class Exec>
  TACO_DEVICE void reserve_places(Exec& exec, Shared& shared, const SelectTile& tile) const {
    const unsigned lane = lane_of(exec);
    const std::uint32_t found = shared.found[lane];
    const std::uint32_t up_to = sum_up_to_lane(exec, found);
    std::uint32_t first = 0;
    if (lane == kLanes - 1) {
      first = exec.atomic_add(&arrays.found[tile.block], up_to);
      arrays.tile_first[exec.block()] = first;
      arrays.tile_found[exec.block()] = up_to;
    }
    first = exec.shuffle(kAllLanes, first, kLanes - 1);
    shared.first[lane] = first + up_to - found;
  }

  template <class Exec>
  TACO_DEVICE void list(Exec& exec, const Shared& shared, const SelectTile& tile, const Sums& sums,
                        std::uint32_t chosen, std::uint32_t before) const {
    const std::size_t list = std::size_t{tile.block} * arrays.capacity;
    TACO_UNROLL
    for (unsigned v = 0; v < kVectors; ++v) {
      std::uint32_t place = shared.first[v * kWarps + warp_of(exec)] + (before >> (8 * v) & 0xFF);
      TACO_UNROLL
      for (unsigned c = 0; c < kFour; ++c) {
        if ((chosen >> (v * kFour + c) & 1) == 0) continue;
        if (place < arrays.capacity) {
          arrays.list_bits[list + place] = __builtin_bit_cast(std::uint32_t, sums.of[v].at[c]);
          arrays.list_indices[list + place] = tile.vector(exec, v) + c;
        }
        ++place;
      }
    }
  }
};

}  // namespace taco::kernels::cuda
