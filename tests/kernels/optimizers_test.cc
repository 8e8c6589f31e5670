// Steps of optimizers against their formulas: written out once more here, and in double with a
// bound on what rounding to float32 may cost; and every instruction set against the portable code.
#include "kernels/optimizers.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "kernels/half.h"
#include "kernels/samples.h"
#include "kernels/variant.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace taco::kernels {
namespace {

using testing::Bytes;
using testing::Random;

// The parameters of a model with all that a step touches. Each array begins `shift` elements beyond
// a multiple of 64 bytes, or `spread` more than its neighbour.
class Model {
 public:
  Model(std::size_t count, std::size_t shift = 0, std::size_t spread = 0)
      : count_(count),
        floats_{{4 * count, 4 * shift},
                {4 * count, 4 * (shift + spread)},
                {4 * count, 4 * (shift + 2 * spread)},
                {4 * count, 4 * (shift + 3 * spread)}},
        halves_{{2 * count, 2 * shift}, {2 * count, 2 * (shift + spread)}} {}

  void fill_with_any(Random& random) {
    for (Bytes& bytes : floats_) testing::fill(bytes, Dtype::kF32, random);
    testing::fill(halves_[1], Dtype::kBF16, random);
    // About half of the bfloat16 parameters are what their master copies round to.
    for (std::size_t i = 0; i < count_; ++i) {
      const bool kept = random() % 2 == 0;
      bf16()[i] = kept ? float_to_bf16(parameter()[i]) : static_cast<std::uint16_t>(random());
    }
  }
  // Numbers as training has them, moments included.
  void fill_as_in_training(Random& random) {
    std::normal_distribution<float> normal;
    for (std::size_t i = 0; i < count_; ++i) {
      parameter()[i] = normal(random);
      const float size = std::pow(10.0f, -static_cast<float>(random() % 6));
      gradient()[i] = size * normal(random);
      first()[i] = size * normal(random);
      second()[i] = size * size * (0.01f + std::fabs(normal(random)));
      bf16_gradient()[i] = float_to_bf16(gradient()[i]);
      bf16()[i] = float_to_bf16(parameter()[i]);
    }
  }

  std::size_t count() const { return count_; }
  float* parameter() { return at(0); }
  float* gradient() { return at(1); }
  float* first() { return at(2); }
  float* second() { return at(3); }
  std::uint16_t* bf16() { return reinterpret_cast<std::uint16_t*>(halves_[0].data()); }
  std::uint16_t* bf16_gradient() { return reinterpret_cast<std::uint16_t*>(halves_[1].data()); }

  bool operator==(const Model& other) const {
    return std::equal(std::begin(floats_), std::end(floats_), std::begin(other.floats_)) &&
           std::equal(std::begin(halves_), std::end(halves_), std::begin(other.halves_));
  }
  bool guards_intact() const {
    return std::all_of(std::begin(floats_), std::end(floats_), intact) &&
           std::all_of(std::begin(halves_), std::end(halves_), intact);
  }

 private:
  static bool intact(const Bytes& bytes) { return bytes.guards_intact(); }
  float* at(int i) { return reinterpret_cast<float*>(floats_[i].data()); }

  std::size_t count_;
  Bytes floats_[4], halves_[2];
};

// The form of a step besides the optimizer: which of the gradients, whether bfloat16 comes out.
struct Form {
  bool bf16_gradient, bf16_parameter;
  ParameterRange of(Model& model, std::size_t from, std::size_t count) const {
    ParameterRange range{.count = count, .parameter = model.parameter() + from};
    if (bf16_parameter) range.bf16_parameter = model.bf16() + from;
    if (bf16_gradient) {
      range.bf16_gradient = model.bf16_gradient() + from;
    } else {
      range.gradient = model.gradient() + from;
    }
    return range;
  }
};
constexpr Form kForms[] = {{false, false}, {false, true}, {true, false}, {true, true}};

struct Case {
  const char* name;
  std::function<void(const Optimizers&, const ParameterRange&, float* first, float* second)> run;
};

Case adam_case(const char* name, const AdamOptions& options, std::int64_t step, double factor) {
  const AdamStep constants = adam_step(options, step, factor);
  return {name, [constants](const Optimizers& by, const ParameterRange& range, float* first,
                            float* second) { by.adam(constants, range, first, second); }};
}
Case sgd_case(const char* name, const SgdOptions& options, std::int64_t step, double factor) {
  const SgdStep constants = sgd_step(options, step, factor);
  return {name,
          [constants](const Optimizers& by, const ParameterRange& range, float* first, float*) {
            by.sgd(constants, range, constants.momentum == 0 ? nullptr : first);
          }};
}
Case lion_case(const char* name, const LionOptions& options, double factor) {
  const LionStep constants = lion_step(options, factor);
  return {name, [constants](const Optimizers& by, const ParameterRange& range, float* first,
                            float*) { by.lion(constants, range, first); }};
}

std::vector<Case> cases() {
  return {
      adam_case("AdamW", {.weight_decay = 0.01}, 3, 1),
      adam_case("AdamW that maximizes, without decay", {}, 1, -1),
      adam_case("Adam", {.weight_decay = 0.1, .decoupled = false}, 7, 1),
      adam_case("Adam of a scaled gradient", {.decoupled = false}, 2, 1.0 / 1000),
      adam_case("Adam with little memory", {.beta1 = 0.3, .beta2 = 0}, 2, 1),
      adam_case("Adam without momentum", {.beta1 = 0, .eps = 0}, 2, 1),
      sgd_case("SGD", {.lr = 0.1, .weight_decay = 0.01}, 1, 1),
      sgd_case("SGD with momentum, first", {.lr = 0.1, .momentum = 0.9}, 1, 1),
      sgd_case("SGD with momentum", {.lr = 0.1, .momentum = 0.9, .dampening = 0.5}, 2, -1),
      sgd_case("SGD with nesterov, first", {.lr = 0.1, .momentum = 0.9, .nesterov = true}, 1, 1),
      sgd_case("SGD with nesterov",
               {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true}, 2, 1),
      lion_case("Lion", {.weight_decay = 0.1}, 1),
      lion_case("Lion that maximizes, without decay", {}, -1),
  };
}

class OptimizersTest : public ::testing::TestWithParam<const Optimizers*> {
 protected:
  const Optimizers& variant() const { return *GetParam(); }
};

TEST_P(OptimizersTest, EveryLengthAndAlignmentGivesThePortableBitsWithinBounds) {
  Random random(1);
  for (const std::size_t count : {0, 1, 7, 8, 15, 16, 17, 31, 32, 33, 63, 100, 129, 1000}) {
    for (const Case& of : cases()) {
      for (const Form form : kForms) {
        const std::size_t shift = random() % 16, spread = random() % 3 == 0 ? 5 : 0;
        Model model(count, shift, spread);
        model.fill_with_any(random);
        Model portable = model;
        of.run(variant(), form.of(model, 0, count), model.first(), model.second());
        of.run(kPortableOptimizers, form.of(portable, 0, count), portable.first(),
               portable.second());
        ASSERT_TRUE(model == portable) << of.name << " of " << count << " at " << shift;
        ASSERT_TRUE(model.guards_intact()) << of.name << " of " << count << " at " << shift;
      }
    }
  }
}

TEST_P(OptimizersTest, AnySplitOfTheRangeGivesTheSameBits) {
  constexpr std::size_t kCount = 5000;
  Random random(2);
  for (const Case& of : cases()) {
    for (const Form form : kForms) {
      Model whole(kCount);
      whole.fill_as_in_training(random);
      Model pieces = whole;
      of.run(variant(), form.of(whole, 0, kCount), whole.first(), whole.second());
      for (std::size_t at = 0; at < kCount;) {
        const std::size_t count = std::min<std::size_t>(kCount - at, 1 + random() % 300);
        of.run(variant(), form.of(pieces, at, count), pieces.first() + at, pieces.second() + at);
        at += count;
      }
      ASSERT_TRUE(whole == pieces) << of.name;
    }
  }
}

TEST_P(OptimizersTest, Bfloat16IsReadExactlyAndWrittenRoundedOnce) {
  constexpr std::size_t kCount = 1000;
  Random random(3);
  for (const Case& of : cases()) {
    Model narrow(kCount);
    narrow.fill_as_in_training(random);
    for (std::size_t i = 0; i < kCount; ++i) {
      narrow.gradient()[i] = bf16_to_float(narrow.bf16_gradient()[i]);
    }
    Model wide = narrow;
    of.run(variant(), kForms[3].of(narrow, 0, kCount), narrow.first(), narrow.second());
    of.run(variant(), kForms[0].of(wide, 0, kCount), wide.first(), wide.second());
    for (std::size_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(narrow.parameter()[i], wide.parameter()[i]) << of.name;
      ASSERT_EQ(narrow.bf16()[i], float_to_bf16(wide.parameter()[i])) << of.name;
    }
  }
}

#if defined(__x86_64__)
unsigned mode() { return _mm_getcsr() & 0xFFC0; }  // without what has happened so far
void set_mode(unsigned value) { _mm_setcsr(value); }
constexpr unsigned kModes[] = {0x1F80, 0x1F80 | 0x8040, 0x1F80 | 0x4000, 0x1F80 | 0x2000};

TEST_P(OptimizersTest, TheCallersModeIsRestoredAndDoesNotReachTheResult) {
  constexpr std::size_t kCount = 333;
  Random random(4);
  const unsigned before = mode();
  for (const Case& of : cases()) {
    Model model(kCount);
    model.fill_as_in_training(random);
    Model expected = model;
    of.run(variant(), kForms[1].of(expected, 0, kCount), expected.first(), expected.second());
    for (const unsigned changed : kModes) {
      Model other = model;
      set_mode(changed);
      of.run(variant(), kForms[1].of(other, 0, kCount), other.first(), other.second());
      const unsigned after = mode();
      set_mode(before);
      ASSERT_EQ(after, changed) << of.name;
      ASSERT_TRUE(other == expected) << of.name << " in mode " << changed;
    }
  }
}
#endif

TEST_P(OptimizersTest, StateThatFadesAwayBecomesZero) {
  const float denormal = 1e-40f;
  Model model(40);
  for (std::size_t i = 0; i < model.count(); ++i) {
    model.parameter()[i] = 1;
    model.gradient()[i] = i % 2 == 0 ? 0 : denormal;
    model.first()[i] = denormal;
    model.second()[i] = denormal;
  }
  variant().adam(adam_step({}, 5), kForms[0].of(model, 0, 40), model.first(), model.second());
  for (std::size_t i = 0; i < model.count(); ++i) {
    ASSERT_EQ(model.first()[i], 0);
    ASSERT_EQ(model.second()[i], 0);
    ASSERT_EQ(model.parameter()[i], 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Host, OptimizersTest,
                         ::testing::ValuesIn(host_optimizers().begin(), host_optimizers().end()),
                         [](const auto& instance) { return std::string(instance.param->name); });

// The formulas of the header, one rounded operation after the other: volatile, so that no compiler
// makes one rounding of two.
struct Written {
  volatile float p, m, v;

  void adam(const AdamOptions& o, int t, float gradient) {
    volatile float g = gradient;
    if (o.decoupled) {
      if (o.weight_decay != 0) p = p * static_cast<float>(1 - o.lr * o.weight_decay);
    } else if (o.weight_decay != 0) {
      g = std::fma(static_cast<float>(o.weight_decay), p, g);
    }
    const auto w = static_cast<float>(1 - o.beta1);
    volatile float way = g - m;
    m = w < 0.5f ? std::fma(w, way, m) : std::fma(w - 1, way, g);
    volatile float weighted = static_cast<float>(1 - o.beta2) * g;
    weighted = weighted * g;
    v = std::fma(static_cast<float>(o.beta2), v, weighted);
    volatile float root = std::sqrt(v);
    root = std::fma(root, static_cast<float>(1 / std::sqrt(1 - std::pow(o.beta2, t))),
                    static_cast<float>(o.eps));
    volatile float quotient = m / root;
    p = std::fma(static_cast<float>(-o.lr / (1 - std::pow(o.beta1, t))), quotient, p);
  }
  void sgd(const SgdOptions& o, int t, float gradient) {
    volatile float g = gradient;
    if (o.weight_decay != 0) g = std::fma(static_cast<float>(o.weight_decay), p, g);
    if (o.momentum != 0) {
      const auto momentum = static_cast<float>(o.momentum);
      volatile float weighted = static_cast<float>(1 - o.dampening) * g;
      m = t == 1 ? g : std::fma(momentum, m, weighted);
      g = o.nesterov ? std::fma(momentum, m, g) : m;
    }
    p = std::fma(static_cast<float>(-o.lr), g, p);
  }
  void lion(const LionOptions& o, float g) {
    if (o.weight_decay != 0) p = p * static_cast<float>(1 - o.lr * o.weight_decay);
    volatile float weighted = static_cast<float>(1 - o.beta1) * g;
    const float c = std::fma(static_cast<float>(o.beta1), m, weighted);
    p = std::fma(static_cast<float>(-o.lr), static_cast<float>((c > 0) - (c < 0)), p);
    weighted = static_cast<float>(1 - o.beta2) * g;
    m = std::fma(static_cast<float>(o.beta2), m, weighted);
  }
};

// Runs `steps` steps of both and compares bits after each.
void compare_with_written(const std::string& name, const std::function<void(Model&, int)>& kernel,
                          const std::function<void(Written&, int, float)>& written) {
  constexpr std::size_t kCount = 200;
  Random random(5);
  Model model(kCount);
  model.fill_as_in_training(random);
  std::vector<Written> expected(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    model.first()[i] = model.second()[i] = 0;
    expected[i].p = model.parameter()[i];
    expected[i].m = 0;
    expected[i].v = 0;
  }
  std::normal_distribution<float> normal;
  for (int t = 1; t <= 5; ++t) {
    for (std::size_t i = 0; i < kCount; ++i) model.gradient()[i] = normal(random);
    kernel(model, t);
    for (std::size_t i = 0; i < kCount; ++i) {
      written(expected[i], t, model.gradient()[i]);
      ASSERT_EQ(model.parameter()[i], expected[i].p) << name << ", step " << t << ", " << i;
      ASSERT_EQ(model.first()[i], expected[i].m) << name << ", step " << t << ", " << i;
      ASSERT_EQ(model.second()[i], expected[i].v) << name << ", step " << t << ", " << i;
    }
  }
}

TEST(Optimizers, StepsAreTheFormulasOfTheHeader) {
  const AdamOptions adams[] = {{},
                               {.weight_decay = 0.1},
                               {.weight_decay = 0.1, .decoupled = false},
                               {.lr = 0.1, .beta1 = 0.4, .beta2 = 0.5, .eps = 1e-3}};
  for (const AdamOptions& options : adams) {
    compare_with_written(
        "Adam",
        [&](Model& model, int t) {
          adam(adam_step(options, t), kForms[0].of(model, 0, model.count()), model.first(),
               model.second());
        },
        [&](Written& one, int t, float gradient) { one.adam(options, t, gradient); });
  }
  const SgdOptions sgds[] = {{.lr = 0.1},
                             {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01},
                             {.lr = 0.1, .momentum = 0.9, .dampening = 0.3},
                             {.lr = 0.1, .momentum = 0.9, .nesterov = true}};
  for (const SgdOptions& options : sgds) {
    compare_with_written(
        "SGD",
        [&](Model& model, int t) {
          sgd(sgd_step(options, t), kForms[0].of(model, 0, model.count()),
              options.momentum == 0 ? nullptr : model.first());
        },
        [&](Written& one, int t, float gradient) { one.sgd(options, t, gradient); });
  }
  for (const LionOptions& options : {LionOptions{}, LionOptions{.lr = 0.01, .weight_decay = 0.1}}) {
    compare_with_written(
        "Lion",
        [&](Model& model, int) {
          lion(lion_step(options), kForms[0].of(model, 0, model.count()), model.first());
        },
        [&](Written& one, int, float gradient) { one.lion(options, gradient); });
  }
}

// One step from any state, in double. Each rounding is at most kHalfUlp of what is rounded; the
// bounds add up those that reach a result, and 1% for their products.
TEST(Optimizers, AnAdamStepIsWithinItsRoundingsOfTheExactOne) {
  constexpr double kHalfUlp = 0x1p-24, kProducts = 1.01;
  constexpr std::size_t kCount = 20000;
  Random random(6);
  for (const bool decoupled : {true, false}) {
    for (const int t : {1, 2, 10, 1000}) {
      const AdamOptions o{.lr = 3e-4, .weight_decay = 0.1, .decoupled = decoupled};
      Model model(kCount);
      model.fill_as_in_training(random);
      Model before = model;
      adam(adam_step(o, t), kForms[0].of(model, 0, kCount), model.first(), model.second());
      for (std::size_t i = 0; i < kCount; ++i) {
        const double p = before.parameter()[i], m0 = before.first()[i], v0 = before.second()[i];
        const double decay = decoupled ? 0 : o.weight_decay * p;
        const double g = before.gradient()[i] + decay;
        const double kept = decoupled ? p * (1 - o.lr * o.weight_decay) : p;
        const double m = o.beta1 * m0 + (1 - o.beta1) * g;
        const double v = o.beta2 * v0 + (1 - o.beta2) * g * g;
        const double d = std::sqrt(v) / std::sqrt(1 - std::pow(o.beta2, t)) + o.eps;
        const double size = o.lr / (1 - std::pow(o.beta1, t));
        // In units of half an ulp: the gradient's error, then what follows from it.
        const double of_g = std::fabs(decay) + (decoupled ? 0 : std::fabs(g));
        const double of_m = (1 - o.beta1) * (2 * std::fabs(g - m0) + of_g) + std::fabs(m);
        const double of_v = 2 * v + 2 * (1 - o.beta2) * std::fabs(g) * (of_g + std::fabs(g));
        const double of_d = d * (0.5 * of_v / v + 3);
        const double of_update = size * (of_m / d + std::fabs(m) / d * (of_d / d + 2));
        const double of_p =
            of_update + std::fabs(kept - size * m / d) + (decoupled ? 2 * std::fabs(p) : 0);
        const double unit = kHalfUlp * kProducts;
        ASSERT_NEAR(model.first()[i], m, unit * of_m) << i << ", step " << t;
        ASSERT_NEAR(model.second()[i], v, unit * of_v) << i << ", step " << t;
        ASSERT_NEAR(model.parameter()[i], kept - size * m / d, unit * of_p) << i << ", step " << t;
      }
    }
  }
}

TEST(Optimizers, AHundredStepsStayNearThoseInDouble) {
  constexpr std::size_t kCount = 500;
  const AdamOptions o{.lr = 1e-3, .weight_decay = 0.01};
  Random random(7);
  std::normal_distribution<float> normal;
  Model model(kCount);
  std::vector<double> p(kCount), m(kCount, 0), v(kCount, 0);
  for (std::size_t i = 0; i < kCount; ++i) {
    p[i] = model.parameter()[i] = normal(random);
    model.first()[i] = model.second()[i] = 0;
  }
  for (int t = 1; t <= 100; ++t) {
    for (std::size_t i = 0; i < kCount; ++i) {
      const float g = model.gradient()[i] = normal(random);
      m[i] = o.beta1 * m[i] + (1 - o.beta1) * g;
      v[i] = o.beta2 * v[i] + (1 - o.beta2) * g * g;
      const double d = std::sqrt(v[i] / (1 - std::pow(o.beta2, t))) + o.eps;
      p[i] = p[i] * (1 - o.lr * o.weight_decay) - o.lr / (1 - std::pow(o.beta1, t)) * m[i] / d;
    }
    adam(adam_step(o, t), kForms[0].of(model, 0, kCount), model.first(), model.second());
  }
  // Three roundings of the parameter a step.
  for (std::size_t i = 0; i < kCount; ++i) {
    ASSERT_NEAR(model.parameter()[i], p[i], 300 * 0x1p-24 * std::max(1.0, std::fabs(p[i])));
  }
}

TEST(Optimizers, AMasterCopyBecomesTheParameterOnlyWhereItDoesNotRoundToIt) {
  Random random(9);
  for (const std::size_t count : {1, 7, 16, 33, 1000}) {
    Model model(count, 3);
    model.fill_with_any(random);  // denormals and NaN among them
    for (const Optimizers* by : host_optimizers()) {
      Model adopted = model;
      by->adopt(adopted.bf16(), adopted.parameter(), count);
      EXPECT_TRUE(adopted.guards_intact());
      for (std::size_t i = 0; i < count; ++i) {
        const auto before = std::bit_cast<std::uint32_t>(model.parameter()[i]);
        const auto after = std::bit_cast<std::uint32_t>(adopted.parameter()[i]);
        const std::uint16_t wanted = model.bf16()[i];
        const bool rounds = float_to_bf16(model.parameter()[i]) == wanted;
        EXPECT_EQ(after, rounds ? before : std::uint32_t{wanted} << 16) << by->name << ", " << i;
        EXPECT_EQ(adopted.bf16()[i], wanted);
      }
    }
  }
}

TEST(Optimizers, AStepOfBfloat16DoesFirstWhatAdoptingDoes) {
  Random random(10);
  for (const std::size_t count : {1, 16, 33, 1000}) {
    Model model(count, 3);
    model.fill_with_any(random);
    for (const Optimizers* by : host_optimizers()) {
      for (const Case& of : cases()) {
        for (const bool bf16_gradient : {false, true}) {
          Model apart = model, together = model;
          by->adopt(apart.bf16(), apart.parameter(), count);
          of.run(*by, Form{bf16_gradient, false}.of(apart, 0, count), apart.first(),
                 apart.second());
          for (std::size_t i = 0; i < count; ++i) {
            apart.bf16()[i] = float_to_bf16(apart.parameter()[i]);
          }
          of.run(*by, Form{bf16_gradient, true}.of(together, 0, count), together.first(),
                 together.second());
          EXPECT_TRUE(apart == together) << by->name << ", " << of.name << ", " << count;
          EXPECT_TRUE(together.guards_intact());
        }
      }
    }
  }
}

TEST(Optimizers, ANanShowsInParameterAndState) {
  constexpr std::uint32_t kCanonical = 0x7FC0'0000;
  for (const Case& of : cases()) {
    Model model(1);
    model.parameter()[0] = 1;
    model.bf16()[0] = float_to_bf16(1);
    model.gradient()[0] = std::bit_cast<float>(0xFFAB'CDEFu);
    model.first()[0] = model.second()[0] = 0;
    of.run(kPortableOptimizers, kForms[1].of(model, 0, 1), model.first(), model.second());
    EXPECT_EQ(std::bit_cast<std::uint32_t>(model.parameter()[0]), kCanonical) << of.name;
    EXPECT_EQ(model.bf16()[0], 0x7FC0) << of.name;
    if (std::string(of.name).find("SGD") == std::string::npos) {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(model.first()[0]), kCanonical) << of.name;
    }
  }
}

TEST(Optimizers, OptionsThatCannotBeAreNamed) {
  const auto text = [](const Status& status) { return status.message(); };
  EXPECT_TRUE(check(AdamOptions{}).ok());
  EXPECT_TRUE(check(SgdOptions{}).ok());
  EXPECT_TRUE(check(LionOptions{}).ok());
  EXPECT_EQ(text(check(AdamOptions{.beta1 = 1})),
            "AdamW: beta1 is 1, but has to be at least 0 and below 1");
  EXPECT_EQ(text(check(AdamOptions{.lr = -1, .decoupled = false})),
            "Adam: lr is -1, but has to be at least 0 and finite");
  EXPECT_FALSE(check(AdamOptions{.beta2 = std::nan("")}).ok());
  EXPECT_FALSE(check(AdamOptions{.eps = -1e-8}).ok());
  EXPECT_FALSE(check(AdamOptions{.weight_decay = HUGE_VAL}).ok());
  EXPECT_FALSE(check(SgdOptions{.momentum = -0.5}).ok());
  EXPECT_FALSE(check(SgdOptions{.dampening = std::nan("")}).ok());
  EXPECT_FALSE(check(SgdOptions{.nesterov = true}).ok());
  EXPECT_FALSE(check(SgdOptions{.momentum = 0.9, .dampening = 0.1, .nesterov = true}).ok());
  EXPECT_FALSE(check(LionOptions{.beta2 = -0.1}).ok());
}

// The public entries choose the variant of the host.
TEST(Optimizers, TheChosenStepIsThePortableOne) {
  constexpr std::size_t kCount = 100'077;
  Random random(8);
  Model model(kCount, 3);
  model.fill_as_in_training(random);
  Model portable = model;
  const AdamStep step = adam_step({.weight_decay = 0.1}, 4);
  adam(step, kForms[3].of(model, 0, kCount), model.first(), model.second());
  kPortableOptimizers.adam(step, kForms[3].of(portable, 0, kCount), portable.first(),
                           portable.second());
  EXPECT_TRUE(model == portable);
}

}  // namespace
}  // namespace taco::kernels
