// Whatever happens to a model's gradients, nothing of them is lost and nothing is sent twice: what
// has been applied, and what the ranks owe, is together what the passes that count have computed.
//
// Two ranks of one host, by seed: passes of which some are skipped or dropped, parameter by
// parameter, or accumulate; other bucket layouts, settings, shards and loss scales, flushes and
// checkpoints. All numbers are small integers, and so exact.
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

// A parameter as its program sees it: of each element the sum over the ranks, at scale 1.
struct Books {
  explicit Books(std::uint64_t elements)
      : gradient(elements), computed(elements), applied(elements), open(elements), kept(elements) {}
  void close(const Values& counted) {
    for (std::size_t i = 0; i < computed.size(); ++i) computed[i] += counted[i];
    std::fill(gradient.begin(), gradient.end(), 0.0F);
    std::fill(open.begin(), open.end(), 0.0F);
    std::fill(kept.begin(), kept.end(), 0.0F);
  }

  Values gradient;           // what p.grad holds
  Values computed, applied;  // of what counts
  Values open;               // computed by undecided passes
  Values kept;               // by those of them that were coded
};

class Training {
 public:
  explicit Training(std::uint64_t seed) : random_(seed), adds_(one_of(2)) {
    for (const std::uint64_t size : kSizes) books_.emplace_back(size);
    settings_ = other_settings();
    lay_out();
    start();
  }

  void act() {
    switch (below(10)) {
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
      case 5:
      case 6:
      case 7:
        decide();
        break;
      default:
        pass();
    }
    check(true);
  }

  // All that is owed goes out once every parameter has a gradient that travels whole and counts.
  void finish() {
    decide_all(Fate::kUsed);
    settings_.compression = Compression::kNone;
    for (const auto& rank : ranks_) rank->change(settings_);
    unused_ = may_overflow_ = false;
    pass();
    decide_all(Fate::kUsed);
    check(false);
    for (int parameter = 0; parameter < kParameters; ++parameter) {
      ASSERT_EQ(owed_of(parameter, false), Values(kSizes[parameter]));
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
    const std::array all = {0, 1, 2, 3, 4};
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks_.push_back(
          std::make_unique<Gradients>(parameters(), settings_, rank, kRanks, part_of(rank)));
      ranks_.back()->tell_of(all);
      ASSERT_TRUE(ranks_.back()->rescale(scale_).ok());
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

  void pass() {
    if (one_of(4)) {
      scale_ = static_cast<float>(1 << below(4));
      for (const auto& rank : ranks_) ASSERT_TRUE(rank->rescale(scale_).ok());
    }
    for (const auto& rank : ranks_) rank->begin_step();
    if (one_of(3)) choose();
    const bool whole = one_of(8);
    const std::uint64_t infinite = may_overflow_ && one_of(8) ? below(kElements) : kElements;
    for (std::size_t index = 0; index < layouts_.size(); ++index) reduce(index, infinite, whole);
    if (infinite == kElements) return;
    for (int parameter = 0; parameter < kParameters; ++parameter) {
      if (!is_finite(books_[parameter].gradient)) decide({parameter}, Fate::kSkipped);
    }
  }

  static bool is_finite(const Values& values) {
    return std::all_of(values.begin(), values.end(), [](float x) { return x < 1e9F; });
  }

  // One bucket. Element `infinite` of the model is not finite.
  void reduce(std::size_t index, std::uint64_t infinite, bool whole) {
    const Layout& layout = layouts_[index];
    std::vector<std::uint8_t> used;
    for (std::size_t i = 0; i < layout.size(); ++i) used.push_back(!unused_ || !one_of(4));
    Values sum;
    std::vector<Gradients::Plan> plans;
    std::vector<Values> fresh(layout.size());  // of both ranks
    for (int rank = 0; rank < kRanks; ++rank) {
      Values gradient;
      for (std::size_t i = 0; i < layout.size(); ++i) {
        const Values mine = gradient_of(layout[i], used[i], rank == 0 ? infinite : kElements);
        fresh[i].resize(mine.size());
        for (std::size_t j = 0; j < mine.size(); ++j) {
          const bool carries = !adds_ && used[i];
          const float carried = carries ? books_[layout[i]].gradient[j] / kRanks : 0;
          fresh[i][j] += mine[j];
          gradient.push_back(scale_ * (mine[j] + carried));
        }
      }
      Result<Gradients::Plan> plan = ranks_[rank]->plan({.index = index,
                                                         .layout = layout,
                                                         .gradient = gradient,
                                                         .used = used,
                                                         .at_once = at_once_,
                                                         .adds = adds_,
                                                         .whole = whole});
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      plans.push_back(*plan);
      sum.resize(gradient.size());
      for (std::size_t i = 0; i < gradient.size(); ++i) sum[i] += gradient[i];
    }
    ASSERT_EQ(plans[0].codec, plans[1].codec) << "all ranks must come to the same";
    std::vector<bool> kept(sum.size());
    for (int rank = 0; rank < kRanks; ++rank) {
      const Part part = part_of(rank)(sum.size());
      const auto first = sum.begin() + static_cast<std::ptrdiff_t>(part.from);
      const Values block(first, first + static_cast<std::ptrdiff_t>(part.elements));
      const bool in_part = plans[rank].feedback != nullptr;
      const Values sent = in_part ? through(plans[rank], block) : block;
      std::copy(sent.begin(), sent.end(), first);
      std::fill_n(kept.begin() + static_cast<std::ptrdiff_t>(part.from), part.elements,
                  in_part && is_finite(block));
    }
    std::size_t at = 0;
    for (std::size_t i = 0; i < layout.size(); ++i) {
      Books& books = books_[layout[i]];
      for (std::size_t j = 0; j < books.gradient.size(); ++j, ++at) {
        if (!used[i]) continue;
        if (kept[at]) books.kept[j] += fresh[i][j] + (adds_ ? 0 : books.gradient[j]);
        books.gradient[j] = sum[at] / scale_ + (adds_ ? books.gradient[j] : 0);
        books.open[j] += fresh[i][j];
      }
    }
  }

  Values gradient_of(int parameter, bool used, std::uint64_t infinite) {
    Values gradient(kSizes[parameter]);
    for (std::uint64_t i = 0; used && i < gradient.size(); ++i) {
      gradient[i] = begin_of(parameter) + i == infinite ? std::numeric_limits<float>::infinity()
                                                        : static_cast<float>(2 * (1 + below(9)));
    }
    return gradient;
  }

  void decide() {
    const auto fate = static_cast<Fate>(below(3));
    if (one_of(2)) return decide_all(fate);
    decide({static_cast<int>(below(kParameters))}, fate);
  }

  void decide_all(Fate fate) {
    for (int parameter = 0; parameter < kParameters; ++parameter) decide({parameter}, fate);
  }

  void decide(std::array<int, 1> parameters, Fate fate) {
    for (const auto& rank : ranks_) rank->decide(parameters, fate);
    Books& books = books_[parameters[0]];
    if (fate == Fate::kUsed) {
      for (std::size_t i = 0; i < books.applied.size(); ++i) {
        books.applied[i] += books.gradient[i];
      }
      return books.close(books.open);
    }
    // The gradients of a skipped step are kept, all or none.
    const bool is_kept = fate == Fate::kSkipped && !owes(parameters[0], Values(books.open.size()));
    books.close(is_kept ? books.kept : Values(books.open.size()));
  }

  // Is all right if this much more has been computed?
  bool owes(int parameter, const Values& more) const {
    const Values owed = owed_of(parameter, false);
    const Books& books = books_[parameter];
    for (std::size_t i = 0; i < owed.size(); ++i) {
      if (books.applied[i] + owed[i] / scale_ != books.computed[i] + more[i]) return false;
    }
    return true;
  }

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
      const Values owed = owed_of(parameter, false);
      for (const auto& rank : ranks_) rank->forget(parameter, parameter + 1);
      for (std::size_t i = 0; i < owed.size(); ++i) {
        books_[parameter].gradient[i] += owed[i] / scale_;
      }
    }
  }

  // Gradients that nobody has applied are not part of it.
  void checkpoint() {
    std::vector<Values> owed;
    std::vector<std::vector<Saved>> saved(kRanks);
    for (int parameter = 0; parameter < kParameters; ++parameter) {
      owed.push_back(owed_of(parameter, true));
      for (float& value : owed.back()) value /= kRanks * scale_;
      books_[parameter].close(Values(owed.back().size()));
    }
    if (one_of(2)) {
      for (int rank = 0; rank < kRanks; ++rank) saved[rank] = ranks_[rank]->save();
    }
    if (one_of(2)) start();
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks_[rank]->begin_step();
      ASSERT_TRUE(ranks_[rank]->load(saved[rank], 3).ok());
      for (int parameter = 0; parameter < kParameters; ++parameter) {
        ASSERT_TRUE(ranks_[rank]->add_average(parameter, owed[parameter]).ok());
      }
    }
  }

  Values owed_of(int parameter, bool as_saved) const {
    Values sum = ranks_[0]->owed(parameter, parameter + 1, as_saved);
    const Values other = ranks_[1]->owed(parameter, parameter + 1, as_saved);
    std::transform(sum.begin(), sum.end(), other.begin(), sum.begin(), std::plus<>());
    return sum;
  }

  // With what is undecided as if it were dropped, and as if it were used.
  void check(bool as_saved) const {
    for (int parameter = 0; parameter < kParameters; ++parameter) {
      const Values owed = owed_of(parameter, as_saved);
      const Books& books = books_[parameter];
      for (std::size_t i = 0; i < owed.size(); ++i) {
        const float undecided = as_saved ? 0 : books.open[i] - books.gradient[i];
        ASSERT_EQ(books.applied[i] + owed[i] / scale_, books.computed[i] + undecided)
            << "element " << i << " of parameter " << parameter;
      }
    }
  }

  std::mt19937_64 random_;
  bool adds_;           // results to what is there, as FSDP2 does
  bool unused_ = true;  // some parameters, at times
  bool may_overflow_ = true;
  bool at_once_ = one_of(2);
  Settings settings_;
  std::uint64_t eighths_ = 4;
  std::vector<Layout> layouts_;  // by bucket
  std::vector<std::unique_ptr<Gradients>> ranks_;
  float scale_ = 1;
  std::vector<Books> books_;  // by parameter
};

TEST(GradientsMass, nothing_is_lost_and_nothing_sent_twice) {
  for (std::uint64_t seed = 0; seed < 1000 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Training training(seed);
    for (int action = 0; action < 120 && !::testing::Test::HasFailure(); ++action) training.act();
    if (!::testing::Test::HasFailure()) training.finish();
  }
}

}  // namespace
}  // namespace taco::pg::lightcc
