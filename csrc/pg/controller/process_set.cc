#include "pg/controller/process_set.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

namespace taco::pg::controller {
namespace {

// Requests that have been agreed on stay in a list of those that wait until they are so many.
constexpr std::size_t kFewAgreed = 1024;

// A set's place among the numbers of its controller's groups.
std::uint64_t group_of_set(const ProcessSet::Place& place, bool is_data) {
  const auto id = static_cast<std::uint64_t>(place.id);
  return NestedGroups::id_of(place.family, 2 * id + (is_data ? 1 : 0));
}

int place_among(const std::vector<int>& ranks, int rank) {
  return static_cast<int>(std::ranges::lower_bound(ranks, rank) - ranks.begin());
}

template <class T>
Piece memory_of(std::vector<T>& values) {
  return {reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(T)};
}

// An all_gather of one value a rank, in place.
template <class T>
OperationSpec gather_of(std::vector<T>& values, int rank, kernels::Dtype dtype) {
  OperationSpec spec{.kind = pg::Kind::kAllGather, .dtype = dtype};
  for (T& value : values) {
    spec.outputs.push_back({reinterpret_cast<std::byte*>(&value), sizeof value});
  }
  spec.inputs = {spec.outputs[static_cast<std::size_t>(rank)]};
  return spec;
}

}  // namespace

Result<std::unique_ptr<ProcessSet>> ProcessSet::open(Owner& owner, std::shared_ptr<Inbox> inbox,
                                                     NestedGroups& groups, Place place,
                                                     const ControllerOptions& options) {
  const Parent parent = groups.child_of(options.group);
  const bool is_whole = static_cast<int>(place.ranks.size()) == options.world;
  const std::span<const int> members = is_whole ? std::span<const int>() : place.ranks;
  const std::string name = "/process set " + std::to_string(place.id);
  auto rounds = groups.open(group_of_set(place, false), parent, name + " rounds", {}, members);
  if (!rounds.ok()) return rounds.status();
  auto data = groups.open(group_of_set(place, true), parent, name, {}, members);
  if (!data.ok()) return data.status();
  return std::make_unique<ProcessSet>(owner, std::move(inbox), std::move(place), options,
                                      std::move(rounds).value(), std::move(data).value());
}

ProcessSet::ProcessSet(Owner& owner, std::shared_ptr<Inbox> inbox, Place place,
                       const ControllerOptions& options, std::shared_ptr<Communicator> rounds,
                       std::shared_ptr<Communicator> data)
    : owner_(owner),
      inbox_(std::move(inbox)),
      place_(std::move(place)),
      options_(options),
      rank_(place_among(place_.ranks, options.rank)),
      world_(static_cast<int>(place_.ranks.size())),
      rounds_(std::move(rounds)),
      data_(std::move(data)),
      negotiation_({.rank = rank_,
                    .world = world_,
                    .fusion_bytes = options.fusion_bytes,
                    .cache_slots = options.cache_slots}),
      runner_(*this, place_.id, inbox_, data_, options.fusion_bytes) {}

void ProcessSet::submit(const PendingPtr& pending) {
  if (!ended_.ok()) {
    return owner_.request_ended(pending,
                                {.status = ended_.with_prefix(pending->describe() + ": ")});
  }
  if (const Status refused = negotiation_.submit(pending->request); !refused.ok()) {
    return owner_.request_ended(pending, {.status = refused});
  }
  if (Listener* const hears = listener()) {
    hears->negotiating(id(), pending->request, monotonic_now());
  }
  if (pending->request.kind == Kind::kJoin) {
    join_ = pending;
  } else {
    pending_.emplace(pending->request.name, pending);
  }
  order_.push_back(pending);
  fresh_ = true;
  if (order_.size() < 2 * pending_.size() + kFewAgreed) return;
  std::erase_if(order_, [](const PendingPtr& each) { return each->agreed; });
}

// The flag is raised here, and not by who calls: that one may sit in a round that began without it.
void ProcessSet::come(Summons::What what) {
  if (what == Summons::What::kEnd) return leave(false);
  summoned_ = true;
  negotiation_.raise(Negotiation::Flag::kTellWaiting);
}

void ProcessSet::leave(bool asks) {
  leaving_ = true;
  asks_ = asks_ || asks;
}

bool ProcessSet::is_due(Time now) const {
  if (leaving_ || summoned_) return true;
  if (!negotiation_.wants_round()) return false;
  return fresh_ || brought_ || now >= next_round_;
}

Time ProcessSet::step(Time now) {
  if (phase_ == Phase::kOver || phase_ == Phase::kFailed) return kNever;
  if (phase_ == Phase::kIdle && is_due(now)) begin_round(now);
  Time next = look_for_stalls(now);
  if (phase_ == Phase::kIdle && negotiation_.wants_round()) next = std::min(next, next_round_);
  return next;
}

void ProcessSet::begin_round(Time now) {
  fresh_ = brought_ = summoned_ = false;
  if (leaving_) negotiation_.raise(Negotiation::Flag::kShutdown);
  if (Listener* const hears = listener()) hears->cycle(now);
  bits_ = negotiation_.bits();
  OperationSpec spec{
      .kind = pg::Kind::kAllReduce, .dtype = kernels::Dtype::kI64, .op = kernels::ReduceOp::kBand};
  spec.inputs = spec.outputs = {memory_of(bits_)};
  start(std::move(spec), Phase::kBits, &ProcessSet::bits_combined);
}

// An operation of a round: it waits for the others as long as they live, and this thread for it.
void ProcessSet::start(OperationSpec spec, Phase phase, Handler done) {
  phase_ = phase;
  open_ = true;
  spec.timeout = kNever;
  spec.caller_will_wait = true;
  spec.ended_st = [this, done, inbox = inbox_](const Status& status, Duration) {
    inbox->post([this, done, status] { operation_ended(status, done); });
  };
  const Result<OperationPtr> started = rounds_->start(std::move(spec));
  if (started.ok()) return;
  open_ = false;
  fail(started.status());
}

void ProcessSet::operation_ended(const Status& status, Handler done) {
  open_ = false;
  if (!status.ok()) return fail(status);
  if (phase_ != Phase::kFailed) (this->*done)();
}

void ProcessSet::bits_combined() {
  if (!negotiation_.words_follow(bits_)) return finish_round();
  words_ = negotiation_.words();
  sizes_.assign(static_cast<std::size_t>(world_), 0);
  sizes_[static_cast<std::size_t>(rank_)] = static_cast<std::int64_t>(words_.size());
  start(gather_of(sizes_, rank_, kernels::Dtype::kI64), Phase::kSizes, &ProcessSet::sizes_gathered);
}

void ProcessSet::sizes_gathered() {
  if (const Status status = negotiation_.check_sizes(sizes_); !status.ok()) return fail(status);
  OperationSpec spec{.kind = pg::Kind::kAllGather, .dtype = kernels::Dtype::kU8};
  heard_.resize(sizes_.size());
  for (std::size_t rank = 0; rank < sizes_.size(); ++rank) {
    heard_[rank].resize(static_cast<std::size_t>(sizes_[rank]));
    spec.outputs.push_back(
        {reinterpret_cast<std::byte*>(heard_[rank].data()), heard_[rank].size()});
  }
  spec.inputs = {{reinterpret_cast<std::byte*>(words_.data()), words_.size()}};
  start(std::move(spec), Phase::kWords, &ProcessSet::words_gathered);
}

void ProcessSet::words_gathered() {
  const std::vector<std::string_view> words(heard_.begin(), heard_.end());
  if (const Status status = negotiation_.hear(words); !status.ok()) return fail(status);
  finish_round();
}

void ProcessSet::finish_round() {
  phase_ = Phase::kIdle;
  std::vector<Response> responses = negotiation_.responses();
  brought_ = !responses.empty();
  const Time now = monotonic_now();
  next_round_ = now + options_.cycle_time;
  last_round_ = negotiation_.shutdown_asked();
  for (std::size_t i = 0; i < responses.size(); ++i) {
    carry_out(std::move(responses[i]), !last_round_ && i + 1 == responses.size());
  }
  if (phase_ == Phase::kFailed) return;
  hear_of_missing(now);
  if (last_round_) gather_askers();
}

// After the last round, all tell whether their programs have asked for it.
void ProcessSet::gather_askers() {
  asked_.assign(static_cast<std::size_t>(world_), 0);
  asked_[static_cast<std::size_t>(rank_)] = asks_ ? 1 : 0;
  start(gather_of(asked_, rank_, kernels::Dtype::kU8), Phase::kAskers,
        &ProcessSet::askers_gathered);
}

void ProcessSet::askers_gathered() {
  phase_ = Phase::kOver;
  for (std::size_t rank = 0; rank < asked_.size(); ++rank) {
    if (asked_[rank] != 0) askers_.push_back(place_.ranks[rank]);
  }
}

// This rank's, or null where it has joined.
PendingPtr ProcessSet::take(const Request& request) {
  PendingPtr own;
  if (request.kind == Kind::kJoin) {
    own = std::move(join_);
  } else if (auto found = pending_.extract(request.name); !found.empty()) {
    own = std::move(found.mapped());
  }
  if (own != nullptr) own->agreed = true;
  return own;
}

void ProcessSet::carry_out(Response response, bool is_last) {
  std::vector<PendingPtr> pending;
  pending.reserve(response.requests.size());
  for (const Request& request : response.requests) pending.push_back(take(request));
  if (Listener* const hears = listener()) hears->agreed(id(), response, monotonic_now());
  const Request& first = response.requests.front();
  Outcome outcome{.status = response.error};
  if (response.error.ok()) {
    switch (first.kind) {
      case Kind::kBarrier:  // all ranks have come to it, or they would not have agreed
        break;
      case Kind::kJoin:
        outcome.last_joined = place_.ranks[static_cast<std::size_t>(response.last_joined)];
        break;
      case Kind::kAddSet:
      case Kind::kRemoveSet:
        outcome = owner_.change_sets(first);
        break;
      default:
        return runner_.run(std::move(response), std::move(pending), is_last);
    }
  }
  if (Listener* const hears = listener()) hears->ended(id(), response, monotonic_now());
  owner_.requests_ended(pending, outcome);
}

void ProcessSet::requests_ended(std::span<const PendingPtr> all, const Outcome& outcome) {
  if (outcome.status.ok()) return owner_.requests_ended(all, outcome);
  const Status why = with_global_rank(outcome.status);
  for (const PendingPtr& each : all) {
    if (each == nullptr) continue;
    owner_.request_ended(each, {.status = why.with_prefix(each->describe() + ": ")});
  }
}

// A group tells of a lost rank by its own numbers.
Status ProcessSet::with_global_rank(const Status& why) const {
  const PeerLoss* const loss = why.peer_loss();
  if (loss == nullptr || loss->rank < 0 || loss->rank >= world_) return why;
  PeerLoss global = *loss;
  global.rank = place_.ranks[static_cast<std::size_t>(loss->rank)];
  return Status(why.message(), std::move(global));
}

void ProcessSet::fail(const Status& why) {
  if (phase_ == Phase::kFailed || phase_ == Phase::kOver) return;
  phase_ = Phase::kFailed;
  owner_.set_failed(with_global_rank(why));
}

bool ProcessSet::is_idle() const { return !open_ && runner_.is_idle(); }

void ProcessSet::end(const Status& why) {
  if (!ended_.ok()) return;
  ended_ = why;
  std::deque<PendingPtr> all;
  all.swap(order_);
  pending_.clear();
  join_.reset();
  Listener* const hears = listener();
  for (const PendingPtr& pending : all) {
    if (pending->agreed) continue;
    if (hears != nullptr) hears->given_up(id(), pending->request, monotonic_now());
    owner_.request_ended(pending, {.status = why.with_prefix(pending->describe() + ": ")});
  }
}

void ProcessSet::abort(const Status& why) {
  phase_ = Phase::kFailed;
  rounds_->abort(why);
  data_->abort(why);
  runner_.fail_waiting(why);
}

void ProcessSet::give_up(const Status& why) {
  phase_ = Phase::kFailed;
  open_ = false;
  runner_.give_up(why);
}

void ProcessSet::close_when_idle() {
  constexpr Duration kLinger = 5 * kSecond;
  rounds_->close_when_idle(kLinger);
  data_->close_when_idle(kLinger);
}

void ProcessSet::close(Duration linger) {
  (void)data_->close(linger);
  (void)rounds_->close(linger);
}

}  // namespace taco::pg::controller
