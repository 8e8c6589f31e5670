// The model of a step, and choosing by it, against simulations of the very schedules.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <random>

#include "pg/algorithms/list.h"
#include "pg/codecs/half_codec.h"
#include "pg/codecs/top_k_codec.h"
#include "pg/lightcc/automatic.h"
#include "pg/planning/planner.h"
#include "pg/planning/simulator.h"
#include "support/schedule_world.h"

namespace taco::pg::lightcc {
namespace {

constexpr std::array kAll = {Way::kExact, Way::kHalf, Way::kTopK};

std::shared_ptr<const Codec> codec_of(Way way) {
  if (way == Way::kHalf) return half_codec(HalfFormat::kF16);
  if (way == Way::kTopK) return *top_k_codec({.ratio = 0.01});
  return nullptr;
}

Problem problem_of(std::uint64_t bytes, Way way) { return average_problem(bytes, codec_of(way)); }

// Hosts with ranks, as their interfaces say.
class Place {
 public:
  explicit Place(const Topology& topology)
      : topology_(topology),
        planner_(std::move(*Planner::create(all_algorithms(), topology, {}, 0, ""))) {}

  const Topology& topology() const { return topology_; }
  Cost predicted(std::uint64_t bytes, Way way) const {
    return planner_->prediction(problem_of(bytes, way));
  }
  std::vector<Schedule> schedules(std::uint64_t bytes, Way way) const {
    const Problem problem = problem_of(bytes, way);
    const Algorithm& algorithm = *planner_->prediction(problem).algorithm;
    const std::vector<Problem> problems(topology_.world(), problem);
    const std::uint64_t chunk = chunk_for(algorithm.work(problem, topology_), topology_, {});
    return testing::schedules_of(algorithm, problems, topology_, chunk);
  }

 private:
  const Topology topology_;
  const std::unique_ptr<Planner> planner_;
};

// As the simulator has it on a network that is so many times slower than the interfaces say.
class Reality {
 public:
  Reality(const Place& place, const Topology& network) : place_(place), network_(network) {}

  Cost cost(std::uint64_t bytes, Way way) {
    const auto key = std::make_pair(bytes, way);
    if (const auto known = known_.find(key); known != known_.end()) return known->second;
    const Simulation simulation = simulate(place_.schedules(bytes, way), network_, {});
    EXPECT_TRUE(simulation.finished);
    const double sent =
        *std::max_element(simulation.host_sent_bytes.begin(), simulation.host_sent_bytes.end());
    const Cost guess = place_.predicted(bytes, way);
    Cost cost{.seconds = simulation.seconds};
    cost.wire = std::min(
        cost.seconds, sent / (network_.min_gbits() * 1e9 / 8 * CostParameters().wire_efficiency));
    cost.processor = std::min(cost.seconds, guess.processor);
    return known_[key] = cost;
  }

 private:
  const Place& place_;
  const Topology network_;
  std::map<std::pair<std::uint64_t, Way>, Cost> known_;
};

Topology slowed_down(const Topology& topology, double factor) {
  std::vector<int> hosts(topology.world());
  for (int rank = 0; rank < topology.world(); ++rank) hosts[rank] = topology.host_of(rank);
  std::vector<double> gbits(topology.hosts());
  for (int host = 0; host < topology.hosts(); ++host) {
    gbits[host] = topology.gbits_of(host) / factor;
  }
  return *Topology::make(hosts, gbits);
}

std::vector<Topology> layouts() {
  return {Topology::uniform(2, 2, 1),    Topology::uniform(2, 8, 25),
          Topology::uniform(4, 4, 10),   Topology::uniform(4, 1, 10),
          Topology::uniform(8, 2, 25),   Topology::uniform(2, 4, 100),
          Topology::uniform(16, 8, 100), *Topology::make({0, 0, 0, 1, 1, 0, 2}, {10, 10, 25})};
}

constexpr std::uint64_t kSizes[] = {1 << 20, 6 << 20, 25 << 20};

// Whole steps, whose buckets run side by side, against the model of a step.
TEST(StepInSimulation, buckets_that_run_side_by_side_end_when_the_model_says) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> any(0, 1);
  double worst_low = 1, worst_high = 1;
  for (const Topology& topology :
       {Topology::uniform(2, 2, 1), Topology::uniform(4, 2, 10), Topology::uniform(2, 4, 100)}) {
    const Place place(topology);
    Reality reality(place, topology);
    for (int round = 0; round < 12; ++round) {
      StepModel step;
      Ways ways;
      std::vector<Started> started;
      const std::size_t buckets = 2 + random() % 4;
      double ready = 0;
      for (std::size_t i = 0; i < buckets; ++i) {
        const std::uint64_t bytes = kSizes[random() % 2];
        const Way way = kAll[random() % 3];
        ReadyBucket bucket{.bytes = bytes, .ready = ready, .costs = {}};
        for (const Way each : kAll) {
          bucket.costs[static_cast<std::size_t>(each)] = reality.cost(bytes, each);
        }
        step.buckets.push_back(bucket);
        ways.push_back(way);
        started.push_back({place.schedules(bytes, way), ready});
        ready += round % 3 == 0 ? 0 : any(random) * bucket.cost(way).seconds;
      }
      const Simulation simulation = simulate(started, topology, {});
      ASSERT_TRUE(simulation.finished);
      const double ratio = seconds(step, ways) / simulation.seconds;

      EXPECT_GT(ratio, 0.75) << testing::describe(topology) << " round " << round;
      EXPECT_LT(ratio, 1.1) << testing::describe(topology) << " round " << round;
      worst_low = std::min(worst_low, ratio);
      worst_high = std::max(worst_high, ratio);
    }
  }
  RecordProperty("lowest", std::to_string(worst_low));
  RecordProperty("highest", std::to_string(worst_high));
}

// A model drawn at random, on a network that need not be as fast as it says.
struct Drawn {
  std::vector<std::uint64_t> sizes;
  std::vector<double> ready;
  double compute = 0;
  std::array<bool, kWays> allowed = {true, false, false};

  Drawn(Reality& reality, std::mt19937_64& random) {
    std::uniform_real_distribution<double> any(0, 1);
    const std::size_t count = 1 + random() % 12;
    double communication = 0, bytes = 0;
    for (std::size_t i = 0; i < count; ++i) {
      sizes.push_back(kSizes[random() % 3]);
      communication += reality.cost(sizes.back(), Way::kExact).seconds;
      bytes += static_cast<double>(sizes.back());
    }
    compute = communication * std::pow(10, 1.5 * any(random) - 0.75);
    const double backward = compute * any(random);
    double done = 0;
    for (const std::uint64_t size : sizes) {
      done += static_cast<double>(size);
      ready.push_back(compute - backward * (1 - done / bytes));
    }
    allowed[1] = any(random) < 0.9;
    allowed[2] = any(random) < 0.7;
  }

  template <class CostOf>
  StepModel step(CostOf cost_of) const {
    StepModel step{.compute = compute, .buckets = {}};
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      ReadyBucket bucket{.bytes = sizes[i], .ready = ready[i], .costs = {}};
      for (const Way way : kAll) {
        const auto index = static_cast<std::size_t>(way);
        if (allowed[index]) bucket.costs[index] = cost_of(sizes[i], way);
      }
      step.buckets.push_back(bucket);
    }
    return step;
  }
};

// The ways that training for some steps comes to.
Ways trained(const Drawn& drawn, const Place& place, const StepModel& truth, int steps) {
  Automatic automatic([&](std::uint64_t bytes, Way way) -> std::optional<Cost> {
    if (!drawn.allowed[static_cast<std::size_t>(way)]) return std::nullopt;
    return place.predicted(bytes, way);
  });
  Ways now(drawn.sizes.size(), Way::kExact);
  std::optional<std::vector<double>> open;
  double time = 0;
  for (int step = 0; step < steps; ++step) {
    const std::vector<double> over = ends(truth, now);
    std::vector<Averaged> averaged;
    for (std::size_t i = 0; i < now.size(); ++i) {
      averaged.push_back({i, drawn.sizes[i], time + drawn.ready[i], time + over[i]});
    }
    time += *std::max_element(over.begin(), over.end());
    automatic.step_done(averaged);
    if (open) automatic.answer(*open);
    open = automatic.question();
    for (const auto& [index, way] : automatic.ways()) now[index] = way;
  }
  return now;
}

TEST(AutomaticInSimulation, comes_close_to_the_best_fixed_choice_and_is_no_slower_than_exact) {
  std::mt19937_64 random(7);
  std::vector<std::unique_ptr<Place>> places;
  std::vector<std::unique_ptr<Reality>> realities;  // two of each place
  for (const Topology& topology : layouts()) {
    places.push_back(std::make_unique<Place>(topology));
    for (const double slower : {1.0, 4.0}) {
      realities.push_back(std::make_unique<Reality>(*places.back(), slowed_down(topology, slower)));
    }
  }
  double worst_of_best = 0, worst_of_exact = 0;
  int misses = 0;
  for (int model = 0; model < 1000; ++model) {
    const std::size_t which = random() % realities.size();
    const Place& place = *places[which / 2];
    Reality& reality = *realities[which];
    const Drawn drawn(reality, random);
    const StepModel truth =
        drawn.step([&](std::uint64_t bytes, Way way) { return reality.cost(bytes, way); });
    const double chosen = seconds(truth, trained(drawn, place, truth, 150));
    const double exact = seconds(truth, all_by(truth, Way::kExact));
    double best = exact;
    for (const Way way : kAll) best = std::min(best, seconds(truth, all_by(truth, way)));
    const std::string where = testing::describe(place.topology()) +
                              (which % 2 == 0 ? "" : ", slower") + ", model " +
                              std::to_string(model);
    EXPECT_LE(chosen, 1.03 * best) << where;
    EXPECT_LE(chosen, 1.02 * exact) << where;
    misses += chosen > 1.03 * best ? 1 : 0;
    worst_of_best = std::max(worst_of_best, chosen / best);
    worst_of_exact = std::max(worst_of_exact, chosen / exact);
  }
  RecordProperty("worst_of_best", std::to_string(worst_of_best));
  RecordProperty("worst_of_exact", std::to_string(worst_of_exact));
  RecordProperty("misses", std::to_string(misses));
}

}  // namespace
}  // namespace taco::pg::lightcc
