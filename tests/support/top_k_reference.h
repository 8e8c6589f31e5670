// TopK with error feedback as plainly as it can be said, with momentum correction or without.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

namespace taco::pg::testing {

class TopKReference {
 public:
  TopKReference(double ratio, std::size_t count, float momentum = 0)
      : k_(std::max<std::size_t>(1, std::llround(ratio * static_cast<double>(count)))),
        factor_(momentum),
        residual_(count),
        momentum_(count) {}

  // The part of this gradient that is sent: zeros elsewhere.
  std::vector<float> sent(const std::vector<float>& gradient) {
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      const auto product = static_cast<float>(static_cast<double>(factor_) * momentum_[i]);
      momentum_[i] = product + gradient[i];
      residual_[i] += momentum_[i];
    }
    std::vector<std::size_t> order(gradient.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [this](std::size_t a, std::size_t b) {
      return std::abs(residual_[a]) > std::abs(residual_[b]);
    });
    std::vector<float> values(gradient.size());
    for (std::size_t j = 0; j < k_; ++j) {
      values[order[j]] += residual_[order[j]];
      residual_[order[j]] = momentum_[order[j]] = 0;
    }
    return values;
  }

  void set_residual(const std::vector<float>& residual) { residual_ = residual; }
  const std::vector<float>& residual() const { return residual_; }
  const std::vector<float>& momentum() const { return momentum_; }

 private:
  const std::size_t k_;
  const float factor_;
  std::vector<float> residual_, momentum_;
};

}  // namespace taco::pg::testing
