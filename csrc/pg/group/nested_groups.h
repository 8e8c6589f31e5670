// The groups that are made of another's ranks, all or some, and settings while it runs, and end
// with it: for the collectives that callbacks of its operations start, for windows, for
// measurements, for process sets. One place makes them and names them: an id must be the same on
// all ranks, and no other group's. Any thread.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pg/communicator.h"

namespace taco::pg {

class NestedGroups {
 public:
  NestedGroups(std::shared_ptr<harp::Stack> stack, GroupOptions root);
  // `id` as id_of() makes it. The group fails with `parent`, if there is one (Parent). `members`:
  // ranks of the root, rising, this one among them, which are the group's in this order; none: all.
  // Nobody is asked: each member makes its side, and the others' messages wait for it.
  // kInvalidArgument: no such members.
  Result<std::shared_ptr<Communicator>> open(std::uint64_t id, const Parent& parent,
                                             const std::string& suffix,
                                             std::optional<WindowMemory> window = {},
                                             std::span<const int> members = {});
  // Any number, far from all others, for what is named by `of` and a number within that: the ids of
  // a group and of what belongs to it, the number of an operation.
  static std::uint64_t id_of(std::uint64_t of, std::uint64_t number);
  // Any failure of `group`, and of the root, ends a child of it.
  Parent child_of(std::uint64_t group) const { return {group, root_.id}; }
  // The engine on which they run; null once they are closed, and where nothing is sent.
  std::shared_ptr<harp::Stack> stack() const;
  // Families of groups are numbered in the order in which they are begun, the same on all ranks.
  std::uint64_t next_family() { return families_.fetch_add(1, std::memory_order_relaxed); }
  // Idempotent; open() fails afterwards. The first failure that nobody has heard of.
  Status close(Duration linger);
  void set_timeout(Duration timeout);

 private:
  std::vector<std::shared_ptr<Communicator>> live();

  mutable std::mutex mutex_;
  std::shared_ptr<harp::Stack> stack_;
  GroupOptions root_;  // all but the timeout is constant
  bool closed_ = false;
  std::vector<std::weak_ptr<Communicator>> open_;
  std::atomic<std::uint64_t> families_{0};
};

}  // namespace taco::pg
