// Random programs over a mover, and a model of what every page holds: uses that nest, of pages on
// the device and in host memory, the same in every run but for deviations. What a page holds is
// checked when a use begins and when it ends. Test support.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "support/mover_rig.h"

namespace taco::testing {

struct ProgramLimits {
  zerocache::PageId first = 0, pages = 0;    // its own pages: nobody else uses them
  std::size_t device = 0, host = 0;          // that may be in use at once
  zerocache::OperatorKey key = 0;            // where its keys begin
  std::function<bool(const Status&)> retry;  // whether a begin() that failed is to be tried again
};

class RandomProgram {
 public:
  using Access = zerocache::Access;
  using PageId = zerocache::PageId;
  using Tier = zerocache::Tier;

  RandomProgram(MoverRig& rig, const ProgramLimits& limits, std::uint64_t seed)
      : rig_(rig), limits_(limits), seed_(seed), random_(seed) {}

  // Runs it once more, of `steps` uses; `strays` of them, in a hundred, are others than before.
  void run(int steps, int strays) {
    program_.seed(seed_);
    for (int step = 0; step < steps; ++step) {
      const bool stray = random_() % 100 < static_cast<unsigned>(strays);
      // Values that are the same in every run are drawn from the program's own numbers in any case.
      const std::uint64_t drawn = program_();
      one_step(stray ? random_() : drawn);
      if (::testing::Test::HasFatalFailure()) return;
    }
    while (!open_.empty()) end_last();
  }

 private:
  struct Open {
    zerocache::OperatorKey key;
    std::vector<Access> accesses;
  };

  void one_step(std::uint64_t drawn) {
    std::mt19937_64 draw(drawn);
    if (!open_.empty() && (open_.size() > 3 || draw() % 2 == 0)) {
      end_last();
      return;
    }
    const std::vector<Access> accesses = draw_accesses(draw);
    const zerocache::OperatorKey key = limits_.key + drawn % 1000;
    Status status = rig_.mover->begin(key, accesses);
    while (!status.ok() && limits_.retry && limits_.retry(status)) {
      status = rig_.mover->begin(key, accesses);
    }
    ASSERT_TRUE(status.ok()) << status.message();
    open_.push_back({key, accesses});
    for (const Access& access : accesses) {
      ++in_use_[access.page];
      where_[access.page] = access.tier;
      if (access.reads) check(access, "when a use of it began");
      if (access.writes) {
        content_[access.page] = ++values_;
        rig_.write(access.page, access.tier, values_);
      }
    }
  }

  void end_last() {
    const Open open = open_.back();
    open_.pop_back();
    for (const Access& access : open.accesses) {
      check(access, "when a use of it ended");
      if (--in_use_[access.page] > 0) continue;
      in_use_.erase(access.page);
      where_.erase(access.page);
      if (access.last) content_.erase(access.page);
    }
    rig_.mover->end(open.key);
  }

  void check(const Access& access, const char* when) {
    const auto content = content_.find(access.page);
    if (content == content_.end()) return;
    ASSERT_TRUE(rig_.holds(access.page, access.tier, content->second))
        << "page " << access.page << " in tier " << static_cast<int>(access.tier) << " " << when;
  }

  std::vector<Access> draw_accesses(std::mt19937_64& draw) const {
    std::size_t used[2] = {};
    for (const auto& [page, tier] : where_) ++used[static_cast<int>(tier)];
    const std::size_t limits[2] = {limits_.device, limits_.host};
    std::vector<Access> accesses;
    std::set<PageId> chosen;
    const std::size_t count = 1 + draw() % 3;
    for (std::size_t i = 0; i < count; ++i) {
      Access access;
      access.page = limits_.first + static_cast<PageId>(draw() % limits_.pages);
      access.tier = limits_.device == 0 || draw() % 4 == 0 ? Tier::kHost : Tier::kDevice;
      const std::uint64_t kind = draw() % 8;
      const auto open = where_.find(access.page);
      if (open != where_.end()) access.tier = open->second;
      const bool holds = content_.count(access.page) != 0;
      access.writes = !holds || kind < 3;
      access.reads = holds && (kind != 0 || open != where_.end());
      access.last = kind == 7 && open == where_.end();
      if (!chosen.insert(access.page).second) continue;
      std::size_t& of_tier = used[static_cast<int>(access.tier)];
      if (open == where_.end() && ++of_tier > limits[static_cast<int>(access.tier)]) break;
      accesses.push_back(access);
    }
    return accesses;
  }

  MoverRig& rig_;
  const ProgramLimits limits_;
  const std::uint64_t seed_;
  std::mt19937_64 random_, program_;
  std::uint32_t values_ = 0;
  std::vector<Open> open_;
  std::map<PageId, int> in_use_;
  std::map<PageId, Tier> where_;
  std::map<PageId, std::uint32_t> content_;
};

}  // namespace taco::testing
