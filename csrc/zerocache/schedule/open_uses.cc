#include "zerocache/schedule/open_uses.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "base/assert.h"
#include "zerocache/schedule/residency.h"

namespace taco::zerocache {
namespace {

bool changes(const Access& access) { return access.writes || access.last || !access.reads; }

}  // namespace

std::vector<OpenUses::Page>::iterator OpenUses::place_of(PageId page, Tier tier) {
  return std::lower_bound(pages_.begin(), pages_.end(), std::pair(page, tier),
                          [](const Page& entry, const std::pair<PageId, Tier>& wanted) {
                            return std::pair(entry.page, entry.tier) < wanted;
                          });
}

bool OpenUses::uses(PageId page) const { return tier_of(page).has_value(); }

// For a page that is in use in both memories, the device comes first.
std::optional<Tier> OpenUses::tier_of(PageId page) const {
  const auto at = std::lower_bound(pages_.begin(), pages_.end(), page,
                                   [](const Page& entry, PageId id) { return entry.page < id; });
  if (at == pages_.end() || at->page != page) return std::nullopt;
  return at->tier;
}

bool OpenUses::conflicts(const Access& access) {
  const Tier other = other_memory(access.tier);
  const auto at = place_of(access.page, other);
  const bool there = at != pages_.end() && at->page == access.page && at->tier == other;
  return there && (at->writers > 0 || changes(access));
}

void OpenUses::add(const Access& access) {
  auto at = place_of(access.page, access.tier);
  if (at == pages_.end() || at->page != access.page || at->tier != access.tier) {
    at = pages_.insert(at, {access.page, access.tier, access.reads, 0, 0, 0});
  }
  ++at->uses;
  if (!access.anywhere) ++at->bound;
  if (changes(access)) ++at->writers;
}

void OpenUses::remove(const Access& access) {
  const auto at = place_of(access.page, access.tier);
  if (changes(access)) --at->writers;
  if (!access.anywhere) --at->bound;
  if (--at->uses == 0) pages_.erase(at);
}

void OpenUses::all_read() {
  for (Page& page : pages_) page.reads = true;
}

Result<OpenUses::Id> OpenUses::begin(OperatorKey key, std::span<const Access> accesses) {
  all_read();
  for (std::size_t i = 0; i < accesses.size(); ++i) {
    if (!conflicts(accesses[i])) {
      add(accesses[i]);
      continue;
    }
    const std::size_t failed = i;
    while (i-- > 0) remove(accesses[i]);
    return Status(Code::kInvalidArgument,
                  "page " + std::to_string(accesses[failed].page) +
                      " is to be used on the device and in host memory at once, and one of the "
                      "uses writes it");
  }
  uses_.push_back({++last_, key, false, {accesses.begin(), accesses.end()}});
  return last_;
}

void OpenUses::set_begun(Id id) {
  const auto use =
      std::find_if(uses_.rbegin(), uses_.rend(), [id](const Use& each) { return each.id == id; });
  TACO_ASSERT(use != uses_.rend());
  use->begun = true;
}

OpenUses::Id OpenUses::latest(OperatorKey key) const {
  const auto use = std::find_if(uses_.rbegin(), uses_.rend(),
                                [key](const Use& each) { return each.key == key && each.begun; });
  return use == uses_.rend() ? kNone : use->id;
}

OperatorKey OpenUses::end(Id id, std::vector<PageId>* spent) {
  const auto found =
      std::find_if(uses_.rbegin(), uses_.rend(), [id](const Use& each) { return each.id == id; });
  TACO_ASSERT(found != uses_.rend());
  all_read();
  const Use use = std::move(*found);
  uses_.erase(std::next(found).base());
  for (const Access& access : use.accesses) remove(access);
  for (const Access& access : use.accesses) {
    if (access.last && !uses(access.page)) spent->push_back(access.page);
  }
  return use.key;
}

void OpenUses::lose(PageId page) {
  std::vector<Access*> found;
  for (Use& use : uses_) {
    for (Access& access : use.accesses) {
      if (access.page == page) found.push_back(&access);
    }
  }
  if (std::any_of(found.begin(), found.end(), [](const Access* one) { return !one->reads; }))
    return;
  for (Access* const access : found) {
    if (!changes(*access)) ++place_of(page, access->tier)->writers;
    access->last = true;
  }
}

std::span<const Access> OpenUses::needed() {
  needed_.clear();
  for (const Page& page : pages_) {
    needed_.push_back({page.page, page.tier, page.reads, page.writers > 0, false, page.bound == 0});
  }
  return needed_;
}

}  // namespace taco::zerocache
