#include "pg/c10d/callback_scope.h"

#include <algorithm>

#include "pg/execution/completion_thread.h"

namespace taco::pg {
namespace {

constexpr Duration kLinger = kSecond;

thread_local CallbackScope* t_current = nullptr;

// splitmix64's finaliser: the same on all ranks, and far apart for neighbouring operations.
std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

}  // namespace

NestedGroups::NestedGroups(std::shared_ptr<harp::Stack> stack, GroupOptions root)
    : stack_(std::move(stack)), root_(std::move(root)) {}

std::uint64_t NestedGroups::id_of(std::uint64_t group, std::uint64_t sequence) {
  return mix(group ^ mix(sequence + 1)) | 1;
}

Result<std::shared_ptr<Communicator>> NestedGroups::open(std::uint64_t id, const Parent& parent,
                                                         const char* suffix) {
  std::lock_guard lock(mutex_);
  if (closed_) {
    return Status(Code::kAborted,
                  "group '" + root_.name + "' was destroyed; no operation can start");
  }
  GroupOptions options = root_;
  options.id = id;
  options.parent = parent;
  options.name += suffix;
  Result<std::shared_ptr<Communicator>> made = Communicator::create(stack_, std::move(options));
  if (!made.ok()) return made;
  std::erase_if(open_, [](const auto& weak) { return weak.expired(); });
  open_.push_back(*made);
  return made;
}

std::vector<std::shared_ptr<Communicator>> NestedGroups::live() {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Communicator>> all;
  for (const auto& weak : open_) {
    if (auto communicator = weak.lock()) all.push_back(std::move(communicator));
  }
  return all;
}

Status NestedGroups::close(Duration linger) {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    stack_.reset();
  }
  Status unreported;
  for (const auto& communicator : live()) {
    if (Status status = communicator->close(linger); unreported.ok()) {
      unreported = std::move(status);
    }
  }
  return unreported;
}

void NestedGroups::set_timeout(Duration timeout) {
  {
    std::lock_guard lock(mutex_);
    root_.timeout = timeout;
  }
  for (const auto& communicator : live()) communicator->set_timeout(timeout);
}

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
  const std::uint64_t place = mix(~++children_);
  for (const Part& part : parts_) {
    made->parts_.push_back({part.nested, mix(part.id ^ place) | 1, part.parent, nullptr});
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
        known->id = mix(known->id + part.id) | 1;
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
