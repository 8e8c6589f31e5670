// Pages that ranks have stepped in a backward pass (backward_steps.h) travel to the others while it
// goes on, in rounds of a page from every rank.
//
//   final(tensors)   the gradients of these are final on all ranks: a point of the program that all
//                    come to alike
//   wait()           what is under way has arrived
//   sent(page)       it has; who ends the step sends the others (ShardedStep::share())
//   forget()         the step is over
//
// A page is ready when all that is trained on it is final, wherever its owner is with it: ranks
// find the same rounds by what they are told alone, never by who was ready when. A round begins one
// point later than it could, which is when owners have stepped its pages if they are in time; the
// others are stepped then.
//
// A failure on this rank alone is reported at the end: until then the rank takes part. One thread
// at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "zerocache/pages/layout.h"
#include "zerocache/pages/page.h"
#include "zerocache/ranks/collectives.h"
#include "zerocache/ranks/exchange.h"
#include "zerocache/ranks/shards.h"
#include "zerocache/ranks/zero1/sharded_step.h"
#include "zerocache/steps/backward_steps.h"

namespace taco::zerocache {

class BackwardShare {
 public:
  // `trained`: by index in the layout. The others outlive it.
  BackwardShare(Collectives& ranks, const ShardedStep& step, const Layout& layout,
                const Shards& shards, BackwardSteps& steps, std::span<const std::uint32_t> trained);
  BackwardShare(const BackwardShare&) = delete;
  BackwardShare& operator=(const BackwardShare&) = delete;

  // The updates that this rank has are in `steps` by now. A failure is one of the group.
  Status final(std::span<const std::uint32_t> tensors);
  // OK, or the first failure, of this rank or of the group.
  Status wait();
  bool sent(PageId page) const { return sent_.contains(page); }
  void forget();

 private:
  Status begin_rounds();
  Status pack(PageId page, std::span<std::byte> to);
  Status unpack(PageId page, std::size_t from, std::span<const std::byte> bytes);
  // Where memory has no room beside the chunks that are in use, these end first.
  template <typename Use>
  Status with_room(const Use& use);

  Collectives& ranks_;
  ShardedStep step_;
  const Layout& layout_;
  const Shards& shards_;
  BackwardSteps& steps_;
  std::map<PageId, std::vector<std::uint32_t>> pages_;  // what is trained there, by rising place

  std::set<std::uint32_t> final_;
  std::vector<PageId> next_;               // ready since the last point
  std::vector<std::deque<PageId>> ready_;  // before that, by owner
  std::vector<PageId> parcels_;            // by their number
  std::set<PageId> sent_;
  std::unique_ptr<Exchange> exchange_;  // goes first
};

}  // namespace taco::zerocache
