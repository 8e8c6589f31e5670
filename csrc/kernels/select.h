// TopK with error feedback on blocks of float32: the k elements of largest magnitude are taken out
// to be sent, the rest is added up until its turn comes. Exact, and the same bits on every
// instruction set; no order of the input makes it slow (at worst a few times slower than random
// input, never quadratic).
//
// Error feedback: Karimireddy et al., "Error Feedback Fixes SignSGD", 2019. Momentum correction:
// Lin et al., "Deep Gradient Compression", 2018.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace taco::kernels {

// The longest block.
inline constexpr std::size_t kMaxSelectable = std::size_t{1} << 20;
// The quickest block. A block is read twice, once to choose and once to add up, because nothing may
// be written before all of it is known to be finite: a block of this length, residual and gradient
// together, is still in a second-level cache the second time.
inline constexpr std::size_t kQuickSelectable = std::size_t{1} << 17;

// Memory that selection needs besides its arguments. Reused from call to call, by one thread at a
// time; about 8 bytes for each of 2k + 2 Ki elements, or of n if that is less.
class SelectScratch {
 public:
  // Room for `count` candidates at least; what was in it is lost.
  void reserve(std::size_t count);
  std::uint32_t* bits() { return bits_.data(); }  // of the candidates' values
  std::uint32_t* indices() { return indices_.data(); }

 private:
  std::vector<std::uint32_t> bits_;
  std::vector<std::uint32_t> indices_;
};

// Adds `gradient` to `residual` (acc[i] = fl(residual[i] + gradient[i])), takes out exactly the k
// of n elements of largest magnitude, of equal ones those of lower index. Afterwards residual[i] is
// acc[i] where not taken and +0 where taken; values[j] and indices[j], j < k, are what was taken,
// ascending by index. 1 <= k <= n <= kMaxSelectable. A null `gradient` adds nothing (acc is the
// residual, bit for bit), for a flush.
//
// False when some acc is NaN or infinite: `residual` has not been written to then, and what is in
// `values` and `indices` means nothing.
bool select_largest(float* residual, const float* gradient, std::size_t n, std::size_t k,
                    float* values, std::uint32_t* indices, SelectScratch& scratch);

// The same with momentum correction: momentum[i] becomes fl(fl(factor * momentum[i]) + gradient[i])
// and is what is added to the residual; where an element is taken its momentum becomes +0 too, and
// `taken_momentum`, unless null, gets the k numbers that it was. False as above, and then neither
// `residual` nor `momentum` has been written to.
bool select_largest_momentum(float* residual, float* momentum, const float* gradient, float factor,
                             std::size_t n, std::size_t k, float* values, std::uint32_t* indices,
                             SelectScratch& scratch, float* taken_momentum = nullptr);

// acc[indices[j]] += values[j] for j < k; the indices are within `acc` (decode_deltas() has seen to
// it) and none comes twice. A NaN becomes the canonical one, as in reduce().
void scatter_add(float* acc, const float* values, const std::uint32_t* indices, std::size_t k);

// Indices as bytes: the gap from the index after the previous one (the first: from 0), one byte
// each; 255 says "skip 255 elements and go on". 1.08 bytes an index at 1%. One list of indices
// is one string of bytes and no other.
constexpr std::size_t max_delta_bytes(std::size_t k, std::size_t n) { return k + n / 255; }
// `indices` ascend and are below n; returns how many bytes were written, at most
// max_delta_bytes(k, n).
std::size_t encode_deltas(std::uint8_t* out, const std::uint32_t* indices, std::size_t k);
// False unless `in` holds exactly k ascending indices below n and nothing else, whatever the bytes.
// Fills `indices`, which has room for k; on failure they mean nothing.
bool decode_deltas(std::uint32_t* indices, std::size_t k, const std::uint8_t* in, std::size_t bytes,
                   std::size_t n);

}  // namespace taco::kernels
