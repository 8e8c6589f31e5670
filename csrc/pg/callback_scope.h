// Collectives that a future's callback starts. Ranks run callbacks when their operation is done,
// each at its own time, so the group's one counter would number nested operations differently on
// each rank. They therefore run on a communicator of their own, named after the operation whose
// callback starts them: within one callback chain the order is the program's, hence the same on all
// ranks. (torch's PowerSGD hook does this with several buckets under way.)
//
// A scope belongs to one operation and is shared by the futures of its chain. Any thread.
#pragma once

#include <memory>
#include <mutex>

#include "pg/communicator.h"

namespace taco::pg {

// The communicators that scopes of one group have open, so that the group can end them.
class NestedGroups {
 public:
  NestedGroups(std::shared_ptr<harp::Stack> stack, GroupOptions parent);
  Result<std::shared_ptr<Communicator>> open(std::uint64_t id);
  void abort(const Status& why);
  void close(Duration linger);  // idempotent; open() fails afterwards
  void set_timeout(Duration timeout);

 private:
  std::vector<std::shared_ptr<Communicator>> live();

  std::mutex mutex_;
  std::shared_ptr<harp::Stack> stack_;
  GroupOptions parent_;
  bool closed_ = false;
  std::vector<std::weak_ptr<Communicator>> open_;
};

class CallbackScope {
 public:
  // `group` and `sequence` name the operation.
  CallbackScope(std::shared_ptr<NestedGroups> nested, std::uint64_t group, std::uint64_t sequence);
  ~CallbackScope();  // does not block: the communicator is closed on the completion thread
  CallbackScope(const CallbackScope&) = delete;

  bool belongs_to(const NestedGroups& nested) const { return nested_.get() == &nested; }
  Result<std::shared_ptr<Communicator>> communicator();  // made when it is first needed

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
  std::shared_ptr<NestedGroups> nested_;
  std::uint64_t id_;
  std::mutex mutex_;
  std::shared_ptr<Communicator> communicator_;
};

}  // namespace taco::pg
