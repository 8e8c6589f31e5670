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

// The parts of a block that belong to parameters without a gradient there.
void find_held(const std::vector<std::uint64_t>& begins, std::size_t from, const float* gradient,
               std::size_t n, std::vector<TopKScratch::Range>& held) {
  held.clear();
  if (begins.empty()) return;
  auto next = std::upper_bound(begins.begin(), begins.end(), from);
  for (std::size_t begin = 0; begin < n;) {
    const std::size_t end =
        next == begins.end() ? n : std::clamp<std::size_t>(*next++ - from, begin, n);
    if (all_zero(gradient + begin, end - begin)) {
      if (!held.empty() && held.back().end == begin) {
        held.back().end = end;
      } else if (begin < end) {
        held.push_back({begin, end});
      }
    }
    begin = end;
  }
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
  hold_back();
  const bool taken = select();
  put_back();
  if (taken) return true;
  if (Feedback::Sent* record = find_record()) {
    record->indices.clear();
    record->values.clear();
    record->momentum.clear();
  }
  return false;
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

Feedback::Sent* TopKSelection::find_record() const {
  const auto found = std::find_if(feedback_.sent.begin(), feedback_.sent.end(),
                                  [&](const Feedback::Sent& sent) { return sent.from == from_; });
  return found == feedback_.sent.end() ? nullptr : &*found;
}

void TopKSelection::remember(const float* sent) {
  if (!feedback_.undoable) return;
  Feedback::Sent* record = find_record();
  if (record == nullptr) record = &feedback_.sent.emplace_back(Feedback::Sent{.from = from_});
  record->indices.assign(scratch_.indices.begin(), scratch_.indices.begin() + k_);
  record->values.assign(sent, sent + k_);
  record->momentum.clear();
  if (momentum_ == nullptr) return;
  record->momentum.assign(scratch_.taken_momentum.begin(), scratch_.taken_momentum.begin() + k_);
}

}  // namespace taco::pg
