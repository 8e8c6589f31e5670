#include "pg/codecs/top_k_selection.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/fp_mode.h"

namespace taco::pg {
namespace {

// Zeros of either sign. Most parameters end this at their first elements.
bool all_zero(const float* values, std::size_t count) {
  constexpr std::size_t kPart = 256;
  for (std::size_t at = 0; at < count; at += kPart) {
    std::uint32_t bits = 0;
    for (std::size_t i = at; i < std::min(count, at + kPart); ++i) {
      std::uint32_t value;
      std::memcpy(&value, values + i, sizeof value);
      bits |= value << 1;
    }
    if (bits != 0) return false;
  }
  return true;
}

// Calls take(parameter, begin, end) for each parameter's part of the block of `n` elements from
// `from` on.
template <class Take>
void for_each_part(const std::vector<std::uint64_t>& begins, std::size_t from, std::size_t n,
                   Take take) {
  if (begins.empty()) return;
  auto next = std::upper_bound(begins.begin(), begins.end(), from);
  for (std::size_t begin = 0; begin < n;) {
    const auto parameter = static_cast<std::size_t>(next - begins.begin()) - 1;
    const std::size_t end =
        next == begins.end() ? n : std::clamp<std::size_t>(*next++ - from, begin, n);
    take(parameter, begin, end);
    begin = end;
  }
}

// The parts of a block that belong to parameters without a gradient there.
void find_held(const std::vector<std::uint64_t>& begins, std::size_t from, const float* gradient,
               std::size_t n, std::vector<TopKScratch::Range>& held) {
  held.clear();
  for_each_part(begins, from, n, [&](std::size_t, std::size_t begin, std::size_t end) {
    if (begin == end || !all_zero(gradient + begin, end - begin)) return;
    if (!held.empty() && held.back().end == begin) {
      held.back().end = end;
    } else {
      held.push_back({begin, end});
    }
  });
}

// Moves values to `kept`, and leaves zeros behind.
void move_out(float* values, const std::vector<TopKScratch::Range>& ranges,
              std::vector<float>& kept) {
  kept.clear();
  for (const auto& range : ranges) {
    kept.insert(kept.end(), values + range.begin, values + range.end);
    std::fill(values + range.begin, values + range.end, 0.0f);
  }
}

void move_back(float* values, const std::vector<TopKScratch::Range>& ranges,
               const std::vector<float>& kept) {
  auto from = kept.begin();
  for (const auto& range : ranges) {
    const auto end = from + static_cast<std::ptrdiff_t>(range.end - range.begin);
    std::copy(from, end, values + range.begin);
    from = end;
  }
}

}  // namespace

TopKSelection::TopKSelection(Feedback& feedback, std::size_t from, const float* gradient,
                             std::size_t n, std::size_t k, float factor, TopKScratch& scratch)
    : feedback_(feedback),
      from_(from),
      gradient_(gradient),
      n_(n),
      k_(k),
      factor_(factor),
      scratch_(scratch),
      residual_(feedback.residual.data() + from),
      momentum_(factor == 0 ? nullptr : feedback.momentum.data() + from) {}

bool TopKSelection::take() {
  copy_before();
  hold_back();
  const bool taken = select();
  put_back();
  return taken;
}

void TopKSelection::copy_before() {
  Feedback::Before& before = feedback_.before;
  if (before.residual.empty()) return;
  const auto copy = [this](std::vector<float>& into, const float* values, std::size_t begin,
                           std::size_t end) {
    std::copy(values + begin, values + end,
              into.begin() + static_cast<std::ptrdiff_t>(from_ + begin));
  };
  for_each_part(feedback_.begins, from_, n_,
                [&](std::size_t parameter, std::size_t begin, std::size_t end) {
                  if (!before.first[parameter]) return;
                  copy(before.residual, residual_, begin, end);
                  if (momentum_ != nullptr) copy(before.momentum, momentum_, begin, end);
                });
}

bool TopKSelection::select() {
  float* taken = TopKScratch::room(scratch_.taken, k_);
  std::uint32_t* indices = TopKScratch::room(scratch_.indices, k_);
  if (momentum_ == nullptr) {
    return kernels::select_largest(residual_, gradient_, n_, k_, taken, indices, scratch_.select);
  }
  float* masked = feedback_.undoable ? TopKScratch::room(scratch_.taken_momentum, k_) : nullptr;
  return kernels::select_largest_momentum(residual_, momentum_, gradient_, factor_, n_, k_, taken,
                                          indices, scratch_.select, masked);
}

// While the rest is selected, what is held back is zero. Zeros are taken of it where the rest has
// fewer than k others: they change nothing, here or at their receivers.
void TopKSelection::hold_back() {
  find_held(feedback_.begins, from_, gradient_, n_, scratch_.held);
  move_out(residual_, scratch_.held, scratch_.held_residual);
  if (momentum_ != nullptr) move_out(momentum_, scratch_.held, scratch_.held_momentum);
}

void TopKSelection::put_back() {
  move_back(residual_, scratch_.held, scratch_.held_residual);
  if (momentum_ != nullptr) move_back(momentum_, scratch_.held, scratch_.held_momentum);
}

// Exact: what rounding to fewer bits takes from a number is a number with no more bits.
void TopKSelection::keep_difference() {
  const kernels::FpMode mode;
  for (std::size_t j = 0; j < k_; ++j) {
    residual_[scratch_.indices[j]] += scratch_.taken[j] - scratch_.decoded[j];
  }
}

// One that holds nothing any more has memory for what is sent now.
Feedback::Sent& TopKSelection::record() const {
  const auto found = std::find_if(
      feedback_.sent.begin(), feedback_.sent.end(),
      [&](const Feedback::Sent& sent) { return sent.from == from_ && sent.indices.empty(); });
  return found == feedback_.sent.end() ? feedback_.sent.emplace_back(Feedback::Sent{.from = from_})
                                       : *found;
}

void TopKSelection::remember(const float* sent) {
  if (!feedback_.undoable) return;
  Feedback::Sent& record = this->record();
  record.indices.assign(scratch_.indices.begin(), scratch_.indices.begin() + k_);
  record.values.assign(sent, sent + k_);
  record.momentum.clear();
  if (momentum_ == nullptr) return;
  record.momentum.assign(scratch_.taken_momentum.begin(), scratch_.taken_momentum.begin() + k_);
}

}  // namespace taco::pg
