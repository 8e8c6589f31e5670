// One user of the process's Stack (harp/engine/held_stacks.h), or of all that the process has:
// gives them back in the end, which may take a second. Any thread, without the GIL.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "harp/engine/held_stacks.h"

namespace taco::edge {

class StackUse {
 public:
  enum class Engines { kOwn, kAll };
  // `master`: the host of the store, by whose route interfaces are chosen; "" if there is none.
  static Result<std::shared_ptr<StackUse>> take(const std::string& master,
                                                const harp::Member& member,
                                                Engines engines = Engines::kOwn);
  StackUse(harp::HeldStack held, harp::Member member)
      : stack_(std::move(held.stack)),
        member_(std::move(member)),
        shares_process_(held.shares_process) {}
  ~StackUse() {
    for (const auto& stack : further_) harp::drop_stack(stack, member_);
    harp::drop_stack(stack_, member_);
  }
  StackUse(const StackUse&) = delete;

  const std::shared_ptr<harp::Stack>& stack() const { return stack_; }
  // Those of the other engines, the group's next one first.
  const std::vector<std::shared_ptr<harp::Stack>>& further() const { return further_; }
  bool shares_process() const { return shares_process_; }  // with another rank of its group

 private:
  const std::shared_ptr<harp::Stack> stack_;
  const harp::Member member_;
  const bool shares_process_;
  std::vector<std::shared_ptr<harp::Stack>> further_;  // constant once taken
};

}  // namespace taco::edge
