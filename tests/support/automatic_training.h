// Ranks that train a model of equal buckets and choose by themselves how these are sent, with steps
// that take as long as a test says.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "pg/lightcc/automatic.h"

namespace taco::testing {

// Communication takes what `exact` says; half of it in 16 bits, and little by TopK. Predicted so,
// and really as the factors say.
struct AutomaticTraining {
  using Way = pg::lightcc::Way;
  using Ways = pg::lightcc::Ways;

  std::size_t buckets = 4;
  double compute = 1, backward = 0.5;  // the part of the computation in which buckets become ready
  double exact = 0.5;                  // seconds of a bucket's time on the cable
  double slower = 1;                   // the network, than predicted
  double top_k_slower = 1;             // TopK's work for processors
  double top_k_drag = 0;               // by how much it makes the computation longer
  // By how much a step's computation on a rank, and its communication, are longer or shorter than
  // they should be, as shares.
  double compute_varies = 0, network_varies = 0;
  std::mt19937_64 random{1};

  double time = 100;
  std::optional<std::vector<double>> open;  // a question
  int steps = 0, questions = 0, changes = 0;
  std::set<Ways> used;
  std::vector<pg::lightcc::Decision> decisions;

  pg::Cost cost(Way way, double network, double processor) const {
    const double share = way == Way::kExact ? 1 : way == Way::kHalf ? 0.5 : 0.01;
    const double wire = exact * share * network, work = way == Way::kTopK ? 0.05 * processor : 0.01;
    return {.seconds = std::max(wire, work), .processor = work, .wire = wire};
  }
  pg::lightcc::Automatic::CostOf predicted() {
    return [this](std::uint64_t, Way way) { return cost(way, 1, 1); };
  }
  // `longer`: the computation, `network`: the communication, than it should be.
  pg::lightcc::StepModel truth(const Ways& ways, double longer = 1, double network = 1) const {
    pg::lightcc::StepModel step;
    step.compute = compute * longer;
    for (const Way way : ways)
      if (way == Way::kTopK) step.compute += top_k_drag;
    for (std::size_t i = 0; i < buckets; ++i) {
      pg::lightcc::ReadyBucket one{.bytes = 1 << 20, .ready = 0, .costs = {}};
      one.ready = step.compute * (1 - backward * static_cast<double>(buckets - 1 - i) /
                                          static_cast<double>(buckets));
      for (const Way way : {Way::kExact, Way::kHalf, Way::kTopK}) {
        one.costs[static_cast<std::size_t>(way)] =
            cost(way, slower * network, way == Way::kTopK ? top_k_slower : 1);
      }
      step.buckets.push_back(one);
    }
    return step;
  }
  Ways ways(const pg::lightcc::Automatic& automatic) const {
    Ways all(buckets, Way::kExact);
    for (const auto& [index, way] : automatic.ways()) all[index] = way;
    return all;
  }
  // A step that takes as long as it should takes so long.
  double step_seconds(const pg::lightcc::Automatic& automatic) const {
    return seconds(truth(ways(automatic)), ways(automatic));
  }
  // A step takes so long by whatever way is the best for all buckets.
  double best_seconds() const {
    double best = 1e9;
    for (const Way way : {Way::kExact, Way::kHalf, Way::kTopK}) {
      const Ways all = all_by(truth({}), way);
      best = std::min(best, seconds(truth(all), all));
    }
    return best;
  }
  // As the hook does it: an answer comes one step after its question.
  void run(pg::lightcc::Automatic& automatic, int count) {
    std::vector<pg::lightcc::Automatic*> alone = {&automatic};
    run(alone, count);
  }
  // Buckets are averaged once the last rank is ready; the ranks agree on the largest of what each
  // has measured.
  void run(const std::vector<pg::lightcc::Automatic*>& ranks, int count) {
    for (int i = 0; i < count; ++i, ++steps) step(ranks);
  }

 private:
  double varied(double by) {
    return std::uniform_real_distribution<double>(1 - by, 1 + by)(random);
  }

  void step(const std::vector<pg::lightcc::Automatic*>& ranks) {
    const Ways now = ways(*ranks.front());
    used.insert(now);
    const double network = varied(network_varies);
    std::vector<pg::lightcc::StepModel> own;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      own.push_back(truth(now, varied(compute_varies), network));
    }
    pg::lightcc::StepModel last = own.front();
    for (std::size_t b = 0; b < buckets; ++b) {
      for (const auto& step : own) {
        last.buckets[b].ready = std::max(last.buckets[b].ready, step.buckets[b].ready);
      }
    }
    const std::vector<double> over = ends(last, now);
    std::optional<std::vector<double>> largest;
    std::optional<pg::lightcc::Decision> decided;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      std::vector<pg::lightcc::Averaged> averaged;
      for (std::size_t b = 0; b < buckets; ++b) {
        averaged.push_back(
            {b, last.buckets[b].bytes, time + own[rank].buckets[b].ready, time + over[b]});
      }
      ranks[rank]->step_done(averaged);
      if (open) decided = ranks[rank]->answer(*open);
      largest = together(largest, ranks[rank]->question());
    }
    time += *std::max_element(over.begin(), over.end());
    if (open && decided) {
      decisions.push_back(*decided);
      changes += decided->changed ? 1 : 0;
    }
    open = largest;
    questions += open ? 1 : 0;
  }

  static std::optional<std::vector<double>> together(
      std::optional<std::vector<double>> all, const std::optional<std::vector<double>>& one) {
    if (!all || !one) return one;
    for (std::size_t i = 0; i < all->size(); ++i) (*all)[i] = std::max((*all)[i], (*one)[i]);
    return all;
  }
};

}  // namespace taco::testing
