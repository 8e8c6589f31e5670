// Parameters of several shapes on pages that move, with the moments that Adafactor keeps of them.
// Test support.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/half.h"
#include "support/moving_pages.h"
#include "zerocache/mover/tensor_bytes.h"
#include "zerocache/steps/adafactor_state.h"
#include "zerocache/steps/backward_steps.h"
#include "zerocache/steps/optimizer_stream.h"

namespace taco::testing {

using Floats = std::vector<float>;

inline constexpr kernels::AdafactorShape kShapes[] = {
    {1, 700, 33}, {1, 5, 4000}, {6, 3, 5}, {1, 0, 3000}, {2, 300, 20}, {1, 1, 1}, {1, 0, 0}};

inline Floats random_floats(std::size_t count, std::uint32_t seed, float scale) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Floats values(count);
  for (float& value : values) value = scale * normal(random);
  return values;
}

// All shapes as parameters of one store, of float32 or of bfloat16.
class AdafactorModel {
 public:
  AdafactorModel(std::size_t page_bytes, unsigned threads, bool half)
      : half_(half),
        layout_(std::move(zerocache::Layout::make({{"first", 100, 4}}, page_bytes)).value()),
        pages_(page_bytes) {
    std::vector<zerocache::AdafactorParameter> parameters;
    const std::uint32_t element = half ? 2 : 4;
    for (const kernels::AdafactorShape& shape : kShapes) {
      const std::string name = "p" + std::to_string(tensors_.size());
      const auto placed = layout_.append({name, shape.elements() * element, element});
      tensors_.push_back(placed.value());
      parameters.push_back({tensors_.back(), shape});
    }
    state_ = std::move(zerocache::StateLayout::append_to(layout_, tensors_, {})).value();
    EXPECT_TRUE(zerocache::append_adafactor_state(layout_, parameters).ok());
    stream_ =
        std::move(zerocache::OptimizerStream::make(pages_, layout_, state_, {.threads = threads}))
            .value();
    for (std::uint32_t i = 0; i < tensors_.size(); ++i) {
      values_.push_back(random_floats(kShapes[i].elements(), i, 0.5f));
      if (half) {
        for (float& value : values_[i])
          value = kernels::bf16_to_float(kernels::float_to_bf16(value));
      }
      write(i, values_[i]);
    }
  }

  // With other gradients each time, which stay until the next call.
  std::vector<zerocache::Update> updates(const kernels::AdafactorOptions& options, int t,
                                         double factor = 1) {
    std::vector<zerocache::Update> updates;
    gradients_.clear();
    for (std::uint32_t i = 0; i < std::size(kShapes); ++i) {
      const auto seed = static_cast<std::uint32_t>(t) * 100 + i;
      gradients_.push_back(random_floats(kShapes[i].elements(), seed, t == 2 ? 1e-3f : 1.0f));
    }
    for (std::uint32_t i = 0; i < std::size(kShapes); ++i) {
      updates.push_back({i + 1, gradients_[i].data(), false,
                         kernels::adafactor_step(options, kShapes[i], t, half_, factor)});
    }
    return updates;
  }
  Status step(const kernels::AdafactorOptions& options, int t, double factor = 1) {
    return stream_->step(updates(options, t, factor));
  }
  std::unique_ptr<zerocache::BackwardSteps> backward_steps() {
    return std::move(zerocache::BackwardSteps::make(*stream_, layout_, tensors_, {})).value();
  }
  MovingPages& pages() { return pages_; }
  const zerocache::Layout& layout() const { return layout_; }
  const zerocache::StateLayout& state_layout() const { return state_; }
  // The parameters, by index in the layout.
  std::span<const std::uint32_t> tensors() const { return tensors_; }

  Floats read(std::uint32_t i) {
    const zerocache::PlacedTensor& tensor = layout_.tensors()[i + 1];
    Floats values(kShapes[i].elements());
    if (!half_) {
      pages_.read(tensor, values.data());
      return values;
    }
    std::vector<std::uint16_t> halves(values.size());
    pages_.read(tensor, halves.data());
    std::transform(halves.begin(), halves.end(), values.begin(), kernels::bf16_to_float);
    return values;
  }
  Floats state(const std::string& name) {
    const zerocache::PlacedTensor& tensor = *layout_.find(name);
    Floats values(tensor.bytes / 4);
    EXPECT_TRUE(zerocache::read_bytes(pages_, layout_.page_bytes(), tensor, zerocache::Tier::kHost,
                                      0, std::as_writable_bytes(std::span(values)))
                    .ok());
    return values;
  }
  const Floats& initial(std::uint32_t i) const { return values_[i]; }
  const Floats& gradient(std::uint32_t i) const { return gradients_[i]; }
  zerocache::OptimizerStream& stream() { return *stream_; }

 private:
  void write(std::uint32_t i, const Floats& values) {
    if (!half_) return pages_.write(layout_.tensors()[i + 1], values.data());
    std::vector<std::uint16_t> halves(values.size());
    std::transform(values.begin(), values.end(), halves.begin(), kernels::float_to_bf16);
    pages_.write(layout_.tensors()[i + 1], halves.data());
  }

  const bool half_;
  zerocache::Layout layout_;
  MovingPages pages_;
  std::vector<std::uint32_t> tensors_;
  zerocache::StateLayout state_;
  std::unique_ptr<zerocache::OptimizerStream> stream_;
  std::vector<Floats> values_, gradients_;
};

}  // namespace taco::testing
