// Whatever happens to a model's gradients, nothing of them is lost and nothing is sent twice: what
// has been delivered, and what the ranks owe, is together what the steps that count have computed.
//
// Two ranks of one host, by seed: steps of which some are skipped, other bucket layouts, settings,
// shards and loss scales, flushes and checkpoints. All numbers are small integers, and so exact.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <numeric>
#include <random>

#include "pg/lightcc/gradients.h"
#include "support/coded_blocks.h"

namespace taco::pg::lightcc {
namespace {

using Values = std::vector<float>;
constexpr int kRanks = 2;
constexpr std::array<std::uint64_t, 5> kSizes = {3, 4, 1, 6, 2};
constexpr int kParameters = kSizes.size();

std::vector<Parameter> parameters() {
  std::vector<Parameter> all;
  for (const std::uint64_t size : kSizes) {
    all.push_back({std::string(1, static_cast<char>('a' + all.size())), size});
  }
  return all;
}

std::uint64_t begin_of(int parameter) {
  return std::accumulate(kSizes.begin(), kSizes.begin() + parameter, std::uint64_t{0});
}
const std::uint64_t kElements = begin_of(kParameters);

// The values that receivers add up from one block.
Values through(const Gradients::Plan& plan, const Values& block) {
  return block.empty() ? block : testing::through(*plan.codec, block, plan.feedback.get());
}

class Training {
 public:
  Training(std::uint64_t seed, bool may_skip) : random_(seed), may_skip_(may_skip) {
    settings_ = other_settings();
    lay_out();
    start();
  }

  void act() {
    switch (below(8)) {
      case 0:
        lay_out();
        break;
      case 1:
        change();
        break;
      case 2:
        flush();
        break;
      case 3:
        checkpoint();
        break;
      case 4:
        cut_otherwise();
        break;
      default:
        step();
    }
    if (!may_still_be_skipped()) check();
  }

  // All that is owed goes out once every parameter has a gradient that travels whole and counts.
  void finish() {
    tell();
    settings_.compression = Compression::kNone;
    for (const auto& rank : ranks_) rank->change(settings_);
    may_skip_ = false;
    unused_ = false;
    step();
    check();
    for (int parameter = 0; parameter < kParameters; ++parameter) {
      ASSERT_EQ(owed_of(parameter), Values(kSizes[parameter]));
    }
  }

 private:
  std::uint64_t below(std::uint64_t end) { return random_() % end; }
  bool one_of(std::uint64_t count) { return below(count) == 0; }

  Settings other_settings() {
    Settings settings;
    constexpr std::array kAll = {Compression::kTopK, Compression::kTopK, Compression::kAuto,
                                 Compression::kNone, Compression::kFloat16};
    settings.compression = kAll[below(kAll.size())];
    settings.may_top_k = true;
    settings.small = Compression::kFloat16;
    settings.threshold = 0;
    settings.ratio = one_of(2) ? 0.25 : 0.5;
    return settings;
  }

  // The first `border` elements of a bucket are rank 0's shard.
  Gradients::PartOf part_of(int rank) const {
    return [rank, eighths = eighths_](std::uint64_t elements) {
      const std::uint64_t border = elements * eighths / 8;
      return rank == 0 ? Part{0, border} : Part{border, elements - border};
    };
  }

  void start() {
    ranks_.clear();
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks_.push_back(
          std::make_unique<Gradients>(parameters(), settings_, rank, kRanks, part_of(rank)));
      ranks_.back()->expect_skips(may_skip_);
    }
  }

  void lay_out() {
    Layout all(kParameters);
    std::iota(all.begin(), all.end(), 0);
    std::shuffle(all.begin(), all.end(), random_);
    const auto border = all.begin() + static_cast<std::ptrdiff_t>(below(kParameters));
    layouts_ = {Layout(border, all.end())};
    if (border != all.begin()) layouts_.emplace_back(all.begin(), border);
  }

  void choose() {
    std::map<std::size_t, Way> ways;
    for (std::size_t index = 0; index < 2; ++index) ways[index] = static_cast<Way>(below(kWays));
    for (const auto& rank : ranks_) rank->choose(ways);
  }

  void step() {
    const bool skipped = std::exchange(skipped_, false) && !told_;
    if (one_of(4)) scale_ = static_cast<float>(1 << below(4));
    for (const auto& rank : ranks_) ASSERT_TRUE(rank->begin_step(scale_, skipped).ok());
    told_ = false;
    if (one_of(3)) choose();
    skipped_ = may_skip_ && one_of(4);
    const std::uint64_t infinite = skipped_ ? below(kElements) : kElements;
    for (std::size_t index = 0; index < layouts_.size(); ++index) reduce(index, infinite);
    if (one_of(3)) tell();
  }

  // One bucket. Element `infinite` of the model is not finite.
  void reduce(std::size_t index, std::uint64_t infinite) {
    const Layout& layout = layouts_[index];
    Values computed, sum;
    std::vector<std::uint64_t> places;  // in the model
    for (const int parameter : layout) {
      for (std::uint64_t i = 0; i < kSizes[parameter]; ++i) {
        places.push_back(begin_of(parameter) + i);
      }
    }
    computed.resize(places.size());
    sum.resize(places.size());
    std::vector<Gradients::Plan> plans;
    for (int rank = 0; rank < kRanks; ++rank) {
      Values gradient = gradient_of(layout);
      for (std::size_t i = 0; i < places.size(); ++i) computed[i] += gradient[i];
      if (rank == 0) {
        for (std::size_t i = 0; i < places.size(); ++i) {
          if (places[i] == infinite) gradient[i] = std::numeric_limits<float>::infinity();
        }
      }
      Result<Gradients::Plan> plan = ranks_[rank]->plan(index, layout, gradient, at_once_);
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      plans.push_back(*plan);
      for (std::size_t i = 0; i < places.size(); ++i) sum[i] += gradient[i];
    }
    ASSERT_EQ(plans[0].codec, plans[1].codec) << "all ranks must come to the same";
    for (int rank = 0; rank < kRanks; ++rank) {
      const Part part = part_of(rank)(places.size());
      const auto first = static_cast<std::ptrdiff_t>(part.from);
      const auto last = static_cast<std::ptrdiff_t>(part.from + part.elements);
      const Values block(sum.begin() + first, sum.begin() + last);
      const bool in_part = plans[rank].feedback != nullptr;
      const bool finite = std::all_of(block.begin(), block.end(), [](float x) { return x < 1e9F; });
      const Values sent = in_part ? through(plans[rank], block) : block;
      for (std::ptrdiff_t i = first; i < last; ++i) {
        // The codec keeps what it has added up of a step that is skipped.
        if (!skipped_ || (in_part && finite)) computed_[places[i]] += computed[i] / scale_;
        if (!skipped_) delivered_[places[i]] += sent[i - first] / scale_;
      }
    }
  }

  Values gradient_of(const Layout& layout) {
    Values gradient;
    for (const int parameter : layout) {
      const bool used = !unused_ || !one_of(4);
      for (std::uint64_t i = 0; i < kSizes[parameter]; ++i) {
        gradient.push_back(used ? scale_ * static_cast<float>(1 + below(9)) : 0);
      }
    }
    return gradient;
  }

  // Whether the newest step was skipped.
  void tell() {
    for (const auto& rank : ranks_) rank->end_step(skipped_ && !told_);
    told_ = true;
  }
  bool may_still_be_skipped() const { return skipped_ && !told_; }

  void change() {
    settings_ = other_settings();
    for (const auto& rank : ranks_) rank->change(settings_);
  }

  void cut_otherwise() {
    eighths_ = below(9);
    for (int rank = 0; rank < kRanks; ++rank) ranks_[rank]->move(rank, kRanks, part_of(rank));
  }

  void flush() {
    for (int parameter = 0; parameter < kParameters; ++parameter) {
      if (one_of(3)) continue;  // has no gradient
      const Values owed = owed_of(parameter);
      for (const auto& rank : ranks_) rank->forget(parameter, parameter + 1);
      for (std::size_t i = 0; i < owed.size() && !skipped_; ++i) {
        delivered_[begin_of(parameter) + i] += owed[i] / scale_;
      }
    }
  }

  void checkpoint() {
    tell();
    std::vector<Values> owed;
    std::vector<std::vector<Saved>> saved(kRanks);
    for (int parameter = 0; parameter < kParameters; ++parameter) {
      owed.push_back(owed_of(parameter));
      for (float& value : owed.back()) value /= kRanks * scale_;
    }
    if (one_of(2)) {
      for (int rank = 0; rank < kRanks; ++rank) saved[rank] = ranks_[rank]->save();
    }
    skipped_ = false;
    if (one_of(2)) start();
    for (int rank = 0; rank < kRanks; ++rank) {
      ASSERT_TRUE(ranks_[rank]->begin_step(scale_, false).ok());
      ASSERT_TRUE(ranks_[rank]->load(saved[rank], 3).ok());
      for (int parameter = 0; parameter < kParameters; ++parameter) {
        ASSERT_TRUE(ranks_[rank]->add_average(parameter, owed[parameter]).ok());
      }
    }
  }

  Values owed_of(int parameter) const {
    Values sum = ranks_[0]->owed(parameter, parameter + 1);
    const Values other = ranks_[1]->owed(parameter, parameter + 1);
    std::transform(sum.begin(), sum.end(), other.begin(), sum.begin(), std::plus<>());
    return sum;
  }

  void check() const {
    for (int parameter = 0; parameter < kParameters; ++parameter) {
      const Values owed = owed_of(parameter);
      for (std::size_t i = 0; i < owed.size(); ++i) {
        const std::size_t place = begin_of(parameter) + i;
        ASSERT_EQ(delivered_[place] + owed[i] / scale_, computed_[place])
            << "element " << i << " of parameter " << parameter;
      }
    }
  }

  std::mt19937_64 random_;
  bool may_skip_;
  bool unused_ = true;  // some parameters, at times
  bool at_once_ = one_of(2);
  Settings settings_;
  std::uint64_t eighths_ = 4;
  std::vector<Layout> layouts_;  // by bucket
  std::vector<std::unique_ptr<Gradients>> ranks_;
  float scale_ = 1;
  bool skipped_ = false, told_ = true;  // the newest step
  std::vector<double> computed_ = std::vector<double>(kElements);
  std::vector<double> delivered_ = std::vector<double>(kElements);
};

TEST(GradientsMass, nothing_is_lost_and_nothing_sent_twice) {
  for (std::uint64_t seed = 0; seed < 400 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Training training(seed, seed % 4 != 0);
    for (int action = 0; action < 120 && !::testing::Test::HasFailure(); ++action) training.act();
    training.finish();
  }
}

}  // namespace
}  // namespace taco::pg::lightcc
