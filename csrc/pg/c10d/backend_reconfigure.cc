// A group whose members change (succession.h), as torch asks for it.
#include <algorithm>
#include <utility>

#include "edge/errors.h"
#include "edge/signals.h"
#include "pg/c10d/backend.h"

namespace taco::pg {
namespace {

Reconfiguration reconfiguration_of(const ReconfigureOptions& opts) {
  Reconfiguration to;
  to.uuid = opts.uuid;
  std::visit([&](const auto& handles) { to.handles.assign(handles.begin(), handles.end()); },
             opts.handles);
  to.in_order = std::holds_alternative<std::vector<std::string>>(opts.handles);
  return to;
}

}  // namespace

std::string Backend::get_reconfigure_handle() const {
  std::optional<std::string> handle = life_.handle();
  if (!handle) {
    raise(Status(Code::kRendezvous, "group '" + options_->group_name +
                                        "' keeps its members: only a group that is made with "
                                        "enable_reconfigure=True can be reconfigured"));
  }
  return std::move(*handle);
}

// Operations of a group that has failed may still be on their way to their ends, for which nobody
// needs to wait.
void Backend::require_idle() {
  const std::shared_ptr<Generation> now = life_.current();
  if (!now || !now->communicator()->error().ok()) return;
  std::lock_guard lock(mutex_);
  int open = 0;
  std::uint64_t first = 0;
  for (const auto& weak : pending_) {
    const WorkStatePtr state = weak.lock();
    if (!state || state->operations_done()) continue;
    if (open++ == 0) first = state->operations.front()->sequence();
  }
  if (open == 0) return;
  raise(invalid("group '" + options_->group_name + "' cannot be reconfigured while " +
                std::to_string(open) + (open == 1 ? " operation runs" : " operations run") +
                ", the first with the sequence number " + std::to_string(first) +
                ": wait for its Work, or abort the group"));
}

c10::intrusive_ptr<c10d::Work> Backend::reconfigure(const ReconfigureOptions& opts) {
  (void)get_reconfigure_handle();
  require_idle();
  Reconfiguration to = reconfiguration_of(opts);
  to.timeout = to_duration(opts.timeout.value_or(options_->timeout));
  HearsSignals signals;
  Result<std::shared_ptr<Generation>> advanced = life_.advance(to);
  if (!advanced.ok()) signals.raise_if_interrupted();
  const std::shared_ptr<Generation> next = value_or_raise(std::move(advanced));
  next->set_timeout(to_duration(options_->timeout));
  hear_of_failures(*next);
  set_number(rank_, next->options().rank);
  set_number(size_, next->options().world);
  // Handlers that run while the last generation ends find, and leave, a whole group.
  signals.raise_if_interrupted();
  return work_of(std::make_shared<WorkState>(), {c10d::OpType::UNKNOWN, nullptr}, std::nullopt,
                 *next);
}

}  // namespace taco::pg
