#include "pg/c10d/backend.h"

#include <algorithm>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/env.h"
#include "base/far_future.h"
#include "edge/errors.h"
#include "edge/signals.h"
#include "edge/without_gil.h"
#include "pg/c10d/backend_registry.h"
#include "pg/c10d/backend_tensors.h"
#include "pg/c10d/group_rendezvous.h"
#include "pg/tuning/tuning.h"

namespace taco::pg {
namespace {

constexpr Duration kGroupLinger = kSecond;
thread_local bool parts_of_one_call = false;

}  // namespace

Backend::Backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                 c10::intrusive_ptr<Options> options)
    : c10d::Backend(rank, size), options_(std::move(options)) {
  TORCH_CHECK_VALUE(rank >= 0 && rank < size, "taco: rank ", rank, " is outside a group of ", size);
  init();
  GroupRendezvousOptions rendezvous;
  rendezvous.rank = rank;
  rendezvous.world = size;
  rendezvous.name = options_->group_name;
  rendezvous.timeout = to_duration(options_->timeout);
  for (uint64_t global : options_->global_ranks_in_group) {
    rendezvous.global_ranks.push_back(static_cast<int>(global));
  }
  rendezvous.algorithm = options_->algorithm;
  rendezvous.costs = options_->costs;
  rendezvous.compress_all_reduce = options_->compress_all_reduce;
  codec_ = codec_named(options_->compress_all_reduce);
  const bool begins_apart = may_reconfigure(*options_);
  raise_if_error(hear_signals_during([&] {
    return begins_apart ? life_.begin_apart(store, rendezvous) : life_.begin(store, rendezvous);
  }));
  if (!begins_apart) hear_of_failures(*generation());
  hang_dump_ = HangDump::acquire();
}

c10::intrusive_ptr<Backend> Backend::create(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                            int size, c10::intrusive_ptr<Options> options) {
  auto backend = c10::make_intrusive<Backend>(store, rank, size, std::move(options));
  add_live(backend);
  return backend;
}

Backend::~Backend() { Backend::release_resources(); }

// Python may drop the last reference with the GIL held, and callbacks that need it may be pending.
void Backend::release_resources() {
  const WithoutGil others_run;
  (void)leave();
}

c10::intrusive_ptr<c10d::Backend::Options> Backend::getBackendOptions() {
  // A copy: ProcessGroup::splitGroup writes the child's name and timeout into what it gets.
  return c10::make_intrusive<Options>(*options_);
}

void Backend::setTimeout(std::chrono::milliseconds timeout) {
  options_->timeout = timeout;
  if (const auto now = life_.current()) now->set_timeout(to_duration(timeout));
}

std::shared_ptr<Generation> Backend::generation() const {
  std::shared_ptr<Generation> now = life_.current();
  if (!now) {
    raise(Status(Code::kRendezvous,
                 "group '" + options_->group_name +
                     "' has no members yet: it was made with enable_reconfigure=True, and begins "
                     "with torch.distributed._reconfigure(uuid, handles)"));
  }
  return now;
}

std::shared_ptr<Communicator> Backend::communicator_here(const Generation& generation) {
  CallbackScope* scope = CallbackScope::current();
  if (!scope || !scope->belongs_to(*generation.nested())) return generation.communicator();
  return value_or_raise(scope->communicator(*generation.nested()));
}

c10::intrusive_ptr<c10d::Work> Backend::work_of(
    WorkStatePtr state, const Call& call, const std::optional<std::vector<at::Tensor>>& inputs,
    const Generation& generation) const {
  return c10::make_intrusive<Work>(rank_, call.type, call.title, inputs, std::move(state),
                                   communicator_here(generation), generation.nested());
}

c10::intrusive_ptr<c10d::Work> Backend::launch(Translation& translation, const Call& call,
                                               const std::vector<at::Tensor>& inputs,
                                               std::vector<at::Tensor> results) {
  const std::shared_ptr<Generation> now = generation();
  if (estimates_.here()) return estimate(translation, call, inputs, std::move(results));
  return launch_in(communicator_here(*now), *now, translation, call, inputs, std::move(results));
}

c10::intrusive_ptr<c10d::Work> Backend::launch_in(const std::shared_ptr<Communicator>& group,
                                                  const Generation& generation,
                                                  Translation& translation, const Call& call,
                                                  const std::vector<at::Tensor>& inputs,
                                                  std::vector<at::Tensor> results) {
  translation.spec.timeout = timeout_of(call);
  translation.spec.caller_will_wait = !call.async && !coalescing_here();
  translation.state->results = std::move(results);
  if (!parts_of_one_call) report_completion(translation.state, translation.spec);
  OperationPtr operation = value_or_raise(group->start(std::move(translation.spec)));
  ephemeral_timeouts_.started(operation);
  translation.state->operations.push_back(std::move(operation));
  remember(translation.state, call);
  return c10::make_intrusive<Work>(rank_, call.type, parts_of_one_call ? nullptr : call.title,
                                   inputs, translation.state, group, generation.nested());
}

Backend::PartsOfOneCall::PartsOfOneCall() { parts_of_one_call = true; }
Backend::PartsOfOneCall::~PartsOfOneCall() { parts_of_one_call = false; }

c10::intrusive_ptr<c10d::Work> Backend::combine(
    const std::vector<c10::intrusive_ptr<c10d::Work>>& works, const Call& call,
    const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& results) {
  auto state = std::make_shared<WorkState>();
  state->results = results;
  for (const auto& work : works) {
    state->children.push_back(static_cast<Work*>(work.get())->state());
  }
  report_completion_of_all(state);
  return work_of(std::move(state), call, inputs, *generation());
}

void Backend::remember(const WorkStatePtr& state, const Call& call) {
  {
    std::lock_guard lock(mutex_);
    if (const auto block = coalescing_.find(std::this_thread::get_id()); block != coalescing_.end())
      block->second.push_back(state);
    while (!pending_.empty()) {
      WorkStatePtr oldest = pending_.front().lock();
      if (oldest && !oldest->completed()) break;
      pending_.pop_front();
    }
    pending_.push_back(state);
  }
  if (!onCompletionHook_) return;
  hooks_->open.fetch_add(1);
  state->on_complete([hook = onCompletionHook_, type = call.type, hooks = hooks_,
                      operation = state->operations.front()] {
    const auto finished = std::chrono::steady_clock::now();
    const std::chrono::duration<float> active(static_cast<float>(operation->elapsed()) / kSecond);
    const auto started =
        finished - std::chrono::duration_cast<std::chrono::steady_clock::duration>(active);
    hook(std::make_shared<c10d::WorkInfo>(type, operation->sequence(), started, finished, active));
    std::lock_guard lock(hooks->mutex);
    if (hooks->open.fetch_sub(1) == 1) hooks->idle.notify_all();
  });
}

bool Backend::coalescing_here() {
  std::lock_guard lock(mutex_);
  return coalescing_.contains(std::this_thread::get_id());
}

void Backend::startCoalescing() {
  std::lock_guard lock(mutex_);
  coalescing_[std::this_thread::get_id()].clear();
}

c10::intrusive_ptr<c10d::Work> Backend::endCoalescing() {
  auto state = std::make_shared<WorkState>();
  {
    std::lock_guard lock(mutex_);
    auto block = coalescing_.extract(std::this_thread::get_id());
    TORCH_CHECK(block, "taco: endCoalescing without startCoalescing on this thread");
    state->children = std::move(block.mapped());
  }
  for (const auto& child : state->children) {
    state->results.insert(state->results.end(), child->results.begin(), child->results.end());
  }
  report_completion_of_all(state);
  return work_of(std::move(state), {c10d::OpType::COALESCED, "taco:coalesced"}, std::nullopt,
                 *generation());
}

c10::intrusive_ptr<c10d::Backend> Backend::split(
    const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  const auto mine = std::find(ranks.begin(), ranks.end(), rank_);
  if (mine == ranks.end()) return nullptr;
  const std::shared_ptr<Generation> parent = generation();
  auto options = c10::make_intrusive<Options>(*options_);
  set_may_reconfigure(*options, false);
  if (opts) {
    options->timeout = opts->timeout;
    options->group_name = opts->group_name;
    options->group_desc = opts->group_desc;
  }
  options->costs = parent->options().costs;
  options->global_ranks_in_group.clear();
  for (int member : ranks) {
    TORCH_CHECK_VALUE(member >= 0 && member < size_, "taco: split names rank ", member,
                      " of a group of ", size_);
    options->global_ranks_in_group.push_back(parent->options().global_ranks[member]);
  }
  return create(store, static_cast<int>(mine - ranks.begin()), static_cast<int>(ranks.size()),
                options);
}

c10::intrusive_ptr<c10d::Backend> Backend::merge(
    const c10::intrusive_ptr<c10d::Store>& store,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts, const int& rank, const int& size) {
  auto options = c10::make_intrusive<Options>(opts ? opts->timeout : options_->timeout);
  if (opts) options->group_name = opts->group_name;
  return create(store, rank, size, options);
}

void Backend::abort() {
  const Status why(Code::kAborted, "group '" + options_->group_name + "' was aborted on rank " +
                                       std::to_string(rank_) + " (abort() was called)");
  if (const auto now = life_.current())
    now->communicator()->abort(why);  // and all that belong to it
}

void Backend::shutdown() {
  raise_if_error(hear_signals_during([this] { return leave(); }));
}

Status Backend::leave() {
  {
    std::lock_guard lock(mutex_);
    if (down_) return Status();
    down_ = true;
  }
  const Status unreported = life_.close(kGroupLinger);
  hang_dump_.reset();
  // The loss of a rank that nobody needed any more is no error; the log has it.
  return unreported.code() == Code::kMismatch ? unreported : Status();
}

c10d::ErrorType Backend::getError() {
  const std::shared_ptr<Generation> now = life_.current();
  if (!now) return c10d::ErrorType::SUCCESS;
  switch (now->communicator()->error().code()) {
    case Code::kOk:
      return c10d::ErrorType::SUCCESS;
    case Code::kTimeout:
      return c10d::ErrorType::TIMEOUT;
    case Code::kPeerLost:
      return c10d::ErrorType::REMOTE_ERROR;
    default:
      return c10d::ErrorType::COMM_ERROR;
  }
}

void Backend::setSequenceNumberForGroup() {
  // Every group starts at the same number on every rank: there is nothing to agree on.
}

uint64_t Backend::getSequenceNumberForGroup() {
  const std::shared_ptr<Generation> now = life_.current();
  return now ? now->communicator()->sequence() : 0;
}

void Backend::waitForPendingWorks() {
  std::vector<WorkStatePtr> open;
  {
    std::lock_guard lock(mutex_);
    for (const auto& weak : pending_) {
      if (WorkStatePtr state = weak.lock()) open.push_back(std::move(state));
    }
  }
  // Failures belong to those who wait for the Work; here it only matters that nothing is open.
  for (const WorkStatePtr& state : open) {
    state->wait_and_hear_signals(kNever);
    (void)state->wait(0);
  }
  (void)hear_signals_during([this] {
    return wait_and_heed(kNever, [this](Time until) { return hooks_end_before(until); });
  });
}

bool Backend::hooks_end_before(Time until) {
  std::unique_lock lock(hooks_->mutex);
  return hooks_->idle.wait_until(lock, until, [this] { return hooks_->open.load() == 0; });
}

void Backend::registerOnCompletionHook(
    std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) {
  TORCH_CHECK(!onCompletionHook_, "taco: an onCompletion hook is registered already");
  // Each operation keeps a copy, made without the GIL: of a pointer, since the hook may own a
  // Python object that is copied without asking for the GIL.
  auto shared = std::make_shared<const std::decay_t<decltype(hook)>>(std::move(hook));
  onCompletionHook_ = [shared = std::move(shared)](std::shared_ptr<c10d::WorkInfo> info) {
    (*shared)(std::move(info));
  };
}

void Backend::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  // 0 is a timeout too: whoever is not here already is missing.
  const auto timeout = opts.timeout == c10d::kUnsetTimeout ? options_->timeout : opts.timeout;
  raise_if_error(hear_signals_during(
      [&] { return communicator()->monitored_barrier(to_duration(timeout), wait_all_ranks); }));
}

}  // namespace taco::pg
