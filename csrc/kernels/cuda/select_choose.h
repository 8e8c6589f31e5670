// The last kernel of a selection (kernels/cuda/select.h): a block of threads for each block of
// elements finds the magnitude of the k-th largest, digit by digit, and takes out what is above it
// and the first of those that equal it.
#pragma once

#include <cstdint>

#include "kernels/cuda/exec.h"
#include "kernels/cuda/select_arrays.h"

namespace taco::kernels::cuda {

struct ChooseKernel {
  static constexpr unsigned kThreads = 512;
  // The digits of a magnitude's 31 bits, from the uppermost.
  static constexpr unsigned kBins = 2048, kBinsOfThread = kBins / kThreads;
  static constexpr std::uint32_t kMaxTiles = kMaxOfBlock / kTileOfSelect;
  static_assert(kMaxTiles <= kThreads);
  struct Shared {
    std::uint32_t bins[kBins];
    std::uint32_t digit, wanted;
    std::uint32_t tile_place[kMaxTiles + 1];  // how many were listed in tiles before
    BlockSumMemory<std::uint32_t> sums;
  };

  SelectArrays arrays;

  template <class Exec>
  TACO_DEVICE void operator()(Exec& exec, Shared& shared) const {
    const std::uint32_t b = exec.block();
    if (arrays.finite[b] == 0) return;
    Work work{b,
              0,
              0,
              arrays.k_of(b),
              false,
              0,
              std::size_t{b} * arrays.block,
              std::size_t{b} * arrays.capacity};
    work.listed = arrays.found[b] >= work.k && arrays.found[b] <= arrays.capacity;
    work.size = work.listed ? arrays.found[b] : arrays.length_of(b);
    if (work.listed) place_tiles(exec, shared, work);
    work.wanted = work.k;
    find_digit<20, 11>(exec, shared, work);
    find_digit<10, 10>(exec, shared, work);
    find_digit<0, 10>(exec, shared, work);
    take_out(exec, shared, work);
  }

 private:
  struct Work {
    std::uint32_t b;
    std::uint32_t size;       // of the list, or of the block where there is none
    std::uint32_t magnitude;  // of the k-th largest, as far as its digits are known
    std::uint32_t k;
    bool listed;
    std::uint32_t wanted;  // of those that share its known digits
    std::size_t start;     // of the block
    std::size_t list;      // where the block's list begins
    unsigned turn = 0;     // of block_sum()
  };
  struct Candidate {
    std::uint32_t bits, index;
  };

  // Tiles have their places in the list in the order in which they came; from now on it can be read
  // in the order of its indices.
  template <class Exec>
  TACO_DEVICE void place_tiles(Exec& exec, Shared& shared, Work& work) const {
    const unsigned tile = exec.thread();
    const bool exists = tile < arrays.tiles_of_block;
    const std::uint32_t found =
        exists ? arrays.tile_found[work.b * arrays.tiles_of_block + tile] : 0;
    const auto sum = block_sum<kThreads>(exec, shared.sums, work.turn++, found);
    if (exists) shared.tile_place[tile] = sum.before;
  }
  TACO_DEVICE Candidate listed_at(const Shared& shared, const Work& work, std::uint32_t p) const {
    // The last tile that begins at p or before.
    std::uint32_t tile = 0, end = arrays.tiles_of_block;
    while (end - tile > 1) {
      const std::uint32_t middle = (tile + end) / 2;
      (shared.tile_place[middle] <= p ? tile : end) = middle;
    }
    const std::size_t place = work.list + p - shared.tile_place[tile] +
                              arrays.tile_first[work.b * arrays.tiles_of_block + tile];
    return {arrays.list_bits[place], arrays.list_indices[place]};
  }
  TACO_DEVICE std::uint32_t bits_of_block(const Work& work, std::uint32_t i) const {
    return __builtin_bit_cast(std::uint32_t, arrays.new_residual[work.start + i]);
  }

  // Counts the values of a digit among those whose upper digits are the known ones, and finds the
  // one where the count from above reaches what is wanted.
  template <unsigned kShift, unsigned kWidth, class Exec>
  TACO_DEVICE void find_digit(Exec& exec, Shared& shared, Work& work) const {
    constexpr std::uint32_t kMask = (1u << kWidth) - 1;
    for (unsigned i = exec.thread(); i < kBins; i += kThreads) shared.bins[i] = 0;
    exec.barrier();
    for (std::uint32_t p = exec.thread(); p < work.size; p += kThreads) {
      const std::uint32_t bits =
          work.listed ? arrays.list_bits[work.list + p] : bits_of_block(work, p);
      const std::uint32_t magnitude = bits & kMagnitudeBits;
      if (((magnitude ^ work.magnitude) >> (kShift + kWidth)) != 0) continue;
      exec.atomic_add(&shared.bins[magnitude >> kShift & kMask], 1u);
    }
    exec.barrier();
    const unsigned last = kBins - 1 - exec.thread() * kBinsOfThread;
    std::uint32_t own = 0;
    for (unsigned i = 0; i < kBinsOfThread; ++i) own += shared.bins[last - i];
    std::uint32_t above = block_sum<kThreads>(exec, shared.sums, work.turn++, own).before;
    for (unsigned i = 0; i < kBinsOfThread; ++i) {
      const std::uint32_t with = above + shared.bins[last - i];
      if (above < work.wanted && with >= work.wanted) {
        shared.digit = last - i;
        shared.wanted = work.wanted - above;
      }
      above = with;
    }
    exec.barrier();
    work.magnitude |= shared.digit << kShift;
    work.wanted = shared.wanted;
  }

  // In the order of indices, so many at a time as there are threads.
  template <class Exec>
  TACO_DEVICE void take_out(Exec& exec, Shared& shared, Work& work) const {
    std::uint32_t above = 0, equal = 0;  // so far
    for (std::uint32_t first = 0; first < work.size && above + equal < work.k; first += kThreads) {
      const std::uint32_t p = first + exec.thread();
      Candidate candidate{0, p};
      if (p < work.size) {
        if (work.listed) {
          candidate = listed_at(shared, work, p);
        } else {
          candidate.bits = bits_of_block(work, p);
        }
      }
      const std::uint32_t magnitude = candidate.bits & kMagnitudeBits;
      const bool is_above = p < work.size && magnitude > work.magnitude;
      const bool is_equal = p < work.size && magnitude == work.magnitude;
      // Both are counted in one number, which as many as there are threads cannot overflow.
      const std::uint32_t count = (is_above ? 1u : 0u) | (is_equal ? 1u << 16 : 0u);
      const std::uint32_t up_to =
          count_up_to_lane(exec, is_above) | count_up_to_lane(exec, is_equal) << 16;
      const auto sum = block_sum_of_warps<kThreads>(exec, shared.sums, work.turn++, count, up_to);
      const std::uint32_t equal_before = equal + (sum.before >> 16);
      if (is_above || (is_equal && equal_before < work.wanted)) {
        const std::uint32_t place = above + (sum.before & 0xFFFF) +
                                    (equal_before < work.wanted ? equal_before : work.wanted);
        take(work, place, candidate);
      }
      above += sum.total & 0xFFFF;
      equal += sum.total >> 16;
      if (equal > work.wanted) equal = work.wanted;
    }
  }
  TACO_DEVICE void take(const Work& work, std::uint32_t place, const Candidate& taken) const {
    const std::size_t to = std::size_t{work.b} * arrays.k + place;
    const std::size_t from = work.start + taken.index;
    arrays.values[to] = __builtin_bit_cast(float, taken.bits);
    arrays.indices[to] = taken.index;
    arrays.new_residual[from] = 0;
    if (arrays.new_momentum == nullptr) return;
    if (arrays.taken_momentum != nullptr) arrays.taken_momentum[to] = arrays.new_momentum[from];
    arrays.new_momentum[from] = 0;
  }
};

}  // namespace taco::kernels::cuda
