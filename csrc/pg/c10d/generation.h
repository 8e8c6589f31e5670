// One membership of a group: who is in it, and the communicators that run its operations. A group
// has one from its start to its end, unless its members change: then one follows the other
// (succession.h). Any thread, without the GIL.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "pg/c10d/group_rendezvous.h"
#include "pg/communicator.h"
#include "pg/group/nested_groups.h"
#include "pg/tuning/cost_block.h"

namespace taco::pg {

class Generation {
 public:
  // Releases what the rendezvous took in the end, also if this fails. `tree` names the groups that
  // are made from this one, as CostBlock does.
  static Result<std::shared_ptr<Generation>> open(GroupRendezvousResult rendezvous,
                                                  const void* tree, bool is_default);
  // For open().
  explicit Generation(GroupRendezvousResult rendezvous) : rendezvous_(std::move(rendezvous)) {}
  ~Generation() { (void)close(0); }
  Generation(const Generation&) = delete;

  const std::shared_ptr<Communicator>& communicator() const { return communicator_; }
  // For what callbacks of its operations start.
  const std::shared_ptr<NestedGroups>& nested() const { return nested_; }
  const GroupOptions& options() const { return rendezvous_.group; }

  // Windows are numbered in the order in which they are registered, the same on all ranks.
  std::uint64_t next_window() { return windows_.fetch_add(1, std::memory_order_relaxed); }

  void set_timeout(Duration timeout);
  // Waits, at most `linger`, for what others still need. The first failure that nobody has heard
  // of. Idempotent.
  Status close(Duration linger);

 private:
  CostOwner owner() const { return {rendezvous_.group.id, rendezvous_.group.rank}; }
  Status measure_costs(const void* tree);

  GroupRendezvousResult rendezvous_;
  std::shared_ptr<Communicator> communicator_;
  std::shared_ptr<NestedGroups> nested_;
  std::atomic<std::uint64_t> windows_{0};
  std::mutex closing_;
  bool closed_ = false;
};

}  // namespace taco::pg
