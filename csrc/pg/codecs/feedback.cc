#include "pg/codecs/feedback.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "kernels/fp_mode.h"
#include "kernels/scaled_half.h"

namespace taco::pg {
namespace {

float largest_of(const Feedback& feedback) {
  const auto largest = [](const std::vector<float>& values) {
    return kernels::largest_finite(values.data(), values.size());
  };
  float most = std::max({largest(feedback.residual), largest(feedback.momentum),
                         largest(feedback.before.residual), largest(feedback.before.momentum)});
  for (const Feedback::Sent& sent : feedback.sent) {
    most = std::max({most, largest(sent.values), largest(sent.momentum)});
  }
  return most;
}

void multiply(std::vector<float>& values, double factor) {
  kernels::scale(kernels::Dtype::kF32, values.data(), values.data(), values.size(), factor);
}

// The elements of a record that lie in a run, as a range of its lists.
std::pair<std::size_t, std::size_t> found_in(const Feedback::Sent& sent, Extent run) {
  const auto at = [&](std::size_t element) {
    const std::size_t wanted = element < sent.from ? 0 : element - sent.from;
    return static_cast<std::size_t>(
        std::lower_bound(sent.indices.begin(), sent.indices.end(), wanted) - sent.indices.begin());
  };
  return {at(run.from), at(run.from + run.count)};
}

template <class T>
void move_down(std::vector<T>& list, std::size_t from, std::size_t to, std::size_t kept) {
  if (list.empty()) return;
  std::move(list.begin() + static_cast<std::ptrdiff_t>(from),
            list.begin() + static_cast<std::ptrdiff_t>(to),
            list.begin() + static_cast<std::ptrdiff_t>(kept));
}

template <class T>
void cut(std::vector<T>& list, std::size_t length) {
  if (list.size() > length) list.resize(length);
}

// The lists keep their memory for what is sent next.
void keep_only(Feedback::Sent& sent, std::span<const Extent> runs) {
  std::size_t kept = 0;
  for (const Extent run : runs) {
    const auto [from, to] = found_in(sent, run);
    move_down(sent.indices, from, to, kept);
    move_down(sent.values, from, to, kept);
    move_down(sent.momentum, from, to, kept);
    kept += to - from;
  }
  cut(sent.indices, kept);
  cut(sent.values, kept);
  cut(sent.momentum, kept);
}

// All records as one, in which an element comes once.
void merge(Feedback& feedback) {
  const std::size_t elements = feedback.residual.size();
  std::vector<float> values(elements), momentum(feedback.momentum.size());
  std::vector<bool> is_sent(elements);
  for (const Feedback::Sent& sent : feedback.sent) {
    for (std::size_t j = 0; j < sent.indices.size(); ++j) {
      const std::size_t at = sent.from + sent.indices[j];
      is_sent[at] = true;
      values[at] += sent.values[j];
      if (!sent.momentum.empty() && !momentum.empty()) momentum[at] += sent.momentum[j];
    }
  }
  Feedback::Sent all;
  for (std::size_t at = 0; at < elements; ++at) {
    if (!is_sent[at]) continue;
    all.indices.push_back(static_cast<std::uint32_t>(at));
    all.values.push_back(values[at]);
    if (!momentum.empty()) all.momentum.push_back(momentum[at]);
  }
  feedback.sent.clear();
  feedback.sent.push_back(std::move(all));
}

}  // namespace

void restore(Feedback& feedback, Extent run) {
  const kernels::FpMode mode;
  for (const Feedback::Sent& sent : feedback.sent) {
    const bool with_momentum =
        !sent.momentum.empty() && feedback.momentum.size() == feedback.residual.size();
    const auto [from, to] = found_in(sent, run);
    for (std::size_t j = from; j < to; ++j) {
      const std::size_t at = sent.from + sent.indices[j];
      feedback.residual[at] += sent.values[j];
      if (with_momentum) feedback.momentum[at] += sent.momentum[j];
    }
  }
}

void rewind(Feedback& feedback, Extent run) {
  const auto copy = [run](const std::vector<float>& values, std::vector<float>& into) {
    if (values.empty() || values.size() != into.size()) return;
    const auto from = static_cast<std::ptrdiff_t>(run.from);
    std::copy_n(values.begin() + from, run.count, into.begin() + from);
  };
  copy(feedback.before.residual, feedback.residual);
  copy(feedback.before.momentum, feedback.momentum);
}

void clear(Feedback& feedback, Extent run) {
  for (std::vector<float>* values : {&feedback.residual, &feedback.momentum}) {
    if (!values->empty())
      std::fill_n(values->begin() + static_cast<std::ptrdiff_t>(run.from), run.count, 0.0F);
  }
}

void forget_sent_but(Feedback& feedback, std::span<const Extent> runs) {
  const kernels::FpMode mode;
  std::size_t remembered = 0;
  for (Feedback::Sent& sent : feedback.sent) {
    keep_only(sent, runs);
    remembered += sent.indices.size();
  }
  if (remembered > feedback.residual.size()) merge(feedback);
}

Status scale(Feedback& feedback, double factor) {
  constexpr double kMax = std::numeric_limits<float>::max();
  const auto refused = [factor](const char* why) {
    char text[32];
    std::snprintf(text, sizeof text, "%g", factor);
    return Status(
        Code::kInvalidArgument,
        std::string("what is kept of gradients cannot be scaled by ") + text + ": " + why);
  };
  const bool in_range = factor > 0 && factor <= kMax && static_cast<float>(factor) > 0;
  if (!in_range) return refused("the factor must be a positive float32 number");
  if (static_cast<double>(largest_of(feedback)) * static_cast<float>(factor) > kMax) {
    return refused("the largest element would overflow float32");
  }
  multiply(feedback.residual, factor);
  multiply(feedback.momentum, factor);
  multiply(feedback.before.residual, factor);
  multiply(feedback.before.momentum, factor);
  for (Feedback::Sent& sent : feedback.sent) {
    multiply(sent.values, factor);
    multiply(sent.momentum, factor);
  }
  return Status();
}

double residual_sum(const Feedback& feedback) {
  const kernels::FpMode mode;
  double sum = 0;
  for (const float value : feedback.residual) sum += value;
  return sum;
}

double residual_norm(const Feedback& feedback) {
  const kernels::FpMode mode;
  double squares = 0;
  for (const float value : feedback.residual) squares += static_cast<double>(value) * value;
  return std::sqrt(squares);
}

}  // namespace taco::pg
