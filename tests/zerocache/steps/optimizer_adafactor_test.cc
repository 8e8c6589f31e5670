// Steps of Adafactor over pages, against its formulas in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "support/adafactor_model.h"
#include "zerocache/steps/adafactor_state.h"
#include "zerocache/steps/backward_steps.h"
#include "zerocache/steps/optimizer_stream.h"

namespace taco::zerocache {
namespace {

using kernels::AdafactorOptions;
using kernels::AdafactorShape;
using testing::Floats;
using testing::kShapes;
using Store = testing::AdafactorModel;

using Doubles = std::vector<double>;

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
