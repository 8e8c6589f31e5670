// Calls from rank to rank of a controller: "come to a round of this process set". A rank with
// nothing pending takes part in no round, and hears of nothing that the others wait for; a call
// wakes it. Carried by sends and receives of a group of all ranks, which nobody else uses; its
// receive from any rank is also how this rank learns at once that another is lost. The controller's
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "pg/communicator.h"
#include "pg/controller/inbox.h"

namespace taco::pg::controller {

class Summons {
 public:
  enum class What : std::uint32_t {
    kTellWaiting,  // in which all ranks tell what they wait for
    kEnd,          // which is the last
  };
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void summoned(int set, What what) = 0;
    virtual void summons_failed(const Status& why) = 0;
  };

  // `group` is null where there is no other rank.
  Summons(Owner& owner, std::shared_ptr<Inbox> inbox, std::shared_ptr<Communicator> group)
      : owner_(owner), inbox_(std::move(inbox)), group_(std::move(group)) {}
  Summons(const Summons&) = delete;
  Summons& operator=(const Summons&) = delete;

  void listen();
  // `ranks`: of all; this one is left out.
  void call(const std::vector<int>& ranks, int set, What what);
  // Nothing is heard afterwards.
  void stop(const Status& why);

 private:
  struct Message;
  void heard(const std::shared_ptr<Message>& message, const Status& status);

  Owner& owner_;
  const std::shared_ptr<Inbox> inbox_;
  const std::shared_ptr<Communicator> group_;
  bool stopped_ = false;
};

}  // namespace taco::pg::controller
