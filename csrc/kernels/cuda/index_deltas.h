// The codec of ascending indices (kernels/select.h) on a GPU, for many blocks at once: the same
// bytes as the host's. Bytes that must move: 4 an index and what it is coded as.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/cuda/exec.h"
#include "kernels/select.h"

namespace taco::kernels::cuda {

inline constexpr std::uint32_t kSkipByte = 255;

// One list of indices for each block: block b's k (the last one's last_k) indices at
// indices[b * k], its bytes at bytes[b * stride], whose number is lengths[b].
struct DeltaArguments {
  std::uint32_t blocks = 0;
  std::uint32_t block = 0, last_block = 0;  // elements of a block, and of the last
  std::uint32_t k = 0, last_k = 0;
  std::size_t stride = 0;  // max_delta_bytes(k, block) at least
  std::uint8_t* bytes = nullptr;
  std::uint32_t* lengths = nullptr;
  std::uint32_t* indices = nullptr;
  std::uint32_t* valid = nullptr;  // by decoding: 1, or 0 where the host's says false

  TACO_ANYWHERE std::uint32_t k_of(std::uint32_t b) const { return b + 1 == blocks ? last_k : k; }
  TACO_ANYWHERE std::uint32_t length_of(std::uint32_t b) const {
    return b + 1 == blocks ? last_block : block;
  }
};

struct EncodeDeltasKernel {
  static constexpr unsigned kThreads = 256;
  struct Shared {
    BlockSumMemory<std::uint32_t> sums;
  };

  DeltaArguments of;

  template <class Exec>
  TACO_DEVICE void operator()(Exec& exec, Shared& shared) const {
    const std::uint32_t b = exec.block(), k = of.k_of(b);
    const std::uint32_t* const indices = of.indices + std::size_t{b} * of.k;
    std::uint8_t* to = of.bytes + b * of.stride;
    std::uint32_t written = 0;
    unsigned turn = 0;
    for (std::uint32_t first = 0; first < k; first += kThreads) {
      const std::uint32_t j = first + exec.thread();
      std::uint32_t gap = 0, length = 0;
      if (j < k) {
        gap = j == 0 ? indices[0] : indices[j] - indices[j - 1] - 1;
        length = gap / kSkipByte + 1;
      }
      const auto sum = block_sum<kThreads>(exec, shared.sums, turn++, length);
      if (j < k) {
        std::uint8_t* const own = to + written + sum.before;
        for (std::uint32_t i = 0; i + 1 < length; ++i) own[i] = kSkipByte;
        own[length - 1] = static_cast<std::uint8_t>(gap % kSkipByte);
      }
      written += sum.total;
    }
    if (exec.thread() == 0) of.lengths[b] = written;
  }
};

// Each byte moves the index on by what it says, and ends it unless it is a skip: so where a byte
// takes the index, and which index it is, are sums over the bytes before it.
struct DecodeDeltasKernel {
  static constexpr unsigned kThreads = 256;
  // A sum of moves, up to 256 for each thread, and above it a count of indices.
  static constexpr unsigned kMoveBits = 20;
  struct Shared {
    BlockSumMemory<std::uint32_t> sums;
  };

  DeltaArguments of;

  template <class Exec>
  TACO_DEVICE void operator()(Exec& exec, Shared& shared) const {
    const std::uint32_t b = exec.block(), k = of.k_of(b), n = of.length_of(b);
    const std::uint8_t* const in = of.bytes + b * of.stride;
    std::uint32_t* const indices = of.indices + std::size_t{b} * of.k;
    const std::uint32_t bytes = of.lengths[b];
    bool valid = bytes <= max_delta_bytes(k, n);  // any more would lead beyond n
    std::uint32_t next = 0, found = 0;
    unsigned turn = 0;
    for (std::uint32_t first = 0; valid && first < bytes; first += kThreads) {
      const std::uint32_t at = first + exec.thread();
      const std::uint32_t byte = at < bytes ? in[at] : kSkipByte;
      const std::uint32_t ends = byte != kSkipByte ? 1 : 0;
      const std::uint32_t moves = at < bytes ? byte + ends : 0;
      const auto sum = block_sum<kThreads>(exec, shared.sums, turn++, moves | ends << kMoveBits);
      constexpr std::uint32_t kMoves = (1u << kMoveBits) - 1;
      const std::uint32_t index = found + (sum.before >> kMoveBits);
      if (ends != 0 && index < k) indices[index] = next + (sum.before & kMoves) + byte;
      next += sum.total & kMoves;
      found += sum.total >> kMoveBits;
    }
    if (exec.thread() != 0) return;
    const bool ended = bytes == 0 || (valid && in[bytes - 1] != kSkipByte);
    of.valid[b] = valid && ended && found == k && next <= n ? 1 : 0;
  }
};

template <class Launcher>
Status encode_deltas_on(const Launcher& launch, const DeltaArguments& of) {
  return launch(EncodeDeltasKernel{of}, of.blocks);
}
template <class Launcher>
Status decode_deltas_on(const Launcher& launch, const DeltaArguments& of) {
  return launch(DecodeDeltasKernel{of}, of.blocks);
}

}  // namespace taco::kernels::cuda
