// A model's parameters and optimizer state on pages that move, and the stream that steps them. Test
// support.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "support/moving_pages.h"
#include "support/plain_model.h"
#include "zerocache/pages/layout.h"
#include "zerocache/pages/state_layout.h"
#include "zerocache/steps/gradient_pages.h"
#include "zerocache/steps/optimizer_stream.h"

namespace taco::testing {

class PagedModel {
 public:
  PagedModel(const PlainModel& model, std::size_t page_bytes, unsigned threads,
             std::span<const zerocache::StateKind> kinds)
      : layout_(std::move(zerocache::Layout::make(model.specs(), page_bytes)).value()),
        pages_(page_bytes),
        tensors_(model.size()) {
    std::iota(tensors_.begin(), tensors_.end(), 0);
    state_ = std::move(zerocache::StateLayout::append_to(layout_, tensors_, kinds)).value();
    for (std::size_t i = 0; i < model.size(); ++i) {
      pages_.write(layout_.tensors()[i], model.bytes_of(i));
    }
    stream_ =
        std::move(zerocache::OptimizerStream::make(pages_, layout_, state_, {.threads = threads}))
            .value();
  }

  // Gradients may be on pages from now on.
  void keep_gradients() {
    gradients_ = std::move(zerocache::GradientPages::append_to(layout_, tensors_)).value();
    stream_->use_gradients(&*gradients_);
  }
  zerocache::GradientPages& gradients() { return *gradients_; }

  zerocache::OptimizerStream& stream() { return *stream_; }
  MovingPages& pages() { return pages_; }
  const zerocache::Layout& layout() const { return layout_; }
  const zerocache::StateLayout& state_layout() const { return state_; }
  // The parameters, by index in the layout.
  std::span<const std::uint32_t> tensors() const { return tensors_; }

 private:
  zerocache::Layout layout_;
  MovingPages pages_;
  std::vector<std::uint32_t> tensors_;
  zerocache::StateLayout state_;
  std::optional<zerocache::GradientPages> gradients_;
  std::unique_ptr<zerocache::OptimizerStream> stream_;
};

}  // namespace taco::testing
