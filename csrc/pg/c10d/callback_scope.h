// Collectives that a future's callback starts. Ranks run callbacks when their operation is done,
// each at its own time, so the group's one counter would number nested operations differently on
// each rank. They therefore run on a communicator of the callback's own, named after the operation
// whose future it hangs on and the place at which it was attached: what one callback starts is in
// the program's order, hence the same on all ranks. (torch's PowerSGD hook does this with several
// buckets under way.) A future of several futures (collect_all) is named after all of them.
//
// Every future of a collective has a scope; each callback attached to it gets a child of that
// scope, which is also the scope of the future that then() returns. Any thread.
#pragma once

#include <memory>
#include <mutex>

#include "pg/group/nested_groups.h"

namespace taco::pg {

class CallbackScope {
 public:
  // `group` and `sequence` name the operation.
  CallbackScope(std::shared_ptr<NestedGroups> nested, std::uint64_t group, std::uint64_t sequence);
  // Does not block: what its callback has started goes on without it.
  ~CallbackScope();
  CallbackScope(const CallbackScope&) = delete;

  // The scope of the next callback that is attached.
  std::shared_ptr<CallbackScope> child();
  // The scope of a future that waits for those of `scopes`, in this order.
  static std::shared_ptr<CallbackScope> join(
      const std::vector<std::shared_ptr<CallbackScope>>& scopes);

  bool belongs_to(const NestedGroups& nested) const;
  // For what a callback starts on that group, to which the scope belongs; made when it is needed.
  Result<std::shared_ptr<Communicator>> communicator(const NestedGroups& nested);

  // The scope whose callback this thread is running, or null.
  static CallbackScope* current();

  // While one lives, this thread runs a callback of the scope.
  class Entry {
   public:
    explicit Entry(CallbackScope* scope);
    ~Entry();
    Entry(const Entry&) = delete;

   private:
    CallbackScope* previous_;
  };

 private:
  struct Part {  // one for each group among the operations
    std::shared_ptr<NestedGroups> nested;
    std::uint64_t id = 0;
    Parent parent;
    std::shared_ptr<Communicator> communicator;
  };
  CallbackScope() = default;

  std::mutex mutex_;
  std::vector<Part> parts_;  // constant but for `communicator`
  std::uint64_t children_ = 0;
};

}  // namespace taco::pg
