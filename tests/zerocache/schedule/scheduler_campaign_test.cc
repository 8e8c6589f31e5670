// Random programs with random accesses on tiny memories, where one operator takes long: what the
// page table of the simulator checks, that nothing ever stands still, and that nothing goes round
// in circles. TACO_PAGE_SEEDS sets how many seeds (default 2,000), TACO_PAGE_FIRST_SEED where to
// begin: a failing seed is printed and runs alone with TACO_PAGE_FIRST_SEED=<seed>
// TACO_PAGE_SEEDS=1.
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "support/number_from.h"
#include "support/zerocache_programs.h"
#include "zerocache/schedule/simulator.h"

namespace taco::zerocache {
namespace {

constexpr int kRuns = 8;
constexpr std::uint32_t kOperators = 12;
// Runs of so few operators and pages need far fewer.
constexpr std::uint64_t kMaxCopies = 1000;

class Campaign {
 public:
  explicit Campaign(std::uint64_t seed) : seed_(seed), random_(seed) {
    pages_ = 4 + below(20);
    const bool two_tiers = below(4) == 0, no_disk = !two_tiers && below(4) == 0;
    capacities_.device = two_tiers ? 0 : 2 + below(6);
    capacities_.host = 4 + below(6);
    const std::uint32_t memory = capacities_.device + capacities_.host;
    const std::uint32_t least = pages_ + 2 > memory ? pages_ + 2 - memory : 0;
    capacities_.disk = no_disk ? 0 : least + below(4);
    if (no_disk) capacities_.host += least;
    content_.assign(pages_, 0);
  }

  // Describes what went wrong; empty if nothing did.
  std::string run() {
    Simulator simulator(capacities_, quick_ways(), pages_);
    place(simulator);
    simulator.set_noise(3, seed_);
    for (int run = 0; run < kRuns; ++run) {
      const std::vector<Use> uses = draw_uses();
      const SimulatedRun ran = simulator.run(below(5) == 0 ? "eval" : "train", uses);
      if (!simulator.faults().empty()) return first_fault(simulator);
      const auto moved = std::accumulate(std::begin(ran.copies), std::end(ran.copies), 0ul);
      if (moved > kMaxCopies) return std::to_string(moved) + " copies in one run";
    }
    return "";
  }

 private:
  std::uint32_t below(std::uint64_t bound) { return static_cast<std::uint32_t>(random_() % bound); }

  void place(Simulator& simulator) {
    std::uint32_t room[] = {capacities_.device, capacities_.host - 1, capacities_.disk};
    for (PageId page = 0; page < pages_; ++page) {
      const std::uint32_t tier = below(3);
      if (room[tier] == 0 || (tier == 1 && room[tier] <= 1)) continue;
      --room[tier];
      content_[page] = 1;
      simulator.place(page, static_cast<Tier>(tier));
    }
  }

  std::vector<Use> draw_uses() {
    std::vector<Use> uses;
    for (std::uint32_t i = 0; i < kOperators; ++i) {
      const OperatorKey key = below(8) == 0 ? 100 + below(6) : i;
      uses.push_back({key, static_cast<Duration>(below(1000)) * kMicrosecond, accesses_of(key)});
    }
    uses[kOperators / 2].compute = kSecond;
    return uses;
  }

  // The same pages for a key each time, but for what is there to be read.
  std::vector<Access> accesses_of(OperatorKey key) {
    std::vector<Access> accesses;
    std::mt19937_64 of_key(seed_ * 1000 + key);
    std::uint32_t left[] = {capacities_.device, std::min(2u, capacities_.host - 2)};
    for (auto page = static_cast<PageId>(of_key() % 3); page < pages_;
         page += 1 + static_cast<PageId>(of_key() % 6)) {
      const std::size_t tier = capacities_.device == 0 || of_key() % 4 == 0 ? 1 : 0;
      if (left[tier] == 0) continue;
      --left[tier];
      Access access{page, static_cast<Tier>(tier), content_[page] != 0, of_key() % 3 == 0, false};
      if (!access.reads) access.writes = true;
      if (access.tier == Tier::kDevice && of_key() % 4 == 0) access.anywhere = true;
      if (access.reads && of_key() % 16 == 0) access.last = true;
      content_[page] = access.last ? 0 : 1;
      accesses.push_back(access);
    }
    return accesses;
  }

  const std::uint64_t seed_;
  std::mt19937_64 random_;
  std::uint32_t pages_ = 0;
  Capacities capacities_;
  std::vector<std::uint8_t> content_;
};

TEST(SchedulerCampaign, EverySeedEndsAndKeepsEveryRule) {
  const std::uint64_t first = number_from("TACO_PAGE_FIRST_SEED", 1);
  const std::uint64_t seeds = number_from("TACO_PAGE_SEEDS", 2000);
  for (std::uint64_t seed = first; seed < first + seeds; ++seed) {
    EXPECT_EQ(Campaign(seed).run(), "") << "seed " << seed;
  }
}

}  // namespace
}  // namespace taco::zerocache
