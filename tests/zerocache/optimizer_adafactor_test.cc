// Steps of Adafactor over pages, against its formulas in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/half.h"
#include "support/moving_pages.h"
#include "zerocache/adafactor_state.h"
#include "zerocache/backward_steps.h"
#include "zerocache/optimizer_stream.h"
#include "zerocache/tensor_bytes.h"

namespace taco::zerocache {
namespace {

using kernels::AdafactorOptions;
using kernels::AdafactorShape;
using testing::MovingPages;

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

constexpr AdafactorShape kShapes[] = {{1, 700, 33}, {1, 5, 4000}, {6, 3, 5}, {1, 0, 3000},
                                      {2, 300, 20}, {1, 1, 1},    {1, 0, 0}};

Floats random_floats(std::size_t count, std::uint32_t seed, float scale) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Floats values(count);
  for (float& value : values) value = scale * normal(random);
  return values;
}

// One parameter in double.
struct Exact {
  AdafactorShape shape;
  Doubles p, rows, columns;

  Exact(const AdafactorShape& of, const Floats& values)
      : shape(of),
        p(values.begin(), values.end()),
        rows(of.matrices * of.rows),
        columns(of.is_vector() ? of.columns : of.matrices * of.columns) {}

  void step(const AdafactorOptions& o, int t, const Floats& g, double eps1) {
    const std::size_t n = p.size();
    const double share = std::pow(t, o.beta2_decay);
    double squares = 0;
    for (const double value : p) squares += value * value;
    const double alpha = std::max(o.eps2, std::sqrt(squares / static_cast<double>(n))) *
                         std::min(o.lr, 1 / std::sqrt(t));
    Doubles v(n);
    if (shape.is_vector()) {
      for (std::size_t i = 0; i < n; ++i) {
        columns[i] += share * (double{g[i]} * g[i] - columns[i]);
        v[i] = columns[i];
      }
    } else {
      estimate(g, share, eps1, v);
    }
    double size = 0;
    for (std::size_t i = 0; i < n; ++i) {
      v[i] = g[i] / std::sqrt(std::max(v[i], eps1 * eps1));
      size += v[i] * v[i];
    }
    const double clip = std::max(1.0, std::sqrt(size / static_cast<double>(n)) / o.clip);
    for (std::size_t i = 0; i < n; ++i) {
      p[i] = p[i] * (1 - o.lr * o.weight_decay) - alpha / clip * v[i];
    }
  }
  void estimate(const Floats& g, double share, double eps1, Doubles& v) {
    for (std::size_t m = 0; m < shape.matrices; ++m) {
      Doubles row_means(shape.rows), column_means(shape.columns);
      const std::size_t base = m * shape.rows * shape.columns;
      for (std::size_t r = 0; r < shape.rows; ++r) {
        for (std::size_t c = 0; c < shape.columns; ++c) {
          const double square = std::pow(double{g[base + r * shape.columns + c]}, 2);
          row_means[r] += square / static_cast<double>(shape.columns);
          column_means[c] += square / static_cast<double>(shape.rows);
        }
      }
      double mean = 0;
      for (std::size_t r = 0; r < shape.rows; ++r) {
        double& row = rows[m * shape.rows + r];
        row += share * (row_means[r] - row);
        mean += row / static_cast<double>(shape.rows);
      }
      for (std::size_t c = 0; c < shape.columns; ++c) {
        double& column = columns[m * shape.columns + c];
        column += share * (column_means[c] - column);
      }
      for (std::size_t r = 0; r < shape.rows; ++r) {
        for (std::size_t c = 0; c < shape.columns; ++c) {
          v[base + r * shape.columns + c] =
              rows[m * shape.rows + r] * columns[m * shape.columns + c] / std::max(mean, eps1);
        }
      }
    }
  }
};

// All shapes as parameters of one store, of float32 or of bfloat16.
class Store {
 public:
  Store(std::size_t page_bytes, unsigned threads, bool half)
      : half_(half),
        layout_(std::move(Layout::make({{"first", 100, 4}}, page_bytes)).value()),
        pages_(page_bytes) {
    std::vector<AdafactorParameter> parameters;
    const std::uint32_t element = half ? 2 : 4;
    for (const AdafactorShape& shape : kShapes) {
      const std::string name = "p" + std::to_string(tensors_.size());
      const auto placed = layout_.append({name, shape.elements() * element, element});
      tensors_.push_back(placed.value());
      parameters.push_back({tensors_.back(), shape});
    }
    state_ = std::move(StateLayout::append_to(layout_, tensors_, {})).value();
    EXPECT_TRUE(append_adafactor_state(layout_, parameters).ok());
    stream_ =
        std::move(OptimizerStream::make(pages_, layout_, state_, {.threads = threads})).value();
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
  std::vector<Update> updates(const AdafactorOptions& options, int t, double factor = 1) {
    std::vector<Update> updates;
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
  Status step(const AdafactorOptions& options, int t, double factor = 1) {
    return stream_->step(updates(options, t, factor));
  }
  std::unique_ptr<BackwardSteps> backward_steps() {
    return std::move(BackwardSteps::make(*stream_, layout_, tensors_, {})).value();
  }
  MovingPages& pages() { return pages_; }

  Floats read(std::uint32_t i) {
    const PlacedTensor& tensor = layout_.tensors()[i + 1];
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
    const PlacedTensor& tensor = *layout_.find(name);
    Floats values(tensor.bytes / 4);
    EXPECT_TRUE(read_bytes(pages_, layout_.page_bytes(), tensor, Tier::kHost, 0,
                           std::as_writable_bytes(std::span(values)))
                    .ok());
    return values;
  }
  const Floats& initial(std::uint32_t i) const { return values_[i]; }
  const Floats& gradient(std::uint32_t i) const { return gradients_[i]; }
  OptimizerStream& stream() { return *stream_; }

 private:
  void write(std::uint32_t i, const Floats& values) {
    if (!half_) return pages_.write(layout_.tensors()[i + 1], values.data());
    std::vector<std::uint16_t> halves(values.size());
    std::transform(values.begin(), values.end(), halves.begin(), kernels::float_to_bf16);
    pages_.write(layout_.tensors()[i + 1], halves.data());
  }

  const bool half_;
  Layout layout_;
  MovingPages pages_;
  std::vector<std::uint32_t> tensors_;
  StateLayout state_;
  std::unique_ptr<OptimizerStream> stream_;
  std::vector<Floats> values_, gradients_;
};

TEST(AdafactorStream, IsTheFormulasOfTheHeader) {
  const AdafactorOptions options{.weight_decay = 0.1};
  Store store(4096, 2, false);
  std::vector<Exact> exact;
  for (std::uint32_t i = 0; i < std::size(kShapes); ++i) {
    exact.emplace_back(kShapes[i], store.initial(i));
  }
  for (int t = 1; t <= 10; ++t) {
    const Status stepped = store.step(options, t);
    ASSERT_TRUE(stepped.ok()) << stepped.message();
    for (std::uint32_t i = 0; i < std::size(kShapes); ++i) {
      if (kShapes[i].elements() == 0) continue;
      exact[i].step(options, t, store.gradient(i), 0x1p-23);
      const Floats values = store.read(i);
      for (std::size_t k = 0; k < values.size(); ++k) {
        ASSERT_NEAR(values[k], exact[i].p[k], 3e-7 * t * std::max(1.0, std::fabs(exact[i].p[k])))
            << "p" << i << ", " << k << ", step " << t;
      }
      const std::string name = "p" + std::to_string(i);
      const Floats columns =
          store.state(name + (kShapes[i].is_vector() ? "/variance" : "/col_var"));
      for (std::size_t k = 0; k < columns.size(); ++k) {
        ASSERT_NEAR(columns[k], exact[i].columns[k], 1e-6 * exact[i].columns[k]) << name;
      }
      if (kShapes[i].is_vector()) continue;
      const Floats rows = store.state(name + "/row_var");
      for (std::size_t k = 0; k < rows.size(); ++k) {
        ASSERT_NEAR(rows[k], exact[i].rows[k], 1e-6 * exact[i].rows[k]) << name;
      }
    }
  }
}

TEST(AdafactorStream, GivesTheSameBitsWhateverPagesAndThreads) {
  for (const bool half : {false, true}) {
    Store one(1 << 20, 1, half);
    Store small(4096, 1, half), threaded(4096, 3, half), middle(16384, 2, half);
    for (int t = 1; t <= 3; ++t) {
      for (Store* const store : {&one, &small, &threaded, &middle}) {
        ASSERT_TRUE(store->step({}, t, 0.5).ok());
      }
      for (std::uint32_t i = 0; i < std::size(kShapes); ++i) {
        const Floats expected = one.read(i);
        EXPECT_TRUE(small.read(i) == expected) << i;
        EXPECT_TRUE(threaded.read(i) == expected) << i;
        EXPECT_TRUE(middle.read(i) == expected) << i;
        EXPECT_TRUE(expected.empty() || expected != one.initial(i)) << i;
      }
    }
  }
}

TEST(AdafactorStream, InABackwardPassATensorIsSteppedWhenThereIsRoom) {
  for (const bool half : {false, true}) {
    Store whole(4096, 2, half), early(4096, 2, half);
    const auto steps = early.backward_steps();
    for (int t = 1; t <= 3; ++t) {
      ASSERT_TRUE(whole.step({}, t).ok());
      for (const Update& update : early.updates({}, t)) {
        if (kShapes[update.tensor - 1].elements() == 0) continue;
        ASSERT_TRUE(steps->add(update).ok());
        // Uses that only look; what they have begun is begun anew.
        early.pages().fail_at(static_cast<std::size_t>(t) - 1, Code::kInvalidArgument);
        ASSERT_TRUE(steps->advance().ok());
        EXPECT_TRUE(steps->take_done().empty());
        if (update.tensor % 2 == 0) continue;
        ASSERT_TRUE(steps->advance().ok());
        EXPECT_FALSE(steps->take_done().empty());
      }
      ASSERT_TRUE(steps->finish().ok());
      EXPECT_FALSE(steps->take_done().empty());
      EXPECT_FALSE(steps->begun());
      EXPECT_EQ(early.pages().open(), 0u);
      for (std::uint32_t i = 0; i < std::size(kShapes); ++i) {
        EXPECT_TRUE(early.read(i) == whole.read(i)) << i << ", step " << t;
      }
    }
  }
}

TEST(AdafactorStream, InABackwardPassWhatIsDroppedIsSteppedWholeOrNotAtAll) {
  Store store(4096, 1, false);
  const auto steps = store.backward_steps();
  const std::vector<Update> updates = store.updates({}, 1);
  ASSERT_TRUE(steps->add(updates[0]).ok());
  EXPECT_EQ(steps->add(updates[0]).message(), "parameter 'p0' has two gradients in one step");
  ASSERT_TRUE(steps->advance().ok());
  ASSERT_TRUE(steps->add(updates[1]).ok());
  auto stepped = steps->drop();
  ASSERT_TRUE(stepped.ok());
  EXPECT_EQ(*stepped, std::vector<std::uint32_t>{1});
  EXPECT_TRUE(store.read(0) != store.initial(0));
  EXPECT_TRUE(store.read(1) == store.initial(1));
}

TEST(AdafactorStream, WithoutRoomInTheMiddleOfAStepItFails) {
  Store store(4096, 1, false);
  const auto steps = store.backward_steps();
  ASSERT_TRUE(steps->add(store.updates({}, 1)[5]).ok());
  store.pages().fail_at(1, Code::kInvalidArgument);  // the first write
  EXPECT_EQ(steps->advance().code(), Code::kResource);
  steps->forget();
}

TEST(AdafactorStream, WhatItCannotStepIsRefusedByName) {
  Store store(4096, 1, false);
  const Floats gradient(700 * 33, 1.0f);
  const auto step = [](const AdafactorShape& shape) {
    return kernels::adafactor_step({}, shape, 1, false);
  };
  const Update update = {1, gradient.data(), false, step(kShapes[0])};
  EXPECT_EQ(store.stream().step_page(0, {&update, 1}).message(),
            "parameter 'p0' cannot be stepped page by page: Adafactor needs its whole gradient "
            "first");
  const Update other = {1, gradient.data(), false, step({1, 33, 700})};
  EXPECT_EQ(store.stream().step({&other, 1}).message(),
            "parameter 'p0' has no state of Adafactor for the shape of this step");
  Layout layout = std::move(Layout::make({{"w", 64, 4}}, 4096)).value();
  const AdafactorParameter wrong = {0, {1, 3, 4}};
  EXPECT_EQ(append_adafactor_state(layout, {&wrong, 1}).message(),
            "parameter 'w' of 64 bytes has not 12 elements of 4");
  EXPECT_FALSE(kernels::check(AdafactorOptions{.clip = 0.5}).ok());
  EXPECT_FALSE(kernels::check(AdafactorOptions{.beta2_decay = 0.1}).ok());
  EXPECT_TRUE(kernels::check(AdafactorOptions{}).ok());
}

}  // namespace
}  // namespace taco::zerocache
