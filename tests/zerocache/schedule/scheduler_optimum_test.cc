// How many bytes the scheduler moves beside the least that any could, all of the future known. The
// least is found without any part of the scheduler: by a flow of least cost for programs of any
// size, by trying everything for small ones, which in turn shows that the flow is right.
//
// One cache of `frames` pages over a slower memory. An operator's pages are all there while it
// runs. A page costs 1 to fetch, and 1 more to write back where it was written to since it was
// written back last.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "support/page_touches.h"
#include "support/zerocache_programs.h"
#include "zerocache/schedule/simulator.h"

namespace taco::zerocache {
namespace {

using testing::min_cost_by_trying;
using testing::Program;
using testing::repeated;
using testing::Touch;

// A flow of least cost from the first node to the last, along edges that all lead forwards. Units
// are sent one after the other, each by the cheapest way that the earlier ones leave.
class Flow {
 public:
  explicit Flow(int nodes) : edges_of_(static_cast<std::size_t>(nodes)) {}
  int add(int from, int to, int capacity, double cost) {
    const int index = static_cast<int>(edges_.size());
    edges_.push_back({to, capacity, cost});
    edges_.push_back({from, 0, -cost});
    edges_of_[static_cast<std::size_t>(from)].push_back(index);
    edges_of_[static_cast<std::size_t>(to)].push_back(index + 1);
    return index;
  }
  double send(int units) {
    double cost = 0;
    std::vector<double> potential = first_potentials();
    while (units-- > 0) cost += send_one(potential);
    return cost;
  }
  bool used(int edge) const { return edges_[static_cast<std::size_t>(edge) + 1].capacity > 0; }

 private:
  struct Edge {
    int to, capacity;
    double cost;
  };
  static constexpr double kFar = 1e18;

  std::vector<double> first_potentials() const {
    std::vector<double> distance(edges_of_.size(), kFar);
    distance[0] = 0;
    for (std::size_t node = 0; node < edges_of_.size(); ++node) {
      for (const int index : edges_of_[node]) {
        const Edge& edge = edges_[static_cast<std::size_t>(index)];
        double& to = distance[static_cast<std::size_t>(edge.to)];
        if (edge.capacity > 0) to = std::min(to, distance[node] + edge.cost);
      }
    }
    return distance;
  }
  double send_one(std::vector<double>& potential) {
    std::vector<double> distance(edges_of_.size(), kFar);
    std::vector<int> by(edges_of_.size(), -1);
    std::set<std::pair<double, int>> open{{0, 0}};
    distance[0] = 0;
    while (!open.empty()) {
      const auto [near, node] = *open.begin();
      open.erase(open.begin());
      for (const int index : edges_of_[static_cast<std::size_t>(node)]) {
        const Edge& edge = edges_[static_cast<std::size_t>(index)];
        if (edge.capacity == 0) continue;
        const auto to = static_cast<std::size_t>(edge.to);
        const double reduced =
            std::max(0.0, edge.cost + potential[static_cast<std::size_t>(node)] - potential[to]);
        if (near + reduced < distance[to] - 1e-12) {
          open.erase({distance[to], edge.to});
          distance[to] = near + reduced;
          by[to] = index;
          open.insert({distance[to], edge.to});
        }
      }
    }
    double cost = 0;
    for (std::size_t node = edges_of_.size() - 1; node != 0;) {
      const auto index = static_cast<std::size_t>(by[node]);
      --edges_[index].capacity;
      ++edges_[index ^ 1].capacity;
      cost += edges_[index].cost;
      node = static_cast<std::size_t>(edges_[index ^ 1].to);
    }
    for (std::size_t node = 0; node < potential.size(); ++node) {
      potential[node] += std::min(distance[node], kFar / 4);
    }
    return cost;
  }

  std::vector<Edge> edges_;
  std::vector<std::vector<int>> edges_of_;
};

// A page between two uses: kept, it takes a frame during the operators between them; else it costs.
struct Gap {
  int from, to;
  int epoch;  // since which writing; -1: clean from the start
  bool used;  // after it; else the program ends
  // No operator in between could use its frame.
  bool free() const { return to == from + 1; }
};

struct Gaps {
  std::vector<Gap> gaps;
  int epochs = 0;
};

// Before its first use a page is there or not, as many as fit, and what is there in the end need
// not be written back.
Gaps gaps_of(const Program& program) {
  Gaps all;
  std::map<int, int> last, epoch;
  for (int at = 0; at < static_cast<int>(program.size()); ++at) {
    for (const Touch& touch : program[static_cast<std::size_t>(at)]) {
      const auto before = last.find(touch.page);
      const auto written = epoch.find(touch.page);
      all.gaps.push_back({before == last.end() ? -1 : before->second, at,
                          written == epoch.end() ? -1 : written->second, true});
      last[touch.page] = at;
      if (touch.writes) epoch[touch.page] = all.epochs++;
    }
  }
  for (const auto& [page, at] : last) {
    const auto written = epoch.find(page);
    const int since = written == epoch.end() ? -1 : written->second;
    all.gaps.push_back({at, static_cast<int>(program.size()), since, false});
  }
  return all;
}

// The least cost if of the cost of writing back after one writing each gap bears its share. Which
// shares does not matter for being a lower bound: that they add up to 1 does.
double bound_with_shares(const Program& program, const Gaps& gaps, int frames,
                         const std::vector<double>& shares, std::vector<bool>& evicted) {
  const int operators = static_cast<int>(program.size());
  constexpr double kMust = 1e6;
  Flow flow(operators + 1);
  double reserved = 0, all = 0;
  for (int at = 0; at < operators; ++at) {
    const int needed = static_cast<int>(program[static_cast<std::size_t>(at)].size());
    flow.add(at, at + 1, needed, -kMust);  // the frames of the operator's own pages
    flow.add(at, at + 1, frames, 0);
    reserved += kMust * needed;
  }
  std::vector<int> edges;
  for (std::size_t i = 0; i < gaps.gaps.size(); ++i) {
    const Gap& gap = gaps.gaps[i];
    const double cost = (gap.used ? 1 : 0) + (gap.epoch < 0 ? 0 : shares[i]);
    edges.push_back(gap.free() ? -1 : flow.add(gap.from + 1, gap.to, 1, -cost));
    if (!gap.free()) all += cost;
  }
  const double saved = -(flow.send(frames) + reserved);
  evicted.assign(gaps.gaps.size(), false);
  for (std::size_t i = 0; i < edges.size(); ++i) {
    evicted[i] = edges[i] >= 0 && !flow.used(edges[i]);
  }
  return all - saved;
}

// The best lower bound that a few rounds of moving shares to where they are felt can find.
double min_cost(const Program& program, int frames, int rounds = 30) {
  const Gaps gaps = gaps_of(program);
  std::vector<std::vector<std::size_t>> of_epoch(static_cast<std::size_t>(gaps.epochs));
  for (std::size_t i = 0; i < gaps.gaps.size(); ++i) {
    if (gaps.gaps[i].epoch >= 0 && !gaps.gaps[i].free()) {
      of_epoch[static_cast<std::size_t>(gaps.gaps[i].epoch)].push_back(i);
    }
  }
  std::vector<double> shares(gaps.gaps.size(), 0);
  for (const auto& members : of_epoch) {
    for (const std::size_t i : members) shares[i] = 1.0 / static_cast<double>(members.size());
  }
  double best = 0;
  std::vector<bool> evicted;
  for (int round = 0; round < rounds; ++round) {
    best = std::max(best, bound_with_shares(program, gaps, frames, shares, evicted));
    const double step = 0.5 / (1 + round);
    for (const auto& members : of_epoch) {
      double sum = 0;
      for (const std::size_t i : members) {
        shares[i] += evicted[i] ? step : 0;
        sum += shares[i];
      }
      for (const std::size_t i : members) shares[i] /= sum;
    }
  }
  return best;
}

Program random_program(std::mt19937_64& random, int pages, int operators, int most, int writes) {
  Program program;
  for (int i = 0; i < operators; ++i) {
    std::set<int> chosen;
    const auto count = 1 + random() % static_cast<std::uint64_t>(most);
    while (chosen.size() < count) chosen.insert(static_cast<int>(random() % pages));
    program.emplace_back();
    for (const int page : chosen) {
      program.back().push_back({page, static_cast<int>(random() % 100) < writes});
    }
  }
  return program;
}

TEST(Optimum, WithoutWritingTheFlowIsWhatTryingFinds) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    std::mt19937_64 random(seed);
    const Program program = random_program(random, 6, 14, 2, 0);
    for (const int frames : {2, 3, 4}) {
      ASSERT_NEAR(min_cost(program, frames, 1), min_cost_by_trying(program, 6, frames), 1e-6)
          << "seed " << seed << ", " << frames << " frames";
    }
  }
}

TEST(Optimum, WithWritingTheFlowIsALowerBoundThatIsNearlyMet) {
  double bounds = 0, exact = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    std::mt19937_64 random(seed);
    const Program program = random_program(random, 6, 14, 2, 40);
    for (const int frames : {2, 3, 4}) {
      const double bound = min_cost(program, frames);
      const double least = min_cost_by_trying(program, 6, frames);
      ASSERT_LE(bound, least + 1e-6) << "seed " << seed << ", " << frames << " frames";
      bounds += bound;
      exact += least;
    }
  }
  EXPECT_GE(bounds, 0.97 * exact);
}

// The scheduler

Costs unhurried() {
  Costs costs;
  for (WaySpeed& way : costs.ways) way = {100e9, kMicrosecond, 2};
  return costs;
}

std::vector<Use> uses_of(const Program& program, Tier tier, Duration compute) {
  std::vector<Use> uses;
  for (std::size_t at = 0; at < program.size(); ++at) {
    Use use{static_cast<OperatorKey>(at), compute, {}};
    for (const Touch& touch : program[at]) {
      use.accesses.push_back({static_cast<PageId>(touch.page), tier, true, touch.writes});
    }
    uses.push_back(use);
  }
  return uses;
}

// Copies in both directions between the cache and what is below it, of `rounds` runs of the program
// after it has been learned. `tier` is that of the cache: the device over the host, or the host
// over the disk.
double moved(const Program& program, int pages, int frames, Tier tier, int rounds,
             std::string& fault, Duration compute = 100 * kMillisecond) {
  const auto count = static_cast<std::uint32_t>(pages);
  const Capacities capacities = tier == Tier::kDevice
                                    ? Capacities{static_cast<std::uint32_t>(frames), count + 2, 0}
                                    : Capacities{0, static_cast<std::uint32_t>(frames), count};
  Simulator simulator(capacities, unhurried(), count);
  for (PageId page = 0; page < count; ++page) {
    simulator.place(page, tier == Tier::kDevice ? Tier::kHost : Tier::kDisk);
  }
  const std::vector<Use> uses = uses_of(program, tier, compute);
  simulator.runs(2, "train", uses);
  const SimulatedRun run = simulator.runs(rounds, "train", uses);
  if (!simulator.faults().empty()) fault = simulator.faults().front();
  std::uint64_t all = 0;
  for (const std::uint64_t copies : run.copies) all += copies;
  return static_cast<double>(all);
}

// The bound leaves out that in the beginning everything there may be dirty: once, for all rounds
// together, as many more copies as there are frames. That is up to a sixth of the bound where few
// copies are needed, and more than the bound itself where nearly all pages fit: such a row shows
// little. Where less than half of the pages fit, what is under way takes a larger share of the
// frames.
double within(double bound, int frames, int pages) {
  return (2 * frames >= pages ? 1.05 : 1.10) * bound + frames;
}

// A program as a model has it: parameters forwards and backwards, then a step over parameters and
// state, all of it written.
Program training(int layers, int state) {
  Program program;
  for (int layer = 0; layer < layers; ++layer) program.push_back({{layer, false}});
  for (int layer = layers; layer-- > 0;) program.push_back({{layer, false}});
  for (int layer = 0; layer < layers; ++layer) {
    std::vector<Touch> touches{{layer, true}};
    for (int i = 0; i < state; ++i) touches.push_back({layers + state * layer + i, true});
    program.push_back(touches);
  }
  return program;
}

TEST(SchedulerBeside, TheOptimumOfAScanItIsNear) {
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
    for (const bool writes : {false, true}) {
      for (const int frames : {20, 100, 180}) {
        Program scan;
        for (int page = 0; page < 200; ++page) scan.push_back({{page, writes}});
        std::string fault;
        const double cost = moved(scan, 200, frames, tier, 8, fault);
        EXPECT_EQ(fault, "");
        const double bound = min_cost(repeated(scan, 8), frames, 1);
        EXPECT_LE(cost, within(bound, frames, 200)) << frames << " frames, bound " << bound;
      }
    }
  }
}

TEST(SchedulerBeside, TheOptimumOfTrainingStepsItIsNear) {
  constexpr int kRounds = 5;
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
    for (const int state : {1, 2}) {
      const Program program = training(60, state);
      const int pages = 60 * (1 + state);
      for (const int frames : {12, 40, 80, 110}) {
        std::string fault;
        const double cost = moved(program, pages, frames, tier, kRounds, fault);
        EXPECT_EQ(fault, "");
        const double bound = min_cost(repeated(program, kRounds), frames, 8);
        EXPECT_LE(cost, within(bound, frames, pages))
            << frames << " frames, " << state << " of state, bound " << bound;
      }
    }
  }
}

// Where copies are the limit, and so as many as may be are always on their way.
TEST(SchedulerBeside, TheOptimumAHurriedScheduleIsNearToo) {
  const Program program = training(100, 2);
  for (const int frames : {30, 100, 200}) {
    std::string fault;
    const double cost = moved(program, 300, frames, Tier::kHost, 5, fault, kMicrosecond);
    EXPECT_EQ(fault, "");
    const double bound = min_cost(repeated(program, 5), frames, 8);
    EXPECT_LE(cost, within(bound, frames, 300)) << frames << " frames, bound " << bound;
  }
}

// Three or five frames, of which an operator holds two while the next one's pages come: the least
// cost is that of fetching only once an operator waits.
TEST(SchedulerBeside, TheOptimumOfSmallProgramsItIsAThirdAbove) {
  double cost = 0, least = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    std::mt19937_64 random(seed);
    const Program program = random_program(random, 7, 12, 2, 30);
    for (const int frames : {3, 5}) {
      std::string fault;
      cost += moved(program, 7, frames, Tier::kHost, 10, fault);
      ASSERT_EQ(fault, "") << "seed " << seed;
      least += min_cost_by_trying(repeated(program, 10), 7, frames);
    }
  }
  EXPECT_LE(cost, 1.35 * least) << cost << " beside " << least;
}

// Three tiers: reads and writes of the disk, of `rounds` runs after the program has been learned.
double moved_by_disk(const std::vector<Use>& uses, std::uint32_t pages, std::uint32_t device,
                     std::uint32_t host, int rounds) {
  Simulator simulator({device, host, pages}, unhurried(), pages);
  for (PageId page = 0; page < pages; ++page) simulator.place(page, Tier::kDisk);
  simulator.runs(2, "train", uses);
  const SimulatedRun run = simulator.runs(rounds, "train", uses);
  EXPECT_TRUE(simulator.faults().empty()) << simulator.faults().front();
  return static_cast<double>(run.copies[static_cast<int>(Way::kRead)] +
                             run.copies[static_cast<int>(Way::kWrite)]);
}

// A page on the device need not be on the host, so the disk is asked for no more than if both were
// one memory.
TEST(SchedulerBeside, TheOptimumOfBothMemoriesTogetherTheDiskIsNear) {
  const Program program = training(100, 2);
  constexpr int kPages = 300, kDevice = 40, kHost = 120, kRounds = 5;
  const std::vector<Use> uses = uses_of(program, Tier::kDevice, 100 * kMillisecond);
  const double of_disk = moved_by_disk(uses, kPages, kDevice, kHost, kRounds);
  const double bound = min_cost(repeated(program, kRounds), kDevice + kHost, 8);
  EXPECT_LE(of_disk, within(bound, kDevice + kHost, kPages)) << "bound " << bound;
}

// The same where the device has room and the host has not: state that is stepped on the host waits
// on the device.
TEST(SchedulerBeside, TheOptimumOfBothMemoriesTogetherTheDiskIsNearThoughTheHostIsSmall) {
  constexpr int kLayers = 100, kPages = 300, kHost = 40, kRounds = 5;
  const Program program = training(kLayers, 2);
  std::vector<Use> uses = uses_of(program, Tier::kDevice, 100 * kMillisecond);
  for (Use& use : uses) {
    for (Access& access : use.accesses) {
      if (access.page >= kLayers) access.tier = Tier::kHost;
      access.anywhere = access.writes && access.page < kLayers;
    }
  }
  for (const int device : {150, 200, kPages}) {
    const double of_disk =
        moved_by_disk(uses, kPages, static_cast<std::uint32_t>(device), kHost, kRounds);
    const double bound = min_cost(repeated(program, kRounds), device + kHost, 8);
    EXPECT_LE(of_disk, within(bound, device + kHost, kPages))
        << device << " frames, bound " << bound;
  }
}

// Parameters that the device has not room for all of, and that are stepped wherever they are. Those
// that stay there are changed there; the others come up for each pass, and are changed on the host:
// nothing has to come down. In all that is what Belady's replacement fetches, and a frame or two
// for what comes and goes.
TEST(SchedulerBeside, TheOptimumOfStepsThatMayBeTakenAnywhereItIsNear) {
  constexpr int kLayers = 93, kPages = 3 * kLayers, kRounds = 5;
  for (const bool in_backward : {false, true}) {
    std::vector<Use> uses;
    OperatorKey key = 0;
    const auto add = [&](int layer, bool steps) {
      const auto page = static_cast<PageId>(layer);
      Use use{++key, 10 * kMillisecond, {access_in(Tier::kDevice, page, true, false)}};
      if (steps) {
        use.accesses = {access_in(std::nullopt, page, true, true)};
        for (const PageId kind : {1, 2}) {
          use.accesses.push_back(access_in(Tier::kHost, page + kind * kLayers, true, true));
        }
      }
      uses.push_back(use);
    };
    for (int layer = 0; layer < kLayers; ++layer) add(layer, false);
    for (int layer = kLayers; layer-- > 0;) {
      add(layer, false);
      if (in_backward) add(layer, true);
    }
    for (int layer = 0; layer < kLayers && !in_backward; ++layer) add(layer, true);
    for (const std::uint32_t device : {48u, 70u, 85u}) {
      Simulator simulator({device, kPages, 0}, unhurried(), kPages);
      for (PageId page = 0; page < kPages; ++page) simulator.place(page, Tier::kHost);
      simulator.runs(4, "train", uses);
      const SimulatedRun run = simulator.runs(kRounds, "train", uses);
      EXPECT_EQ(first_fault(simulator), "");
      const std::uint64_t up = run.copies[static_cast<int>(Way::kUpload)];
      const std::uint64_t down = run.copies[static_cast<int>(Way::kDownload)];
      const auto least = 2.0 * (kLayers - device) * kRounds;
      EXPECT_LE(static_cast<double>(up + down), 1.1 * least + 8 * kRounds)
          << device << " frames: " << up << " up, " << down << " down";
    }
  }
}

}  // namespace
}  // namespace taco::zerocache
