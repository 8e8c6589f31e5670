#include "pg/callback_scope.h"

#include "pg/completion_thread.h"

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

NestedGroups::NestedGroups(std::shared_ptr<harp::Stack> stack, GroupOptions parent)
    : stack_(std::move(stack)), parent_(std::move(parent)) {}

Result<std::shared_ptr<Communicator>> NestedGroups::open(std::uint64_t id) {
  std::lock_guard lock(mutex_);
  if (closed_) {
    return Status(Code::kAborted,
                  "group '" + parent_.name + "' was destroyed; no operation can start");
  }
  GroupOptions options = parent_;
  options.id = id;
  options.name += "/callback";
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

void NestedGroups::abort(const Status& why) {
  for (const auto& communicator : live()) communicator->abort(why);
}

void NestedGroups::close(Duration linger) {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    stack_.reset();
  }
  for (const auto& communicator : live()) communicator->close(linger);
}

void NestedGroups::set_timeout(Duration timeout) {
  {
    std::lock_guard lock(mutex_);
    parent_.timeout = timeout;
  }
  for (const auto& communicator : live()) communicator->set_timeout(timeout);
}

CallbackScope::CallbackScope(std::shared_ptr<NestedGroups> nested, std::uint64_t group,
                             std::uint64_t sequence)
    : nested_(std::move(nested)), id_(mix(group ^ mix(sequence + 1)) | 1) {}

CallbackScope::~CallbackScope() {
  if (!communicator_) return;
  completion::post([communicator = std::move(communicator_)] { communicator->close(kLinger); });
}

Result<std::shared_ptr<Communicator>> CallbackScope::communicator() {
  std::lock_guard lock(mutex_);
  if (!communicator_) {
    Result<std::shared_ptr<Communicator>> made = nested_->open(id_);
    if (!made.ok()) return made;
    communicator_ = *made;
  }
  return communicator_;
}

CallbackScope* CallbackScope::current() { return t_current; }

CallbackScope::Entry::Entry(CallbackScope* scope) : previous_(t_current) { t_current = scope; }

CallbackScope::Entry::~Entry() { t_current = previous_; }

}  // namespace taco::pg
