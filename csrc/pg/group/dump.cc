// Says what every group is doing, in words: for a hang's report and for the signal that asks for
// it.
#include <algorithm>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/per_process.h"
#include "harp/engine/engine_call.h"
#include "harp/engine/path_reports.h"
#include "pg/group/group.h"
#include "pg/group/live_groups.h"

namespace taco::pg {
namespace {

constexpr Duration kDumpLimit = kSecond / 2;
constexpr std::size_t kMaxListed = 64;

struct Live {
  std::mutex mutex;
  std::vector<Group*> groups;
};

constinit PerProcess<Live> live;

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

std::vector<GroupReport> report_all_groups() {
  std::vector<GroupReport> reports;
  std::lock_guard lock(live().mutex);
  for (const Group* group : live().groups) reports.push_back(group->report());
  return reports;
}

std::string dump_all_groups() {
  std::string text;
  for (const GroupReport& report : report_all_groups()) text += describe(report);
  return (text.empty() ? "no groups\n" : text) + dump_paths();
}

std::string describe(const std::vector<OpenOperation>& open) {
  std::string text;
  for (std::size_t i = 0; i < open.size() && i < kMaxListed; ++i)
    text += "  " + open[i].text + "\n";
  if (open.size() > kMaxListed)
    text += "  and " + std::to_string(open.size() - kMaxListed) + " more\n";
  return open.empty() ? "  nothing in flight\n" : text;
}

std::string describe(const GroupReport& report) {
  std::string text = "group '" + report.name + "' rank " + std::to_string(report.rank) + " of " +
                     std::to_string(report.world) + ", sequence " + std::to_string(report.sequence);
  if (!report.error.ok()) text += ", failed: " + report.error.message();
  text += "\n";
  if (report.destroyed) return text + "  destroyed\n";
  if (!report.open) return text + "  the transport's engine does not answer\n";
  return report.world == 1 ? text : text + describe(*report.open);
}

GroupReport Group::report() const {
  GroupReport report;
  report.name = options_.name;
  report.rank = options_.rank;
  report.world = options_.world;
  report.global_ranks = options_.global_ranks;
  report.sequence = sequence();
  report.error = error();
  report.open.emplace();
  if (options_.world == 1) return report;
  std::vector<std::weak_ptr<Group>> others;
  {
    std::lock_guard lock(mutex_);
    report.destroyed = left_membership_;
    if (report.destroyed) return report;
    others = others_;
  }
  report.open = open_operations();
  for (const std::weak_ptr<Group>& other : others) {
    const std::shared_ptr<Group> group = other.lock();
    if (group == nullptr || !report.open) continue;
    const auto parts = group->open_operations();
    if (parts) {
      report.open->insert(report.open->end(), parts->begin(), parts->end());
    } else {
      report.open.reset();
    }
  }
  return report;
}

// None: the engine does not answer.
std::optional<std::vector<OpenOperation>> Group::open_operations() const {
  auto open = std::make_shared<std::vector<OpenOperation>>();  // may be filled after we gave up
  const bool ran = call_on_engine(
      stack_->engine(), [this, open](harp::Transport&) { *open = open_operations_st(); },
      monotonic_now() + kDumpLimit);
  if (!ran) return std::nullopt;
  return std::move(*open);
}

std::vector<OpenOperation> Group::open_operations_st() const {
  std::vector<OpenOperation> open;
  const Time now = stack_->engine().transport().now_st();
  for (const OperationState& operation : operations_) {
    char seconds[32];
    std::snprintf(seconds, sizeof seconds, "%.3f s",
                  static_cast<double>(std::max<Duration>(now - operation.submitted, 0)) / kSecond);
    const Part& part = operation.spec.part;
    std::string text = operation.describe();
    if (part.count > 1) {
      text += ", part " + std::to_string(part.index + 1) + " of " + std::to_string(part.count) +
              " by engines of their own";
    }
    text += ": " + mebibytes(operation.bytes_done) + " of " + mebibytes(operation.bytes) +
            " received, " + seconds + ", ";
    if (operation.execution != nullptr) {
      text += operation.execution->describe_progress();
    } else if (operation.message != nullptr) {
      text += point_to_point_.describe(operation);
    } else if (operation.one_sided != nullptr) {
      text += window_->describe(operation);
    } else {
      text += "waiting for its turn";
    }
    open.push_back({operation.is_point_to_point() ? 0 : operation.sequence(), std::move(text)});
  }
  return open;
}

}  // namespace taco::pg
