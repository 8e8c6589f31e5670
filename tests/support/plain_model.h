// A model's parameters and the state of their optimizer in plain arrays, with some of bfloat16 and
// some with gradients of bfloat16, to hold steps over pages against. Test support.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/half.h"
#include "kernels/optimizers.h"
#include "zerocache/pages/layout.h"
#include "zerocache/steps/optimizer_stream.h"

namespace taco::testing {

using Floats = std::vector<float>;
using Halves = std::vector<std::uint16_t>;

// A parameter and its state.
struct Plain {
  std::string name;
  bool half = false, half_gradient = false;
  Floats values;  // or the master copy
  Halves halves;
  Floats gradient;
  Halves gradient_halves;
  Floats first, second;

  std::size_t size() const { return values.size(); }
  const void* gradient_bytes() const {
    return half_gradient ? static_cast<const void*>(gradient_halves.data()) : gradient.data();
  }
  kernels::ParameterRange range() {
    kernels::ParameterRange range{.count = size(), .parameter = values.data()};
    if (half) range.bf16_parameter = halves.data();
    if (half_gradient) {
      range.bf16_gradient = gradient_halves.data();
    } else {
      range.gradient = gradient.data();
    }
    return range;
  }
  void step(const zerocache::StepConstants& step) {
    if (size() == 0) return;
    if (const auto* adam = std::get_if<kernels::AdamStep>(&step)) {
      kernels::adam(*adam, range(), first.data(), second.data());
    } else if (const auto* sgd = std::get_if<kernels::SgdStep>(&step)) {
      kernels::sgd(*sgd, range(), sgd->momentum == 0 ? nullptr : first.data());
    } else {
      kernels::lion(std::get<kernels::LionStep>(step), range(), first.data());
    }
  }
};

class PlainModel {
 public:
  explicit PlainModel(std::uint32_t seed) : random_(seed) {
    for (int i = 0; i < 12; ++i) {
      Plain plain;
      plain.name = "p" + std::to_string(i);
      plain.half = i % 3 == 1;
      plain.half_gradient = i % 4 == 1;
      const std::size_t count = i == 5 ? 0 : 1 + ((random_() & 0xFFFF) >> (random_() % 16));
      plain.values.resize(count);
      for (float& value : plain.values) value = normal_(random_);
      plain.halves.resize(plain.half ? count : 0);
      for (std::size_t k = 0; k < plain.halves.size(); ++k) {
        plain.halves[k] = kernels::float_to_bf16(plain.values[k]);
        plain.values[k] = kernels::bf16_to_float(plain.halves[k]);
      }
      plain.first.resize(count);
      plain.second.resize(count);
      parameters_.push_back(std::move(plain));
    }
    new_gradients();
  }

  void new_gradients() {
    for (Plain& plain : parameters_) {
      plain.gradient.resize(plain.size());
      for (float& value : plain.gradient) value = normal_(random_);
      plain.gradient_halves.clear();
      for (const float value : plain.gradient) {
        plain.gradient_halves.push_back(kernels::float_to_bf16(value));
      }
    }
  }

  const void* bytes_of(std::size_t i) const {
    const Plain& plain = parameters_[i];
    return plain.half ? static_cast<const void*>(plain.halves.data()) : plain.values.data();
  }
  zerocache::Update update(std::uint32_t i, const zerocache::StepConstants& step) const {
    return {i, parameters_[i].gradient_bytes(), parameters_[i].half_gradient, step};
  }
  Plain& operator[](std::size_t i) { return parameters_[i]; }
  std::size_t size() const { return parameters_.size(); }
  std::vector<zerocache::TensorSpec> specs() const {
    std::vector<zerocache::TensorSpec> specs;
    for (const Plain& plain : parameters_) {
      const std::uint32_t element = plain.half ? 2 : 4;
      specs.push_back({plain.name, plain.size() * element, element});
    }
    return specs;
  }

 private:
  std::mt19937 random_;
  std::normal_distribution<float> normal_;
  std::vector<Plain> parameters_;
};

}  // namespace taco::testing
