// CRC32C on a GPU, the same number as crc32c() of kernels/kernels.h gives. Bytes that must move:
// the array, once.
//
// Numbers are polynomials, as in kernels/crc32c_constants.h, and the checksum of an array is a sum:
// each 4 bytes count by themselves, times x to the power of the bits after them. So every thread
// keeps four sums, one for each word of its 16 bytes in a row of threads, and multiplies them by
// one constant from row to row; in the end they are brought together like the leaves of a tree.
// Multiplying by that constant takes eight look-ups, one for each four bits, in a table that every
// lane has for itself: no two of a warp ever wait for one bank of the shared memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"
#include "kernels/crc32c_constants.h"
#include "kernels/cuda/exec.h"

namespace taco::kernels::cuda {

// The product of two polynomials modulo CRC32C's.
TACO_ANYWHERE constexpr std::uint32_t crc_product(std::uint32_t a, std::uint32_t b) {
  constexpr std::uint32_t kPolynomial = crc::kPolynomial;
  std::uint32_t product = 0;
  for (int i = 0; i < 32; ++i) {
    if ((b & 0x8000'0000) != 0) product ^= a;
    b <<= 1;
    a = (a >> 1) ^ ((a & 1) != 0 ? kPolynomial : 0);
  }
  return product;
}
// x^(8 * bytes)
TACO_ANYWHERE constexpr std::uint32_t crc_shift(std::uint64_t bytes) {
  std::uint32_t result = 0x8000'0000, square = 0x0080'0000;  // 1 and x^8
  for (; bytes != 0; bytes >>= 1) {
    if ((bytes & 1) != 0) result = crc_product(result, square);
    square = crc_product(square, square);
  }
  return result;
}

inline constexpr std::uint32_t kMaxChecksumParts = 512;

// The array ends at a multiple of 16 (a last few bytes are left to the end), and so do its rows,
// which are counted back from there: the first may lie before the array, as zeros, which count for
// nothing.
struct ChecksumKernel {
  static constexpr unsigned kThreads = 256, kWarps = kThreads / kLanes;
  static constexpr unsigned kWord = 4, kWords = 4;
  static constexpr std::size_t kRow = std::size_t{kThreads} * kWord * kWords;
  static constexpr unsigned kRowsAtOnce = 4;
  static constexpr unsigned kNibbles = 8, kValues = 16;
  struct Shared {
    std::uint32_t table[kNibbles][kValues][kLanes];
    std::uint32_t warps[kWarps];
  };

  const unsigned char* data;  // of the whole array; `end` is a multiple of 16
  const unsigned char* end;
  std::size_t rows_of_part;  // a multiple of kRowsAtOnce
  std::uint32_t parts;
  std::uint32_t* sums;  // of each part

  template <class Exec>
  TACO_DEVICE void operator()(Exec& exec, Shared& shared) const {
    constexpr std::uint32_t kNextRow = crc_shift(kRow);
    static_assert(kNibbles * kValues <= kThreads);
    if (exec.thread() < kNibbles * kValues) {
      const unsigned nibble = exec.thread() / kValues, value = exec.thread() % kValues;
      const std::uint32_t product = crc_product(value << (4 * nibble), kNextRow);
      // Each lane begins at another bank.
      for (unsigned i = 0; i < kLanes; ++i) {
        shared.table[nibble][value][(i + lane_of(exec)) % kLanes] = product;
      }
    }
    exec.barrier();
    std::uint32_t state[kWords] = {};
    const std::size_t rows_after = (parts - 1 - exec.block()) * rows_of_part;
    const std::size_t from_end = (rows_after + rows_of_part) * kRow - exec.thread() * 16;
    for (std::size_t row = 0; row < rows_of_part; row += kRowsAtOnce) {
      Line lines[kRowsAtOnce];
      TACO_UNROLL
      for (unsigned r = 0; r < kRowsAtOnce; ++r) {
        lines[r] = line_at(exec, from_end - (row + r) * kRow);
      }
      TACO_UNROLL
      for (unsigned r = 0; r < kRowsAtOnce; ++r) {
        TACO_UNROLL
        for (unsigned w = 0; w < kWords; ++w) {
          state[w] = lines[r].at[w] ^ next_row(shared, lane_of(exec), state[w]);
        }
      }
    }
    add_up(exec, shared, state);
  }

 private:
  using Line = Pack<std::uint32_t, kWords>;

  // The 16 bytes that begin so many before the end; zeros where they lie before the array.
  template <class Exec>
  TACO_DEVICE Line line_at(Exec& exec, std::size_t from_end) const {
    const auto length = static_cast<std::size_t>(end - data);
    if (from_end <= length) return exec.load(reinterpret_cast<const Line*>(end - from_end));
    Line line{};
    const std::size_t missing = from_end - length;
    for (std::size_t i = missing; i < 16; ++i) {
      line.at[i / 4] |= std::uint32_t{data[i - missing]} << (8 * (i % 4));
    }
    return line;
  }
  TACO_DEVICE std::uint32_t next_row(const Shared& shared, unsigned lane,
                                     std::uint32_t state) const {
    std::uint32_t product = 0;
    TACO_UNROLL
    for (unsigned nibble = 0; nibble < kNibbles; ++nibble) {
      product ^= shared.table[nibble][state >> (4 * nibble) & 0xF][lane];
    }
    return product;
  }

  template <class Exec>
  TACO_DEVICE void add_up(Exec& exec, Shared& shared, const std::uint32_t* state) const {
    constexpr std::uint32_t kByWord = crc_shift(kWord);
    std::uint32_t sum = 0;
    for (unsigned w = 0; w < kWords; ++w) sum = crc_product(sum ^ state[w], kByWord);
    constexpr std::uint32_t kByLine = crc_shift(kWord * kWords);
    std::uint32_t width = kByLine;  // from the end of one to that of the next
    for (unsigned distance = 1; distance < kLanes; distance *= 2) {
      const std::uint32_t other = exec.shuffle(kAllLanes, sum, (lane_of(exec) + distance) % kLanes);
      sum = crc_product(sum, width) ^ other;
      width = crc_product(width, width);
    }
    if (lane_of(exec) == 0) shared.warps[warp_of(exec)] = sum;
    exec.barrier();
    if (exec.thread() != 0) return;
    sum = 0;
    for (unsigned warp = 0; warp < kWarps; ++warp) {
      sum = crc_product(sum, width) ^ shared.warps[warp];
    }
    sums[exec.block()] = sum;
  }
};

// Brings the parts together, then the bytes after the last row, and what came before the array.
struct ChecksumEndKernel {
  static constexpr unsigned kThreads = kMaxChecksumParts;
  struct Shared {
    std::uint32_t sums[kThreads];
  };

  const std::uint32_t* sums;
  std::uint32_t parts;
  std::uint32_t part_shift;  // x to the power of a part's bits
  std::uint32_t before;      // what came before, moved to the end of the rows
  const unsigned char* rest;
  std::uint32_t rest_bytes;
  std::uint32_t* checksum;

  template <class Exec>
  TACO_DEVICE void operator()(Exec& exec, Shared& shared) const {
    // From the end: place 0 is the last part.
    const unsigned thread = exec.thread();
    shared.sums[thread] = thread < parts ? sums[parts - 1 - thread] : 0;
    std::uint32_t shift = part_shift;
    for (unsigned distance = 1; distance < kThreads; distance *= 2) {
      exec.barrier();
      if (thread % (2 * distance) == 0) {
        shared.sums[thread] ^= crc_product(shared.sums[thread + distance], shift);
      }
      shift = crc_product(shift, shift);
    }
    if (thread != 0) return;
    std::uint32_t crc = shared.sums[0] ^ before;
    for (std::uint32_t i = 0; i < rest_bytes; ++i) {
      crc = crc_product(crc ^ rest[i], 0x0080'0000);
    }
    *checksum = ~crc;
  }
};

// *checksum = crc32c(crc, data, bytes). `workspace` has room for kMaxChecksumParts numbers.
template <class Launcher>
Status crc32c_on(const Launcher& launch, std::uint32_t crc, const void* data, std::size_t bytes,
                 std::uint32_t* checksum, std::uint32_t* workspace) {
  constexpr std::size_t kRow = ChecksumKernel::kRow;
  const auto* const first = static_cast<const unsigned char*>(data);
  const std::size_t beyond = (reinterpret_cast<std::uintptr_t>(data) + bytes) % 16;
  const auto rest = static_cast<std::uint32_t>(beyond < bytes ? beyond : bytes);
  const std::size_t length = bytes - rest;
  const unsigned char* const end = first + length;
  const std::size_t rows = (length + kRow - 1) / kRow;
  constexpr std::size_t kAtOnce = ChecksumKernel::kRowsAtOnce;
  constexpr std::size_t kRowsOfAll = kAtOnce * kMaxChecksumParts;
  const std::size_t rows_of_part = (rows + kRowsOfAll - 1) / kRowsOfAll * kAtOnce;
  const auto parts =
      static_cast<std::uint32_t>(rows == 0 ? 0 : (rows + rows_of_part - 1) / rows_of_part);
  TACO_RETURN_IF_ERROR(launch(ChecksumKernel{first, end, rows_of_part, parts, workspace}, parts));
  const ChecksumEndKernel last{
      workspace, parts,   crc_shift(rows_of_part * kRow), crc_product(~crc, crc_shift(length)), end,
      rest,      checksum};
  return launch(last, 1);
}

}  // namespace taco::kernels::cuda
