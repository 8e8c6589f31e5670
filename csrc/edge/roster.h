// The other rendezvous of ranks: by handles. Each rank gives one out as soon as it is there, the
// program carries them to the others, and whoever holds the handles of all members makes the group
// of them. No store is asked, which may have died with the rank that served it; and nothing of the
// Stack changes, so that those who were in a group before keep their sessions, keys and paths.
//
// Whether the others hold the same handles is not known here: pg/group/roll_call.h asks them, by
// what `digest` says of the members and their order.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "edge/rendezvous.h"

namespace taco::edge {

// The result of that, and what all of its ranks must have in common beside it.
struct Gathering : RendezvousResult {
  std::uint64_t digest = 0;
};

// Any thread.
class Roster {
 public:
  // This rank, before it has a group; `options` has a name, not more ranks. Ranks that come by one
  // store are of one job: the first gives it a name. Blocks until that is there, without the GIL.
  static Result<std::shared_ptr<Roster>> open(const c10::intrusive_ptr<c10d::Store>& store,
                                              const RendezvousOptions& options);
  Roster(RendezvousOptions options, std::shared_ptr<StackUse> use, MemberHandle self)
      : options_(std::move(options)), use_(std::move(use)), self_(std::move(self)) {}

  // As confidential as the store: it holds what proves to others that they speak to this process.
  std::string handle() const;

  // The group of these, by rank, if `in_order`; otherwise the ranks of a host stand side by side.
  // `number` makes it another group than any before, with the same number for all members. Errors:
  // kInvalidArgument, none, twice the same, of another job, without this rank; kVersionMismatch,
  // another version or settings; kRendezvous, a number that this rank has used. They name the rank.
  // Ended by part().
  Result<Gathering> gather(const std::vector<std::string>& handles, bool in_order,
                           std::int64_t number);

 private:
  Result<std::vector<MemberHandle>> read(const std::vector<std::string>& handles,
                                         bool in_order) const;
  Result<int> own_rank(const std::vector<MemberHandle>& members) const;
  Status check(const std::vector<MemberHandle>& members, int own) const;
  std::uint64_t group_id(std::int64_t number) const;

  const RendezvousOptions options_;
  const std::shared_ptr<StackUse> use_;
  const MemberHandle self_;
  std::mutex mutex_;
  std::set<std::int64_t> used_;
};

}  // namespace taco::edge
