// The groups that are made of another's ranks and settings while it runs, and end with it: for the
// collectives that callbacks of its operations start, for windows, for measurements. One place
// makes them and names them: an id must be the same on all ranks, and no other group's. Any thread.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "pg/communicator.h"

namespace taco::pg {

class NestedGroups {
 public:
  NestedGroups(std::shared_ptr<harp::Stack> stack, GroupOptions root);
  // `id` as id_of() makes it. The group fails with `parent`, if there is one (Parent).
  Result<std::shared_ptr<Communicator>> open(std::uint64_t id, const Parent& parent,
                                             const char* suffix,
                                             std::optional<WindowMemory> window = {});
  // Any number, far from all others, for what is named by `of` and a number within that: the ids of
  // a group and of what belongs to it, the number of an operation.
  static std::uint64_t id_of(std::uint64_t of, std::uint64_t number);
  // Any failure of `group`, and of the root, ends a child of it.
  Parent child_of(std::uint64_t group) const { return {group, root_.id}; }
  // Idempotent; open() fails afterwards. The first failure that nobody has heard of.
  Status close(Duration linger);
  void set_timeout(Duration timeout);

 private:
  std::vector<std::shared_ptr<Communicator>> live();

  std::mutex mutex_;
  std::shared_ptr<harp::Stack> stack_;
  GroupOptions root_;  // all but the timeout is constant
  bool closed_ = false;
  std::vector<std::weak_ptr<Communicator>> open_;
};

}  // namespace taco::pg
