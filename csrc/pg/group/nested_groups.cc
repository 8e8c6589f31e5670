#include "pg/group/nested_groups.h"

#include <utility>

#include "base/mixed_bits.h"

namespace taco::pg {

NestedGroups::NestedGroups(std::shared_ptr<harp::Stack> stack, GroupOptions root)
    : stack_(std::move(stack)), root_(std::move(root)) {}

std::uint64_t NestedGroups::id_of(std::uint64_t of, std::uint64_t number) {
  return harp::group_id(harp::Service::kCollectives, mixed_bits(of ^ mixed_bits(number + 1)) | 1);
}

Result<std::shared_ptr<Communicator>> NestedGroups::open(std::uint64_t id, const Parent& parent,
                                                         const char* suffix,
                                                         std::optional<WindowMemory> window) {
  std::lock_guard lock(mutex_);
  if (closed_) {
    return Status(Code::kAborted,
                  "group '" + root_.name + "' was destroyed; no operation can start");
  }
  GroupOptions options = root_;
  options.id = id;
  options.parent = parent;
  options.name += suffix;
  options.window = window;
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

}  // namespace taco::pg
