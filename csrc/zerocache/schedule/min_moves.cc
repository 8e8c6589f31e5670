#include "zerocache/schedule/min_moves.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <queue>
#include <unordered_map>
#include <utility>
#include <vector>

namespace taco::zerocache {
namespace {

constexpr int kRuns = 6;  // the first of which starts with nothing, and does not count

// Null: anywhere in memory.
bool concerns(const Tier* tier, const Access& access) {
  return tier == nullptr || (access.tier == *tier && !access.anywhere);
}

// Pages that operators need, one after the other.
struct Touch {
  PageId page;
  bool reads;
};

std::vector<Touch> touches_of(std::span<const Use> run, const Tier* tier) {
  std::vector<Touch> touches;
  for (const Use& use : run) {
    for (const Access& access : use.accesses) {
      if (concerns(tier, access)) touches.push_back({access.page, access.reads});
    }
  }
  return touches;
}

// Pages that each run changes and leaves behind for the next.
std::size_t changed_by(std::span<const Use> run, const Tier* tier) {
  enum : std::uint8_t { kSeen = 1, kBlank = 2, kWritten = 4, kSpent = 8 };
  std::unordered_map<PageId, std::uint8_t> pages;
  for (const Use& use : run) {
    for (const Access& access : use.accesses) {
      std::uint8_t& page = pages[access.page];
      if (page == 0 && !access.reads) page |= kBlank;
      page |= kSeen;
      if (access.writes && concerns(tier, access)) page |= kWritten;
      if (access.last) page |= kSpent;
    }
  }
  const auto changed = [](const auto& each) {
    return (each.second & (kBlank | kSpent)) == 0 && (each.second & kWritten) != 0;
  };
  return static_cast<std::size_t>(std::count_if(pages.begin(), pages.end(), changed));
}

// Fetches a run, by a memory of so many frames that knows the future.
double fetches(const std::vector<Touch>& touches, std::uint32_t frames) {
  constexpr auto kNobody = std::numeric_limits<std::uint64_t>::max();
  const std::uint64_t length = touches.size();
  if (length == 0) return 0;
  // Where the page is read next, counted from this run's start on; kNobody: it is written whole
  // before.
  std::vector<std::uint64_t> next(length);
  std::unordered_map<PageId, std::uint64_t> after;
  for (std::uint64_t i = 2 * length; i-- > 0;) {
    const Touch& touch = touches[i % length];
    if (i < length) next[i] = after.at(touch.page);
    after[touch.page] = touch.reads ? i : kNobody;
  }
  std::unordered_map<PageId, std::uint64_t> resident;  // when it is read next
  std::priority_queue<std::pair<std::uint64_t, PageId>> furthest;
  std::uint64_t fetched = 0;
  for (std::uint64_t at = 0; at < kRuns * length; ++at) {
    const Touch& touch = touches[at % length];
    if (!resident.contains(touch.page)) {
      if (touch.reads && at >= length) ++fetched;
      while (resident.size() >= std::max(frames, 1u)) {
        const auto [when, page] = furthest.top();
        furthest.pop();
        const auto found = resident.find(page);  // unless it has been read since
        if (found != resident.end() && found->second == when) resident.erase(found);
      }
    }
    const std::uint64_t relative = next[at % length];
    const std::uint64_t when = relative == kNobody ? kNobody : at - at % length + relative;
    resident[touch.page] = when;
    furthest.emplace(when, touch.page);
  }
  return static_cast<double>(fetched) / (kRuns - 1);
}

double beyond(std::size_t pages, std::uint64_t frames) {
  return pages > frames ? static_cast<double>(pages - frames) : 0;
}

}  // namespace

MinMoves min_moves(std::span<const Use> run, const Capacities& capacities) {
  MinMoves least;
  const auto of = [&](Way way) -> double& { return least.copies[static_cast<int>(way)]; };
  const Tier device = Tier::kDevice;
  const std::uint32_t memory = capacities.device + capacities.host;
  if (capacities.device > 0) {
    of(Way::kUpload) = fetches(touches_of(run, &device), capacities.device);
    of(Way::kDownload) = beyond(changed_by(run, &device), capacities.device);
  }
  if (capacities.disk > 0) {
    of(Way::kRead) = fetches(touches_of(run, nullptr), memory);
    of(Way::kWrite) = beyond(changed_by(run, nullptr), memory);
  }
  return least;
}

}  // namespace taco::zerocache
