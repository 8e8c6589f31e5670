// The uses that are open at once, and the operators made of them: an operator is the interval
// between two changes. Uses overlap and nest as they like (a module inside another, an optimizer's
// chunk beside a backward pass); a scheduler knows one operator at a time. So each beginning and
// each end of a use begins an operator that needs the union of all that is open. Time in which
// nothing is open is an operator too, one that needs nothing: so a trace has the time between uses
// as well.
//
// Pure. One thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "zerocache/schedule/trace.h"

namespace taco::zerocache {

class OpenUses {
 public:
  // The operator that a run begins with.
  static constexpr OperatorKey kRun = ~OperatorKey{0};

  using Id = std::uint64_t;
  static constexpr Id kNone = 0;

  bool empty() const { return uses_.empty(); }

  // kInvalidArgument, and nothing is begun, where a page would be in use on the device and in host
  // memory at once and be written; it names the page.
  Result<Id> begin(OperatorKey key, std::span<const Access> accesses);
  // Notes that the use's pages are there: latest() finds it from now on.
  void set_begun(Id id);
  // The use of that key that began last, among those whose pages are there.
  Id latest(OperatorKey key) const;
  // Returns its key. `spent`: what it was the last to use, and nobody needs afterwards.
  OperatorKey end(Id id, std::vector<PageId>* spent);
  bool uses(PageId page) const;
  // The tier for an access that may be anywhere: the one where the page is in use already.
  std::optional<Tier> tier_of(PageId page) const;
  // Notes that the use that was to fill the page has failed: unless another fills it, nobody needs
  // it once the open ones have ended.
  void lose(PageId page);

  // The accesses of the operator that begins with the last change: by page, each once in a tier. A
  // page that a use first writes whole (reads = false) is read by every operator after its first,
  // and that nobody needs a page afterwards (last) is told by end() alone: an operator may end
  // before its uses do.
  std::span<const Access> needed();

 private:
  struct Use {
    Id id;
    OperatorKey key;
    bool begun;
    std::vector<Access> accesses;
  };
  struct Page {
    PageId page;
    Tier tier;
    bool reads;
    std::uint32_t uses, writers;
    std::uint32_t bound;  // uses that need it in this tier
  };
  std::vector<Page>::iterator place_of(PageId page, Tier tier);
  bool conflicts(const Access& access);
  void add(const Access& access);
  void remove(const Access& access);
  void all_read();

  std::vector<Use> uses_;    // in the order of their beginnings
  std::vector<Page> pages_;  // by page and tier
  std::vector<Access> needed_;
  Id last_ = kNone;
};

}  // namespace taco::zerocache
