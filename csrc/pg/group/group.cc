// Making and asking a group.
#include "pg/group/group.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/completion_thread.h"
#include "base/env.h"
#include "base/log.h"
#include "harp/engine/engine_call.h"
#include "pg/algorithms/list.h"
#include "pg/execution/staging.h"
#include "pg/group/live_groups.h"
#include "pg/group/striped_group.h"

namespace taco::pg {
namespace {

Status check(const harp::Stack* stack, const GroupOptions& options) {
  const auto world = static_cast<std::size_t>(options.world);
  if (options.world < 1 || options.rank < 0 || options.rank >= options.world) {
    return Status(Code::kInvalidArgument, "rank " + std::to_string(options.rank) +
                                              " of a world of " + std::to_string(options.world) +
                                              " does not exist");
  }
  if (options.world > 1 && stack == nullptr)
    return Status(Code::kInvalidArgument, "a group of several ranks needs a transport");
  if (options.world > 1 && options.peers.size() != world) {
    return Status(Code::kInvalidArgument, "group '" + options.name + "' has " +
                                              std::to_string(options.peers.size()) +
                                              " addresses for " + std::to_string(world) + " ranks");
  }
  if (!options.global_ranks.empty() && options.global_ranks.size() != world)
    return Status(Code::kInvalidArgument, "global_ranks must have one entry for each rank");
  return Status();
}

TwoDimensionalChoice choice_of(const Env& env) {
  using Use = TwoDimensionalChoice::Use;
  TwoDimensionalChoice choice;
  if (env.light_2d_all_reduce == "0") choice.use = Use::kNever;
  if (env.light_2d_all_reduce == "1") choice.use = Use::kWhereItFits;
  if (env.light_hierarchical_threshold >= 0)
    choice.max_bytes = static_cast<std::uint64_t>(env.light_hierarchical_threshold);
  return choice;
}

Result<Topology> topology_of(const GroupOptions& options) {
  std::vector<int> hosts = options.host_of_rank;
  if (hosts.empty()) hosts.assign(options.world, 0);
  Result<Topology> topology = Topology::make(std::move(hosts), options.host_gbits);
  if (!topology.ok() || options.intra_size == 0) return topology;
  return topology->grouped(options.intra_size);
}

Result<std::unique_ptr<Planner>> make_planner(const GroupOptions& options) {
  Result<Env> env = Env::get();
  if (!env.ok()) return env.status();
  Result<Topology> topology = topology_of(options);
  if (!topology.ok()) return topology.status();
  CostParameters parameters = options.costs;
  if (env->chunk_bytes > 0)
    parameters.max_chunk_bytes = static_cast<std::uint64_t>(env->chunk_bytes);
  return Planner::create(all_algorithms(), std::move(*topology), parameters, options.rank,
                         options.algorithm.empty() ? env->algorithm : options.algorithm,
                         choice_of(*env));
}

Result<std::shared_ptr<Group>> make_group(std::shared_ptr<harp::Stack> stack,
                                          GroupOptions options) {
  TACO_RETURN_IF_ERROR(check(stack.get(), options));
  Result<std::unique_ptr<Planner>> planner = make_planner(options);
  if (!planner.ok()) return planner.status();
  auto group = std::make_shared<Group>(std::move(stack), std::move(options), std::move(*planner));
  TACO_RETURN_IF_ERROR(group->enlist());
  return group;
}

}  // namespace

Result<std::shared_ptr<Communicator>> Communicator::create(
    std::shared_ptr<harp::Stack> stack, GroupOptions options,
    const std::vector<FurtherEngine>& further) {
  Result<std::shared_ptr<Group>> home = make_group(std::move(stack), options);
  if (!home.ok()) return home.status();
  if (further.empty() || options.world == 1) return std::shared_ptr<Communicator>(*home);
  std::vector<std::shared_ptr<Group>> groups = {*home};
  options.runs_parts = true;
  for (const FurtherEngine& engine : further) {
    options.peers = engine.peers;
    Result<std::shared_ptr<Group>> group = make_group(engine.stack, options);
    if (!group.ok()) return group.status();
    groups.push_back(std::move(group).value());
  }
  return std::shared_ptr<Communicator>(std::make_shared<StripedGroup>(std::move(groups)));
}

Group::Group(std::shared_ptr<harp::Stack> stack, GroupOptions options,
             std::unique_ptr<Planner> planner)
    : options_(std::move(options)),
      stack_(std::move(stack)),
      planner_(std::move(planner)),
      process_(getpid()),
      timeout_(options_.timeout),
      point_to_point_(*this, view_),
      barrier_(*this),
      roll_call_(*this),
      deadlines_(*this, options_.world),
      check_up_(*this),
      withdrawals_(*this),
      departures_(*this, options_.world),
      farewell_(*this) {
  view_.id = options_.id;
  view_.name = options_.name;
  view_.rank = options_.rank;
  view_.world = options_.world;
  view_.peers = &options_.peers;
  view_.gone.resize(options_.world);
  view_.arrived.assign(options_.world, 0);
  view_.sent.assign(options_.world, 0);
  incarnations_.assign(options_.world, 0);
  for (int rank = 0; rank < options_.world && options_.world > 1; ++rank) {
    if (rank == options_.rank) {
      incarnations_[rank] = stack_->incarnation();
      continue;
    }
    incarnations_[rank] = stack_->incarnation_of(options_.peers[rank]);
    rank_by_peer_.emplace_back(options_.peers[rank], rank);
  }
  std::sort(rank_by_peer_.begin(), rank_by_peer_.end());
  if (options_.window) window_.emplace(static_cast<WindowOwner&>(*this), view_, *options_.window);
}

Group::~Group() { (void)close(0); }

Status Group::enlist() {
  completion::add_user();
  Status status;
  if (options_.world > 1) {
    membership_ = Membership::attach(stack_);
    const bool ran = call_on_engine(
        stack_->engine(), [&](harp::Transport&) { status = membership_->add_st(*this); },
        monotonic_now() + kEngineLimit);
    if (!ran) status = Status(Code::kInternal, "the transport's engine does not run");
  }
  if (!options_.runs_parts) live_groups::add(*this);
  if (options_.world > 1) return status;
  live_groups::for_each([&](const Group& other) {
    if (const Status failure = other.error(); !failure.ok() && descends_from(other))
      fail_alone(failure);
  });
  return status;
}

void Group::fail_alone(const Status& why) {
  std::lock_guard lock(mutex_);
  if (error_.ok()) set_error(why);
}

void Group::set_error(const Status& why) {
  error_ = why;
  for (std::function<void()>& callback : std::exchange(on_failure_, {}))
    if (!closed_) completion::post(std::move(callback));
}

void Group::on_failure(std::function<void()> callback) {
  std::lock_guard lock(mutex_);
  if (error_.ok()) {
    on_failure_.push_back(std::move(callback));
  } else if (!closed_) {
    completion::post(std::move(callback));
  }
}

bool Group::descends_from(const Group& other) const {
  const Parent& of = options_.parent;
  return &other != this && (of.group == other.options_.id || of.root == other.options_.id);
}

void Group::abort(const Status& why) {
  const Status status = why.ok() ? Status(Code::kAborted, "the group was aborted") : why;
  if (options_.world == 1) {
    fail_alone(status);
    return live_groups::for_each([&](Group& other) {
      if (other.descends_from(*this)) other.fail_alone(status);
    });
  }
  fail_from(status, kEverything);
}

void Group::fail_from(const Status& why, std::uint64_t from) {
  {
    std::lock_guard lock(mutex_);
    if (left_membership_ || getpid() != process_) return;
  }
  call_on_engine(
      stack_->engine(), [this, why, from](harp::Transport&) { fail_st(why, from, true); },
      monotonic_now() + kEngineLimit);
}

void Group::join(std::vector<std::weak_ptr<Group>> others) {
  std::lock_guard lock(mutex_);
  others_ = std::move(others);
}

void Group::hear_others() {
  if (getpid() != process_) return;
  call_on_engine(
      stack_->engine(), [](harp::Transport&) {}, monotonic_now() + kEngineLimit);
}

Status Group::error() const {
  std::lock_guard lock(mutex_);
  return error_;
}

std::uint64_t Group::sequence() const {
  std::lock_guard lock(mutex_);
  return sequence_;
}

Cost Group::predict_average(std::uint64_t bytes, const std::shared_ptr<const Codec>& codec) const {
  return planner_->prediction(average_problem(bytes, codec));
}

Result<Cost> Group::predict(OperationSpec spec) const {
  TACO_RETURN_IF_ERROR(check(spec));
  if (!is_collective(spec.kind) || spec.stages != nullptr) {
    return Status(Code::kUnsupported, "how long this " + std::string(name_of(spec.kind)) +
                                          " would take cannot be told: the planner's model knows "
                                          "collectives of one stage");
  }
  if (options_.world == 1) return Cost();
  if (spec.equal_splits) spec.equal_splits = planner_->relies_on_equal_splits(spec.inputs[0].bytes);
  return Cost(planner_->prediction(problem_of(spec, is_in_place(spec, options_.rank))));
}

void Group::set_timeout(Duration timeout) { timeout_.store(timeout, std::memory_order_relaxed); }

Status Group::roll_call(std::uint64_t digest, Duration timeout) {
  {
    std::lock_guard lock(mutex_);
    if (closed_) return Status(Code::kAborted, "group '" + options_.name + "' was destroyed");
    if (options_.world == 1) return error_;
  }
  Status all = roll_call_.enter(stack_->engine(), digest, timeout);
  if (!all.ok()) reported_ = true;
  return all;
}

Status Group::monitored_barrier(Duration timeout, bool report_all) {
  {
    std::lock_guard lock(mutex_);
    if (closed_) return Status(Code::kAborted, "group '" + options_.name + "' was destroyed");
    if (options_.world == 1) return error_;
  }
  const Duration limit = timeout >= 0 ? timeout : timeout_.load(std::memory_order_relaxed);
  return barrier_.wait(stack_->engine(), limit, report_all);
}

int Group::rank_of(harp::PeerId peer) const {
  auto found = std::lower_bound(rank_by_peer_.begin(), rank_by_peer_.end(), std::pair{peer, -1});
  return found != rank_by_peer_.end() && found->first == peer ? found->second : -1;
}

int Group::rank_of_incarnation(std::uint64_t incarnation) const {
  auto found = std::find(incarnations_.begin(), incarnations_.end(), incarnation);
  return found == incarnations_.end() ? -1 : static_cast<int>(found - incarnations_.begin());
}

std::string Group::describe_rank(int rank) const {
  std::string text = "rank " + std::to_string(rank);
  if (!options_.global_ranks.empty() && options_.global_ranks[rank] != rank)
    text += " (global rank " + std::to_string(options_.global_ranks[rank]) + ")";
  return text;
}

}  // namespace taco::pg
