// A stream of sums passes by and a buffer keeps those that may be among the k largest: what is not
// above the threshold is passed over, a full buffer is thinned out to little more than k and the
// threshold rises to what was dropped. So every element is looked at once, and the buffer always
// holds the k largest so far. Nothing is written to the residual before all have been seen.
//
// NaN and infinity need no look of their own: in the order of magnitudes they come after all
// numbers, so they are in the buffer whenever there are any.
#include "kernels/select.h"

#include <algorithm>
#include <cstring>

#include "base/assert.h"
#include "kernels/fp_mode.h"
#include "kernels/operations.h"
#include "kernels/variant.h"

namespace taco::kernels {
namespace {

// Elements looked at between two looks at the buffer.
constexpr std::size_t kTile = 1024;
// Elements added up between two looks at what was taken.
constexpr std::size_t kPart = 16384;
constexpr std::int32_t kAll = -1;  // every magnitude is above
constexpr std::int32_t kLargestFinite = 0x7F7F'FFFF;

// The k largest of n sums, found in three steps: pass(), thin() as often as the buffer is full, and
// thin() to exactly k.
class Selection {
 public:
  Selection(const Variant& variant, std::size_t n, std::size_t k, SelectScratch& scratch)
      : variant_(variant), n_(n), k_(k), full_(2 * k + kTile) {
    scratch.reserve(std::min(n, full_ + kTile) + kSelectSlack);
    buffer_ = {scratch.bits(), scratch.indices()};
  }

  // False if some sum is not finite.
  bool choose(const Addends& from) {
    for (std::size_t first = 0; first < n_; first += kTile) {
      const Candidates end{buffer_.bits + size_, buffer_.indices + size_};
      size_ += variant_.collect(end, from, first, std::min(kTile, n_ - first), threshold_);
      if (size_ >= full_ && !thin(k_ / 2)) return false;
    }
    return thin(0);
  }

  const Candidates& chosen() const { return buffer_; }

 private:
  // Leaves the k largest, and up to `more` others if that is quicker; false if one is not finite.
  bool thin(std::size_t more) {
    // above(low) >= k > above(high) throughout.
    std::int32_t low = floor_, high = kLargestFinite;
    std::size_t above_low = size_, above_high = above(high);
    if (above_high > 0) return false;
    // Most often what is wanted lies close above the floor: first steps of growing width.
    for (std::int32_t step = 1 << 20; low >= 0 && above_low > k_ + more && step < high - low;
         step *= 2) {
      const std::size_t count = above(low + step);
      if (count < k_) {
        high = low + step;
        above_high = count;
        break;
      }
      low += step;
      above_low = count;
    }
    while (above_low > k_ + more && high - low > 1) {
      const std::int32_t middle = low + (high - low) / 2;
      const std::size_t count = above(middle);
      (count < k_ ? high : low) = middle;
      (count < k_ ? above_high : above_low) = count;
    }
    // An element that comes later must be larger than all that was dropped. If those at `high` were
    // parted, it must be larger than they, for of equal ones the first are taken.
    const bool parts_equals = above_low > k_ + more;
    floor_ = low;
    threshold_ = parts_equals ? high : low;
    const std::size_t ties = parts_equals ? k_ - above_high : 0;
    if (parts_equals || above_low < size_) {
      size_ = variant_.keep_above(buffer_, size_, threshold_, ties);
    }
    return true;
  }

  std::size_t above(std::int32_t threshold) const {
    return variant_.count_above(buffer_.bits, size_, threshold);
  }

  const Variant& variant_;
  const std::size_t n_;
  const std::size_t k_;
  const std::size_t full_;
  Candidates buffer_;
  std::size_t size_ = 0;
  std::int32_t floor_ = kAll;      // all in the buffer are above it
  std::int32_t threshold_ = kAll;  // what is to get into the buffer must be above it
};

}  // namespace

void SelectScratch::reserve(std::size_t count) {
  if (bits_.size() >= count) return;
  bits_.resize(count);
  indices_.resize(count);
}

bool select_with(const Variant& variant, float* residual, float* momentum, const float* gradient,
                 float factor, std::size_t n, std::size_t k, float* values, std::uint32_t* indices,
                 SelectScratch& scratch, float* taken_momentum) {
  TACO_ASSERT(1 <= k && k <= n && n <= kMaxSelectable, "%zu of %zu", k, n);
  const FpMode mode;
  Selection selection(variant, n, k, scratch);
  if (!selection.choose({residual, gradient, momentum, factor})) return false;
  std::memcpy(values, selection.chosen().bits, k * sizeof(float));
  std::memcpy(indices, selection.chosen().indices, k * sizeof(std::uint32_t));
  const auto add = variant.reduce[static_cast<int>(ReduceOp::kSum)][static_cast<int>(Dtype::kF32)];
  // From the end backwards: what has been looked at last is most likely in a cache.
  for (std::size_t end = n, j = k; end > 0;) {
    const std::size_t first = (end - 1) / kPart * kPart;
    if (momentum != nullptr) {
      variant.add_momentum(residual + first, momentum + first, gradient + first, factor,
                           end - first);
    } else if (gradient != nullptr) {
      add(residual + first, residual + first, gradient + first, end - first);
    }
    for (; j > 0 && indices[j - 1] >= first; --j) {
      const std::uint32_t taken = indices[j - 1];
      residual[taken] = 0;
      if (momentum == nullptr) continue;
      if (taken_momentum != nullptr) taken_momentum[j - 1] = momentum[taken];
      momentum[taken] = 0;
    }
    end = first;
  }
  return true;
}

bool select_largest(float* residual, const float* gradient, std::size_t n, std::size_t k,
                    float* values, std::uint32_t* indices, SelectScratch& scratch) {
  return select_with(chosen_variant(), residual, nullptr, gradient, 0, n, k, values, indices,
                     scratch);
}

bool select_largest_momentum(float* residual, float* momentum, const float* gradient, float factor,
                             std::size_t n, std::size_t k, float* values, std::uint32_t* indices,
                             SelectScratch& scratch, float* taken_momentum) {
  return select_with(chosen_variant(), residual, momentum, gradient, factor, n, k, values, indices,
                     scratch, taken_momentum);
}

void scatter_add(float* acc, const float* values, const std::uint32_t* indices, std::size_t k) {
  const FpMode mode;
  for (std::size_t j = 0; j < k; ++j) {
    acc[indices[j]] = Sum::apply<Scalar<float>>(acc[indices[j]], values[j]);
  }
}

}  // namespace taco::kernels
