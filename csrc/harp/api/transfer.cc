#include <utility>

#include "base/far_future.h"
#include "harp/api/transfer_state.h"
#include "harp/engine/engine_call.h"

namespace harp {

using taco::harp::RecvRequest;
using taco::harp::SendRequest;
using taco::harp::Transport;

void Transfer::State::start(std::shared_ptr<taco::harp::Stack> by,
                            std::shared_ptr<OpenTransfers> among) {
  stack = std::move(by);
  open = std::move(among);
  open->add(*this);
  send.context = receive.context = this;
  send.on_done = [](SendRequest& request, const Status& why) {
    static_cast<State*>(request.context)->finish(why);
  };
  receive.on_done = [](RecvRequest& request, const Status& why) {
    static_cast<State*>(request.context)->finish(why);
  };
  stack->engine().submit(*this, false);
}

void Transfer::State::run_st(Transport& transport) {
  if (sends) {
    transport.send_st(peer, send);
  } else {
    transport.recv_st(peer, receive);
  }
}

// Once the event is set, whoever waits for it may end this object.
void Transfer::State::finish(const Status& why) {
  taco::harp::Engine& engine = stack->engine();
  open->remove(*this);
  status = why;
  memory.reset();
  finished.set();
  engine.wake_waiters();
}

// In a forked child, where no engine runs, there is nothing that could still refer to it; nor is
// there once the Stack has closed, which one that closes at this moment has not.
void Transfer::State::cancel() {
  if (finished.is_set() || generation != taco::fork_generation()) return;
  const Status why(Code::kAborted, "the transfer was cancelled");
  taco::harp::call_on_engine(stack->engine(),
                             [&](Transport& transport) { cancel_st(transport, why); });
  if (!stack->engine().wait(finished, kForever)) stack->close();
}

void Transfer::State::cancel_st(Transport& transport, const Status& why) {
  if (finished.is_set()) return;
  if (sends) {
    transport.cancel_st(send, why);
  } else {
    transport.cancel_st(receive, why);
  }
}

Transfer::Transfer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Transfer::Transfer(Transfer&&) noexcept = default;
Transfer& Transfer::operator=(Transfer&& other) noexcept {
  end();
  state_ = std::move(other.state_);
  return *this;
}
Transfer::~Transfer() { end(); }

void Transfer::end() {
  if (state_ != nullptr) state_->cancel();
  state_.reset();
}

bool Transfer::done() const { return state_->finished.is_set(); }

Result<std::size_t> Transfer::wait(Duration timeout) {
  if (!done()) {
    const taco::Time limit = taco::later(taco::monotonic_now(), timeout);
    if (!state_->stack->engine().wait(state_->finished, limit)) {
      TACO_RETURN_IF_ERROR(state_->stack->usable());
      return Status(Code::kTimeout, std::string("the ") +
                                        (state_->sends ? "send to " : "receive from ") +
                                        state_->stack->describe(state_->peer) + " is not done yet");
    }
  }
  if (!state_->status.ok()) return state_->status;
  return state_->sends ? state_->send.bytes : state_->receive.bytes;
}

}  // namespace harp
