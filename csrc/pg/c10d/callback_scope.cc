#include "pg/c10d/callback_scope.h"

#include <algorithm>

#include "base/completion_thread.h"

namespace taco::pg {
namespace {

constexpr Duration kLinger = kSecond;

thread_local CallbackScope* t_current = nullptr;

}  // namespace

CallbackScope::CallbackScope(std::shared_ptr<NestedGroups> nested, std::uint64_t group,
                             std::uint64_t sequence) {
  const Parent parent = nested->child_of(group);
  parts_.push_back({std::move(nested), NestedGroups::id_of(group, sequence), parent, nullptr});
}

CallbackScope::~CallbackScope() {
  for (Part& part : parts_) {
    if (!part.communicator) continue;
    completion::post(
        [communicator = std::move(part.communicator)] { communicator->close_when_idle(kLinger); });
  }
}

std::shared_ptr<CallbackScope> CallbackScope::child() {
  std::shared_ptr<CallbackScope> made(new CallbackScope);
  std::lock_guard lock(mutex_);
  const std::uint64_t place = ~++children_;  // far from operations' numbers
  for (const Part& part : parts_) {
    made->parts_.push_back(
        {part.nested, NestedGroups::id_of(part.id, place), part.parent, nullptr});
  }
  return made;
}

std::shared_ptr<CallbackScope> CallbackScope::join(
    const std::vector<std::shared_ptr<CallbackScope>>& scopes) {
  std::shared_ptr<CallbackScope> made(new CallbackScope);
  for (const auto& scope : scopes) {
    const std::shared_ptr<CallbackScope> child = scope->child();
    for (const Part& part : child->parts_) {
      const auto known = std::find_if(made->parts_.begin(), made->parts_.end(),
                                      [&](const Part& one) { return one.nested == part.nested; });
      if (known == made->parts_.end()) {
        made->parts_.push_back({part.nested, part.id, part.parent, nullptr});
      } else {
        known->id = NestedGroups::id_of(known->id, part.id);
        if (known->parent.group != part.parent.group)
          known->parent = part.nested->child_of(part.parent.root);
      }
    }
  }
  return made;
}

bool CallbackScope::belongs_to(const NestedGroups& nested) const {
  return std::any_of(parts_.begin(), parts_.end(),
                     [&](const Part& part) { return part.nested.get() == &nested; });
}

Result<std::shared_ptr<Communicator>> CallbackScope::communicator(const NestedGroups& nested) {
  std::lock_guard lock(mutex_);
  for (Part& part : parts_) {
    if (part.nested.get() != &nested) continue;
    if (!part.communicator) {
      Result<std::shared_ptr<Communicator>> made =
          part.nested->open(part.id, part.parent, "/callback");
      if (!made.ok()) return made;
      part.communicator = *made;
    }
    return part.communicator;
  }
  return Status(Code::kInternal, "the callback's operation belongs to another group");
}

CallbackScope* CallbackScope::current() { return t_current; }

CallbackScope::Entry::Entry(CallbackScope* scope) : previous_(t_current) { t_current = scope; }

CallbackScope::Entry::~Entry() { t_current = previous_; }

}  // namespace taco::pg
