#include "remote/endpoint.h"

#include <algorithm>
#include <utility>

#include "base/completion_thread.h"
#include "base/random.h"
#include "harp/engine/engine_call.h"

namespace taco::remote {
namespace {

// An endpoint that closes waits so long for answers that are on their way.
constexpr Duration kPatienceForAnswers = kSecond;

Status closed_endpoint() {
  return Status(Code::kAborted, "this endpoint is closed: open a new one");
}

}  // namespace

Transfer::Transfer(std::shared_ptr<harp::Stack> stack, std::shared_ptr<EndpointCore> core)
    : stack_(std::move(stack)), core_(std::move(core)) {}

void Transfer::run_st(harp::Transport& transport) {
  operation_.context = this;
  operation_.on_done = [](Operation& operation, const Status& status) {
    static_cast<Transfer*>(operation.context)->finish_st(status);
  };
  core_->requester.start_st(operation_, transport);
}

void Transfer::finish_st(const Status& status) {
  const std::shared_ptr<Transfer> keep = std::move(self_);
  status_ = status;
  std::vector<std::function<void()>> callbacks;
  {
    std::lock_guard lock(mutex_);
    event_.set();
    callbacks.swap(callbacks_);
  }
  stack_->engine().wake_waiters();
  for (auto& callback : callbacks) completion::post(std::move(callback));
}

Status Transfer::wait(Time deadline) {
  if (event_.is_set()) return status_;
  if (stack_->engine().in_engine())
    return Status(Code::kInternal, "waiting on the engine's own thread would never end");
  const Time begun = monotonic_now();
  completion::Blocked blocked;
  if (stack_->engine().wait(event_, deadline)) return status_;
  TACO_RETURN_IF_ERROR(stack_->usable());  // in a forked child, say, nobody works on it
  if (deadline == kNever) return Status(Code::kAborted, "the transport stopped");
  return Status(Code::kTimeout,
                std::string(operation_.action == Action::kWrite ? "a write" : "a read") + " of " +
                    std::to_string(operation_.bytes) + " bytes: Timed out waiting " +
                    std::to_string((monotonic_now() - begun) / kMillisecond) +
                    "ms for it to complete; it goes on");
}

// The engine of a forked child's parent may have held the lock.
Status Transfer::on_complete(std::function<void()> callback) {
  if (!event_.is_set()) {
    if (generation_ != fork_generation()) return stack_->usable();
    std::lock_guard lock(mutex_);
    if (!event_.is_set()) {
      callbacks_.push_back(std::move(callback));
      return {};
    }
  }
  completion::post(std::move(callback));
  return {};
}

Endpoint::Endpoint(std::shared_ptr<harp::Stack> stack, std::uint64_t id)
    : stack_(std::move(stack)),
      core_(std::make_shared<EndpointCore>(id)),
      directory_(Directory::attach(stack_)) {
  completion::add_user();
}

Result<std::shared_ptr<Endpoint>> Endpoint::open(std::shared_ptr<harp::Stack> stack,
                                                 std::uint64_t id) {
  TACO_RETURN_IF_ERROR(stack->usable());
  auto endpoint = std::make_shared<Endpoint>(std::move(stack), id);
  TACO_RETURN_IF_ERROR(endpoint->on_engine([&](harp::Transport&) {
    endpoint->directory_->add_st(*endpoint->core_, *endpoint->stack_);
  }));
  return endpoint;
}

// The engine goes by its Directory to the core, whose requests it may have open: where those are
// not over, both stay, and the Directory stays attached.
Endpoint::~Endpoint() {
  if (drop().ok()) {
    Directory::detach(directory_, stack_);
  } else {
    Directory::keep(directory_, core_);
  }
  completion::remove_user();
}

Status Endpoint::drop() {
  if (Status end = close(monotonic_now()); end.ok()) return end;
  (void)on_engine([this](harp::Transport&) { core_->requester.fail_st(closed_endpoint()); });
  return close(monotonic_now() + kPatienceForAnswers);
}

Status Endpoint::on_engine(std::function<void(harp::Transport&)> function) const {
  TACO_RETURN_IF_ERROR(stack_->usable());
  if (harp::call_on_engine(stack_->engine(), std::move(function),
                           monotonic_now() + kPatienceForEngine))
    return {};
  TACO_RETURN_IF_ERROR(stack_->usable());
  return Status(Code::kInternal, "the transport's engine does not run");
}

// With the lock, which a forked child may find held for good: so its callers look at the Stack
// before they take it.
Status Endpoint::usable() const {
  TACO_RETURN_IF_ERROR(stack_->usable());
  return stage_ == Stage::kOpen ? Status() : closed_endpoint();
}

Status Endpoint::connect(std::string_view process, std::uint64_t endpoint) {
  TACO_RETURN_IF_ERROR(stack_->usable());
  std::lock_guard lock(mutex_);
  TACO_RETURN_IF_ERROR(usable());
  if (is_connected_) {
    return invalid("this endpoint is connected already, to " + stack_->describe(peer_) +
                   ": open another one for another peer");
  }
  Result<harp::PeerId> peer = stack_->add_peer(process);
  if (!peer.ok()) return peer.status();
  peer_ = *peer;
  peer_endpoint_ = endpoint;
  is_connected_ = true;
  const std::string name = stack_->describe(peer_);
  return on_engine([&](harp::Transport& transport) {
    core_->connect_st(peer_, peer_endpoint_, name, transport);
  });
}

bool Endpoint::connected() const {
  if (!stack_->usable().ok()) return false;
  {
    std::lock_guard lock(mutex_);
    if (!is_connected_ || !usable().ok()) return false;
  }
  bool is_broken = true;
  return on_engine([&](harp::Transport&) { is_broken = core_->is_broken_st(); }).ok() && !is_broken;
}

std::string Endpoint::describe_peer() const {
  if (const Status status = stack_->usable(); !status.ok()) return "no peer: " + status.message();
  std::lock_guard lock(mutex_);
  return is_connected_ ? stack_->describe(peer_) : "no peer";
}

Result<Handle> Endpoint::add(std::byte* memory, std::uint64_t bytes) {
  TACO_RETURN_IF_ERROR(stack_->usable());
  std::lock_guard lock(mutex_);
  TACO_RETURN_IF_ERROR(usable());
  const auto token = random_value<Token>();
  Handle handle;
  TACO_RETURN_IF_ERROR(
      on_engine([&](harp::Transport&) { handle = core_->owner.add_st(memory, bytes, token); }));
  return handle;
}

Status Endpoint::revoke(std::uint64_t region, Time deadline) {
  const auto revoked = std::make_shared<harp::Event>();
  const auto stack = stack_;
  const Status asked = on_engine([&](harp::Transport&) {
    core_->owner.revoke_st(region, [revoked, stack] {
      revoked->set();
      stack->engine().wake_waiters();
    });
  });
  if (asked.ok() && stack_->engine().wait(*revoked, deadline)) return {};
  if (!stack_->usable().ok()) {
    stack_->close();  // once it has, nothing writes any more
    return {};
  }
  TACO_RETURN_IF_ERROR(asked);
  return Status(Code::kTimeout,
                "the peer's transfers with memory " + std::to_string(region) +
                    " have not ended in time: it is revoked, but may not be freed yet");
}

Result<TransferPtr> Endpoint::start(Action action, std::byte* memory, std::uint64_t bytes,
                                    const Handle& remote) {
  TACO_RETURN_IF_ERROR(stack_->usable());
  std::lock_guard lock(mutex_);
  TACO_RETURN_IF_ERROR(usable());
  if (!is_connected_) return invalid("this endpoint has no peer: connect() it first");
  if (remote.endpoint != peer_endpoint_) {
    return invalid("the handle is of another endpoint than this one is connected to, which is at " +
                   stack_->describe(peer_));
  }
  if (bytes > remote.bytes) {
    return invalid("the local view has " + std::to_string(bytes) +
                   " bytes, and the remote buffer only " + std::to_string(remote.bytes));
  }
  auto transfer = std::make_shared<Transfer>(stack_, core_);
  transfer->operation_.action = action;
  transfer->operation_.memory = memory;
  transfer->operation_.bytes = bytes;
  transfer->operation_.remote = remote;
  transfer->self_ = transfer;
  note_started(transfer);
  stack_->engine().submit(*transfer, false);
  return transfer;
}

// Those that are done go whatever their age: one may be under way for long beside many others.
void Endpoint::note_started(const TransferPtr& transfer) {
  if (started_.size() >= tidy_at_) {
    std::erase_if(started_, [](const std::weak_ptr<Transfer>& weak) {
      const TransferPtr each = weak.lock();
      return each == nullptr || each->done();
    });
    tidy_at_ = std::max(kFewTransfers, 2 * started_.size());
  }
  started_.push_back(transfer);
}

// The transfers that were started here.
Status Endpoint::drain(Time deadline) {
  std::vector<std::weak_ptr<Transfer>> started;
  {
    std::lock_guard lock(mutex_);
    started = started_;
  }
  std::size_t open = 0;
  for (const std::weak_ptr<Transfer>& weak : started) {
    const TransferPtr transfer = weak.lock();
    if (transfer == nullptr || transfer->done()) continue;
    (void)transfer->wait(deadline);
    if (!transfer->done() && stack_->usable().ok()) ++open;
  }
  if (open == 0) return {};
  return Status(Code::kTimeout,
                std::to_string(open) + " transfers have not ended in time, and go on: close again");
}

Status Endpoint::leave(Time deadline) {
  const auto idle = std::make_shared<harp::Event>();
  const auto stack = stack_;
  TACO_RETURN_IF_ERROR(on_engine([&](harp::Transport&) {
    core_->owner.stop_st(closed_endpoint().with_prefix("the peer's endpoint: "), [idle, stack] {
      idle->set();
      stack->engine().wake_waiters();
    });
  }));
  if (!stack_->engine().wait(*idle, std::max(deadline, monotonic_now() + kPatienceForAnswers))) {
    TACO_RETURN_IF_ERROR(
        on_engine([&](harp::Transport&) { core_->owner.abandon_st(closed_endpoint()); }));
    if (!stack_->engine().wait(*idle, monotonic_now() + kPatienceForAnswers))
      return Status(Code::kTimeout, "the transport's engine does not end what it has begun");
  }
  const auto directory = directory_;
  const auto core = core_;
  return on_engine([directory, core](harp::Transport& transport) {
    core->say_closed_st(transport);
    core->requester.fail_st(closed_endpoint());
    directory->remove_st(*core);
  });
}

Status Endpoint::close(Time deadline) {
  // Where the transport has ended, or stayed with the parent of this process, all has. In a child
  // of a fork the locks may be held for good.
  if (!stack_->usable().ok()) return {};
  std::lock_guard one_at_a_time(closing_);
  {
    std::lock_guard lock(mutex_);
    if (stage_ == Stage::kClosed) return {};
    stage_ = Stage::kClosing;
  }
  TACO_RETURN_IF_ERROR(drain(deadline));
  // The transport may have ended meanwhile.
  if (Status left = leave(deadline); !left.ok() && stack_->usable().ok()) return left;
  std::lock_guard lock(mutex_);
  stage_ = Stage::kClosed;
  if (is_connected_) stack_->release_peer(peer_);
  return {};
}

}  // namespace taco::remote
