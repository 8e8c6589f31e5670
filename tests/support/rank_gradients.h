// Gradients of a model on several ranks, and what their mean is. Test support.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/half.h"
#include "support/plain_model.h"
#include "zerocache/ranks/zero1/gradient_shards.h"

namespace taco::testing {

// The gradients of one rank in one pass: the same wherever they are asked for.
class RankGradients {
 public:
  RankGradients(PlainModel& model, int rank, int pass) {
    std::mt19937 random(static_cast<unsigned>(rank * 1000 + pass));
    std::normal_distribution<float> normal;
    for (std::size_t i = 0; i < model.size(); ++i) {
      Floats values(model[i].size());
      Halves halves;
      for (float& value : values) value = normal(random);
      if (model[i].half_gradient) {
        for (float& value : values) {
          halves.push_back(kernels::float_to_bf16(value));
          value = kernels::bf16_to_float(halves.back());
        }
      }
      values_.push_back(std::move(values));
      halves_.push_back(std::move(halves));
    }
  }
  const Floats& values(std::size_t i) const { return values_[i]; }
  zerocache::FinalGradient final_gradient(std::uint32_t i) const {
    if (halves_[i].empty()) return {i, values_[i].data(), false};
    return {i, halves_[i].data(), true};
  }

 private:
  std::vector<Floats> values_;
  std::vector<Halves> halves_;
};

// By rising rank, as a group adds that has nothing better to do.
inline std::vector<Floats> mean_gradients(PlainModel& model, int ranks, int pass) {
  std::vector<Floats> means;
  for (int rank = 0; rank < ranks; ++rank) {
    const RankGradients given(model, rank, pass);
    for (std::size_t i = 0; i < model.size(); ++i) {
      if (rank == 0) means.push_back(given.values(i));
      for (std::size_t k = 0; rank > 0 && k < means[i].size(); ++k) {
        means[i][k] += given.values(i)[k];
      }
    }
  }
  for (Floats& mean : means) {
    for (float& value : mean) value /= static_cast<float>(ranks);
  }
  return means;
}

}  // namespace taco::testing
