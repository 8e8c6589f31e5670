#include "pg/controller/controller.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/names.h"
#include "base/thread.h"
#include "pg/controller/adasum.h"
#include "pg/controller/agreement.h"
#include "pg/controller/controller_core.h"

namespace taco::pg::controller {
namespace {

// Groups of controllers among those that are nested in a program's group, and among a controller's
// own that of its summons: far from the numbers of its sets.
constexpr std::uint64_t kControllers = 0xc0'47'01'1e'00'00'00'00;
constexpr std::uint64_t kSummonsGroup = ~std::uint64_t{0};

bool moves_data(Kind kind) {
  return kind != Kind::kBarrier && kind != Kind::kJoin && kind != Kind::kAddSet &&
         kind != Kind::kRemoveSet;
}

Status refuse_submission(const Request& request, const std::string& why) {
  return invalid(described(request) + ": " + why);
}

// The arithmetic of a request: whether the kernels have it.
Status check_arithmetic(const Request& request) {
  if (!reduces(request.kind)) return Status();
  if (request.kind == Kind::kAdasum) {
    if (Adasum::supports(request.dtype)) return Status();
    return refuse_submission(request, std::string("Adasum is for floating types, not for ") +
                                          kernels::name_of(request.dtype));
  }
  const bool scales = request.prescale != 1.0 || request.postscale != 1.0;
  if (scales && request.dtype == kernels::Dtype::kBool)
    return refuse_submission(request, "a bool cannot be multiplied by a factor");
  return kernels::check_supported(request.op, request.dtype);
}

}  // namespace

Status left_in_parent() {
  return Status(Code::kAborted,
                "this process was forked from one that has a controller, which stayed there: make "
                "one here");
}

std::uint64_t family_of(std::uint64_t group, std::uint64_t number) {
  return NestedGroups::id_of(NestedGroups::id_of(group, kControllers), number);
}

Result<std::unique_ptr<Controller>> Controller::start(std::shared_ptr<NestedGroups> groups,
                                                      ControllerOptions options) {
  if (options.world < 1 || options.rank < 0 || options.rank >= options.world) {
    return invalid("a controller of rank " + std::to_string(options.rank) + " of " +
                   std::to_string(options.world) + ": ranks are from 0 up to their number");
  }
  if (options.cycle_time < 0 || options.stall_warning < 0 || options.stall_shutdown < 0 ||
      options.timeout < 0)
    return invalid("a controller's times may not be below zero");
  auto core = std::make_unique<ControllerCore>(std::move(groups), options);
  TACO_RETURN_IF_ERROR(core->open());
  return std::unique_ptr<Controller>(std::move(core));
}

ControllerCore::ControllerCore(std::shared_ptr<NestedGroups> groups, ControllerOptions options)
    : groups_(std::move(groups)),
      options_(options),
      family_(family_of(options.group, groups_->next_family())),
      inbox_(std::make_shared<Inbox>(options.world > 1 ? groups_->stack() : nullptr)) {}

Status ControllerCore::open() {
  std::vector<int> all(static_cast<std::size_t>(options_.world));
  std::iota(all.begin(), all.end(), 0);
  std::shared_ptr<Communicator> calls;
  if (options_.world > 1) {
    auto opened = groups_->open(NestedGroups::id_of(family_, kSummonsGroup),
                                groups_->child_of(options_.group), "/controller");
    if (!opened.ok()) return opened.status();
    calls = std::move(opened).value();
  }
  summons_.emplace(static_cast<Summons::Owner&>(*this), inbox_, std::move(calls));
  TACO_RETURN_IF_ERROR(open_set(0, all));
  fronts_[0] = {.ranks = all, .place = options_.rank};
  summons_->listen();
  Result<std::thread> thread = start_thread("taco-controller", [this] { run(); });
  if (!thread.ok()) {
    summons_->stop(thread.status());
    for (const auto& [id, set] : sets_) set->close(0);
    return thread.status();
  }
  thread_ = std::make_unique<std::thread>(std::move(thread).value());
  return Status();
}

std::string ControllerCore::known_sets() const {
  std::string text;
  for (const auto& [id, front] : fronts_) append_name(text, std::to_string(id));
  return text;
}

Status ControllerCore::check_set(int set) const {
  const auto found = fronts_.find(set);
  if (found == fronts_.end()) {
    return invalid("process set " + std::to_string(set) +
                   " is not known; there are: " + known_sets());
  }
  if (found->second.place >= 0) return Status();
  return invalid("rank " + std::to_string(options_.rank) + " is not of process set " +
                 std::to_string(set) + ", which has " + named_ranks(found->second.ranks));
}

Status ControllerCore::check(const Request& request, const Front& front, bool has_tensors) const {
  TACO_RETURN_IF_ERROR(check_request(request, static_cast<int>(front.ranks.size())));
  TACO_RETURN_IF_ERROR(check_arithmetic(request));
  if (moves_data(request.kind) && (!has_tensors || request.shapes.empty()))
    return refuse_submission(request, "it has no tensor");
  const bool about_sets = request.kind == Kind::kAddSet || request.kind == Kind::kRemoveSet;
  if (about_sets && &front != &fronts_.at(0)) {
    return refuse_submission(request, "process sets are changed by all ranks, in process set 0");
  }
  if (request.kind == Kind::kRemoveSet && (request.root == 0 || !fronts_.contains(request.root))) {
    return refuse_submission(request, request.root == 0
                                          ? "the global process set cannot be removed"
                                          : "process set " + std::to_string(request.root) +
                                                " is not known; there are: " + known_sets());
  }
  if (front.joined) {
    return refuse_submission(request,
                             "this rank has joined, and gives zeros until all have: wait for "
                             "join() first");
  }
  if (request.kind == Kind::kJoin || !front.names.contains(request.name)) return Status();
  return refuse_submission(request,
                           "an operation of this name is pending on this rank; wait for it, or "
                           "give each a name of its own");
}

void ControllerCore::forget(const PendingRequest& pending) {
  const auto front = fronts_.find(pending.set);
  if (front == fronts_.end()) return;
  if (pending.request.kind == Kind::kJoin) {
    front->second.joined = false;
  } else {
    front->second.names.erase(pending.request.name);
  }
}

Result<std::shared_ptr<Submission>> ControllerCore::submit(int set, Request request,
                                                           std::shared_ptr<Tensors> tensors) {
  if (is_copy()) return left_in_parent();
  std::ranges::sort(request.ranks);
  std::shared_ptr<PendingRequest> pending;
  bool wakes = false;
  {
    std::lock_guard lock(mutex_);
    if (!refusal_.ok()) return refusal_;
    TACO_RETURN_IF_ERROR(check_set(set));
    Front& front = fronts_.at(set);
    TACO_RETURN_IF_ERROR(check(request, front, tensors != nullptr));
    front.joined = request.kind == Kind::kJoin;
    if (!front.joined) front.names.insert(request.name);
    pending = std::make_shared<PendingRequest>(set, std::move(request), std::move(tensors),
                                               monotonic_now());
    wakes = submitted_.empty();  // whoever left the first of several wakes the thread for all
    submitted_.push_back(pending);
  }
  if (wakes) inbox_->wake();
  return std::shared_ptr<Submission>(std::move(pending));
}

Result<std::vector<int>> ControllerCore::ranks_of(int set) const {
  if (is_copy()) return left_in_parent();
  std::lock_guard lock(mutex_);
  const auto found = fronts_.find(set);
  return found == fronts_.end() ? std::vector<int>() : found->second.ranks;
}

Result<std::vector<int>> ControllerCore::sets() const {
  if (is_copy()) return left_in_parent();
  std::lock_guard lock(mutex_);
  std::vector<int> ids;
  ids.reserve(fronts_.size());
  for (const auto& [id, front] : fronts_) ids.push_back(id);
  return ids;
}

Status ControllerCore::set_listener(std::shared_ptr<Listener> listener) {
  if (is_copy()) return left_in_parent();
  {
    std::lock_guard lock(mutex_);
    listener_ = std::move(listener);
  }
  inbox_->wake();
  return Status();
}

void ControllerCore::shutdown() {
  if (is_copy()) return;  // the thread is the parent's
  {
    std::lock_guard lock(mutex_);
    shutdown_asked_ = true;
  }
  inbox_->wake();
  std::lock_guard lock(joining_);
  if (thread_ == nullptr) return;
  thread_->join();
  thread_.reset();
}

}  // namespace taco::pg::controller
