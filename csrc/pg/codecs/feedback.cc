#include "pg/codecs/feedback.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>

#include "kernels/fp_mode.h"
#include "kernels/scaled_half.h"

namespace taco::pg {
namespace {

float largest_of(const Feedback& feedback) {
  const auto largest = [](const std::vector<float>& values) {
    return kernels::largest_finite(values.data(), values.size());
  };
  float most = std::max(largest(feedback.residual), largest(feedback.momentum));
  for (const Feedback::Sent& sent : feedback.sent) {
    most = std::max({most, largest(sent.values), largest(sent.momentum)});
  }
  return most;
}

void multiply(std::vector<float>& values, double factor) {
  kernels::scale(kernels::Dtype::kF32, values.data(), values.data(), values.size(), factor);
}

// The owner may have made another residual since.
bool covers(const Feedback& feedback, const Feedback::Sent& sent, std::size_t j) {
  return sent.from + sent.indices[j] < feedback.residual.size();
}

}  // namespace

void restore(Feedback& feedback) {
  const kernels::FpMode mode;
  for (const Feedback::Sent& sent : feedback.sent) {
    const bool with_momentum =
        !sent.momentum.empty() && feedback.momentum.size() == feedback.residual.size();
    for (std::size_t j = 0; j < sent.indices.size() && covers(feedback, sent, j); ++j) {
      const std::size_t at = sent.from + sent.indices[j];
      feedback.residual[at] += sent.values[j];
      if (with_momentum) feedback.momentum[at] += sent.momentum[j];
    }
  }
  forget_sent(feedback);
}

// The lists keep their memory for what is sent next.
void forget_sent(Feedback& feedback) {
  for (Feedback::Sent& sent : feedback.sent) {
    sent.indices.clear();
    sent.values.clear();
    sent.momentum.clear();
  }
}

Status scale(Feedback& feedback, double factor) {
  constexpr double kMost = std::numeric_limits<float>::max();
  const auto refused = [factor](const char* why) {
    char text[32];
    std::snprintf(text, sizeof text, "%g", factor);
    return Status(
        Code::kInvalidArgument,
        std::string("what is kept of gradients cannot be scaled by ") + text + ": " + why);
  };
  const bool in_range = factor > 0 && factor <= kMost && static_cast<float>(factor) > 0;
  if (!in_range) return refused("the factor must be a positive float32 number");
  if (static_cast<double>(largest_of(feedback)) * static_cast<float>(factor) > kMost) {
    return refused("the largest element would overflow float32");
  }
  multiply(feedback.residual, factor);
  multiply(feedback.momentum, factor);
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
