// Choosing while steps take now longer, now shorter, though nothing has changed: one choice, and a
// real change of the network is followed all the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "pg/lightcc/automatic.h"
#include "support/automatic_training.h"

namespace taco::pg::lightcc {
namespace {

using Training = testing::AutomaticTraining;

constexpr double kVaries = 0.4;
// Each test draws so many; TACO_TEST_PROGRAMS says another number.
unsigned programs() {
  const char* many = std::getenv("TACO_TEST_PROGRAMS");
  return many == nullptr ? 500 : static_cast<unsigned>(std::stoul(many));
}

// Ranks that train alike.
class Ranks {
 public:
  Ranks(Training& training, std::size_t count) {
    for (std::size_t rank = 0; rank < count; ++rank) {
      held_.push_back(std::make_unique<Automatic>(training.predicted()));
      all_.push_back(held_.back().get());
    }
  }
  void train(Training& training, int steps) { training.run(all_, steps); }
  const Automatic& first() const { return *all_.front(); }
  bool agree() const {
    return std::all_of(all_.begin(), all_.end(),
                       [&](const Automatic* one) { return one->ways() == first().ways(); });
  }

 private:
  std::vector<std::unique_ptr<Automatic>> held_;
  std::vector<Automatic*> all_;
};

// A training drawn from a seed: its variation, and the share of communication in a step.
struct Drawn {
  Training training;
  std::size_t ranks = 1;
  std::string text;

  explicit Drawn(unsigned seed) {
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<double> any(0, 1);
    ranks = 1 + random() % 3;
    training.random.seed(seed + 1);
    training.buckets = 1 + random() % 6;
    training.exact = std::pow(10, 2 * any(random) - 1.5) / static_cast<double>(training.buckets);
    training.slower = std::pow(10, any(random) - 0.3);
    training.top_k_slower = std::pow(10, any(random) - 0.5);
    training.top_k_drag = any(random) < 0.3 ? 0.2 * any(random) : 0;
    const std::size_t which = random() % 3;
    if (which != 1) training.compute_varies = kVaries;
    if (which != 0) training.network_varies = kVaries;
    text = "seed " + std::to_string(seed) + ", " + std::to_string(ranks) + " ranks, " +
           std::to_string(training.buckets) + " buckets of " + std::to_string(training.exact) +
           " s, network " + std::to_string(training.slower) + ", TopK " +
           std::to_string(training.top_k_slower) + " and " + std::to_string(training.top_k_drag) +
           ", compute +-" + std::to_string(training.compute_varies) + ", network +-" +
           std::to_string(training.network_varies);
  }
};

TEST(AutomaticSpread, steps_that_vary_change_its_mind_twice_in_a_thousand_at_most) {
  int most = 0, all = 0;
  double worst = 0;
  for (unsigned seed = 1; seed <= programs(); ++seed) {
    Drawn drawn(seed);
    Ranks ranks(drawn.training, drawn.ranks);
    ranks.train(drawn.training, 1000);
    EXPECT_TRUE(ranks.agree()) << drawn.text;
    EXPECT_LE(drawn.training.changes, 2) << drawn.text;
    most = std::max(most, drawn.training.changes);
    all += drawn.training.changes;
    const double lost = drawn.training.step_seconds(ranks.first()) / drawn.training.best_seconds();
    worst = std::max(worst, lost);
  }
  RecordProperty("max_changes", std::to_string(most));
  RecordProperty("changes", std::to_string(all));
  RecordProperty("worst_of_best", std::to_string(worst));
}

TEST(AutomaticSpread, a_network_that_becomes_slower_is_followed_within_thirty_steps) {
  double worst = 0;
  for (unsigned seed = 1; seed <= programs(); ++seed) {
    Drawn drawn(seed);
    drawn.training.top_k_drag = 0;
    drawn.training.top_k_slower = 1;
    drawn.training.exact = 0.05 / static_cast<double>(drawn.training.buckets);
    drawn.training.slower = 1;
    Ranks ranks(drawn.training, drawn.ranks);
    std::mt19937_64 random(seed);
    ranks.train(drawn.training, 400 + static_cast<int>(random() % 50));
    drawn.training.slower = 100;
    ranks.train(drawn.training, 30);
    const double lost = drawn.training.step_seconds(ranks.first()) / drawn.training.best_seconds();
    EXPECT_LT(lost, 1.25) << drawn.text;
    worst = std::max(worst, lost);
  }
  RecordProperty("worst_of_best", std::to_string(worst));
}

}  // namespace
}  // namespace taco::pg::lightcc
