// Says what every group is doing, in words: for a hang's report and for the signal that asks for
// it.
#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "harp/engine/engine_call.h"
#include "harp/engine/path_reports.h"
#include "pg/group/group.h"
#include "pg/group/live_groups.h"

namespace taco::pg {
namespace {

constexpr Duration kDumpLimit = kSecond / 2;
constexpr int kMaxListed = 64;

struct Live {
  std::mutex mutex;
  std::vector<Group*> groups;
};

Live& live() {
  static Live* const instance = new Live;  // groups may outlive static destruction
  return *instance;
}

std::string mebibytes(std::uint64_t bytes) {
  char text[48];
  if (bytes < (1 << 20)) {
    std::snprintf(text, sizeof text, "%llu bytes", static_cast<unsigned long long>(bytes));
  } else {
    std::snprintf(text, sizeof text, "%.1f MiB", static_cast<double>(bytes) / (1 << 20));
  }
  return text;
}

// They belong to no group: all that a process has use the same.
std::string dump_paths() {
  const harp::PathReports reports = harp::report_paths(monotonic_now() + kDumpLimit);
  std::string text, peer;
  for (const harp::PathReport& path : reports.paths) {
    if (text.empty() || path.peer != peer) text += "paths to " + path.peer + "\n";
    peer = path.peer;
    text += "  " + harp::describe(path) + "\n";
  }
  if (!reports.complete) text += "paths: the transport's engine does not answer\n";
  return text;
}

}  // namespace

void live_groups::add(Group& group) {
  std::lock_guard lock(live().mutex);
  live().groups.push_back(&group);
}

void live_groups::remove(Group& group) {
  std::lock_guard lock(live().mutex);
  std::erase(live().groups, &group);
}

void live_groups::for_each(const std::function<void(Group&)>& function) {
  std::lock_guard lock(live().mutex);
  for (Group* group : live().groups) function(*group);
}

std::string dump_all_groups() {
  std::string text;
  {
    std::lock_guard lock(live().mutex);
    for (const Group* group : live().groups) text += group->dump();
  }
  return (text.empty() ? "no groups\n" : text) + dump_paths();
}

std::string Group::dump() const {
  std::string text = "group '" + options_.name + "' rank " + std::to_string(options_.rank) +
                     " of " + std::to_string(options_.world) + ", sequence " +
                     std::to_string(sequence());
  if (const Status status = error(); !status.ok()) text += ", failed: " + status.message();
  text += "\n";
  if (options_.world == 1) return text;
  {
    std::lock_guard lock(mutex_);
    if (left_membership_) return text + "  destroyed\n";
  }
  auto body = std::make_shared<std::string>();  // the engine may come to it after we gave up
  const bool ran = call_on_engine(
      stack_->engine(), [this, body](harp::Transport&) { *body = dump_st(); },
      monotonic_now() + kDumpLimit);
  return text + (ran ? *body : "  the transport's engine does not answer\n");
}

std::string Group::dump_st() const {
  std::string text;
  const Time now = stack_->engine().transport().now_st();
  int listed = 0, open = 0;
  for (const OperationState& operation : operations_) {
    ++open;
    if (listed == kMaxListed) continue;
    ++listed;
    char seconds[32];
    std::snprintf(seconds, sizeof seconds, "%.3f s",
                  static_cast<double>(std::max<Duration>(now - operation.submitted, 0)) / kSecond);
    text += "  " + operation.describe() + ": " + mebibytes(operation.bytes_done) + " of " +
            mebibytes(operation.bytes) + " received, " + seconds + ", ";
    if (operation.execution != nullptr) {
      text += operation.execution->describe_progress();
    } else if (operation.message != nullptr) {
      text += point_to_point_.describe(operation);
    } else if (operation.one_sided != nullptr) {
      text += window_->describe(operation);
    } else {
      text += "waiting for its turn";
    }
    text += "\n";
  }
  if (open > listed) text += "  and " + std::to_string(open - listed) + " more\n";
  if (open == 0) text += "  nothing in flight\n";
  return text;
}

}  // namespace taco::pg
