#include "zerocache/schedule/open_uses.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "zerocache/schedule/simulator.h"

namespace taco::zerocache {
namespace {

std::vector<Access> needed(OpenUses& uses) {
  const std::span<const Access> now = uses.needed();
  return {now.begin(), now.end()};
}

Access reading(PageId page, Tier tier = Tier::kDevice) { return {page, tier}; }
Access writing(PageId page, Tier tier = Tier::kDevice) { return {page, tier, true, true}; }

OpenUses::Id begun(OpenUses& uses, OperatorKey key, const std::vector<Access>& accesses) {
  const auto id = uses.begin(key, accesses);
  EXPECT_TRUE(id.ok()) << id.status().message();
  uses.set_begun(id.value());
  return id.value();
}

TEST(OpenUses, AnOperatorNeedsTheUnionOfWhatIsOpen) {
  OpenUses uses;
  std::vector<PageId> spent;
  EXPECT_TRUE(uses.needed().empty());
  const auto outer = begun(uses, 1, {reading(7), reading(3)});
  EXPECT_EQ(needed(uses), (std::vector<Access>{reading(3), reading(7)}));
  const auto inner = begun(uses, 2, {writing(7), reading(5, Tier::kHost)});
  EXPECT_EQ(needed(uses), (std::vector<Access>{reading(3), reading(5, Tier::kHost), writing(7)}));
  EXPECT_EQ(uses.end(outer, &spent), 1u);
  EXPECT_EQ(needed(uses), (std::vector<Access>{reading(5, Tier::kHost), writing(7)}));
  EXPECT_EQ(uses.end(inner, &spent), 2u);
  EXPECT_TRUE(uses.needed().empty());
  EXPECT_TRUE(uses.empty());
  EXPECT_TRUE(spent.empty());
}

TEST(OpenUses, WhatMayBeAnywhereIsBoundByUsesThatNeedItSomewhere) {
  OpenUses uses;
  std::vector<PageId> spent;
  EXPECT_EQ(uses.tier_of(4), std::nullopt);
  Access step = writing(4, Tier::kHost);
  step.anywhere = true;
  const auto stepped = begun(uses, 1, {step});
  EXPECT_EQ(uses.tier_of(4), Tier::kHost);
  EXPECT_TRUE(needed(uses)[0].anywhere);
  const auto copied = begun(uses, 2, {writing(4, Tier::kHost)});
  EXPECT_FALSE(needed(uses)[0].anywhere);
  uses.end(copied, &spent);
  EXPECT_TRUE(needed(uses)[0].anywhere);
  uses.end(stepped, &spent);
  EXPECT_EQ(uses.tier_of(4), std::nullopt);
}

TEST(OpenUses, WhatIsWrittenWholeIsReadByTheNextOperators) {
  OpenUses uses;
  std::vector<PageId> spent;
  const auto id = begun(uses, 1, {{4, Tier::kHost, false, true}});
  EXPECT_FALSE(needed(uses)[0].reads);
  const auto other = begun(uses, 2, {reading(9)});
  EXPECT_TRUE(needed(uses)[0].reads);
  EXPECT_TRUE(needed(uses)[0].writes);
  uses.end(other, &spent);
  EXPECT_TRUE(needed(uses)[0].reads);
  uses.end(id, &spent);
}

TEST(OpenUses, ContentIsSpentWhenTheLastOfItsUsesEnds) {
  OpenUses uses;
  std::vector<PageId> spent;
  const auto consumer = begun(uses, 1, {{4, Tier::kDevice, true, false, true}, reading(5)});
  EXPECT_FALSE(needed(uses)[0].last) << "an operator may end before the use does";
  const auto reader = begun(uses, 2, {reading(4)});
  uses.end(reader, &spent);
  EXPECT_TRUE(spent.empty());
  uses.end(consumer, &spent);
  EXPECT_EQ(spent, std::vector<PageId>{4});
}

TEST(OpenUses, TheLatestOfAKeyIsOneWhosePagesAreThere) {
  OpenUses uses;
  std::vector<PageId> spent;
  const auto first = begun(uses, 8, {reading(1)});
  const auto second = begun(uses, 8, {reading(2)});
  const auto waiting = uses.begin(8, std::vector<Access>{reading(3)});
  EXPECT_EQ(uses.latest(8), second);
  uses.end(second, &spent);
  EXPECT_EQ(uses.latest(8), first);
  uses.set_begun(waiting.value());
  EXPECT_EQ(uses.latest(8), waiting.value());
  EXPECT_EQ(uses.latest(9), OpenUses::kNone);
}

TEST(OpenUses, APageThatIsWrittenIsInOneMemoryOnly) {
  OpenUses uses;
  begun(uses, 1, {reading(1), writing(2)});
  begun(uses, 2, {reading(1, Tier::kHost)});  // two copies of the same
  const std::vector<Access> before = needed(uses);
  for (const Access& wrong : {reading(2, Tier::kHost), writing(1, Tier::kHost)}) {
    const auto refused = uses.begin(3, std::vector<Access>{reading(9), wrong});
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
    EXPECT_EQ(refused.status().message().find("page " + std::to_string(wrong.page) + " is to be"),
              0u);
    EXPECT_EQ(needed(uses), before) << "nothing is begun";
  }
}

// Uses that nest at random, as the operators that a scheduler sees: it never gets stuck.
TEST(OpenUses, ASchedulerCanServeWhateverFits) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 draw(seed);
    const auto up_to = [&draw](std::uint64_t most) {
      return static_cast<std::uint32_t>(draw() % (most + 1));
    };
    const Capacities room = {3 + up_to(5), 5 + up_to(5), up_to(20)};
    const std::uint32_t pages = room.device + room.host + room.disk - 2;
    Simulator simulator(room, Costs{}, pages);
    std::set<PageId> written;
    std::vector<UseEvent> events;
    std::vector<OperatorKey> open;
    std::map<PageId, std::pair<Tier, int>> in_use;
    std::map<OperatorKey, std::vector<Access>> accesses_of;
    for (OperatorKey key = 1; key <= 60; ++key) {
      while (!open.empty() && (open.size() > 3 || up_to(1) == 0)) {
        for (const Access& access : accesses_of[open.back()]) {
          if (--in_use[access.page].second == 0) in_use.erase(access.page);
        }
        events.push_back({false, open.back(), {}, up_to(1000) * kMicrosecond});
        open.pop_back();
      }
      std::vector<Access> accesses;
      for (std::uint32_t i = 0; i < 1 + up_to(2); ++i) {
        const PageId page = up_to(pages - 1);
        const Tier tier = in_use.count(page) != 0 ? in_use[page].first
                          : up_to(3) == 0         ? Tier::kHost
                                                  : Tier::kDevice;
        const std::size_t used = static_cast<std::size_t>(
            std::count_if(in_use.begin(), in_use.end(),
                          [tier](const auto& each) { return each.second.first == tier; }));
        const std::size_t most = tier == Tier::kDevice ? room.device : room.host - 2;
        if (in_use.count(page) == 0 && used >= most) continue;
        const bool fresh = written.insert(page).second;
        accesses.push_back({page, tier, !fresh, fresh || up_to(2) == 0, false});
        in_use[page].first = tier;
        ++in_use[page].second;
      }
      accesses_of[key] = accesses;
      events.push_back({true, key, accesses, up_to(1000) * kMicrosecond});
      open.push_back(key);
    }
    for (; !open.empty(); open.pop_back()) events.push_back({false, open.back(), {}, 0});
    simulator.runs(4, "train", operators_of(events));
    ASSERT_TRUE(simulator.faults().empty()) << simulator.faults().front();
  }
}

}  // namespace
}  // namespace taco::zerocache
