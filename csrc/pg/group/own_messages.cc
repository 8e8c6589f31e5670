#include "pg/group/own_messages.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "pg/group/point_to_point.h"

namespace taco::pg {
namespace {

constexpr std::size_t kCopiedAtOnce = std::size_t{1} << 20;

}  // namespace

OwnMessages::OwnMessages(PointToPointOwner& owner, const GroupView& group,
                         PointToPointMessage& mark)
    : owner_(owner), group_(group), mark_(mark) {
  timer_.context = this;
  timer_.on_expiry = on_timer;
}

void OwnMessages::start_st(OperationState& operation, harp::Transport& transport) {
  transport_ = &transport;
  operation.message = &mark_;
  Queues& queues = operation.spec.kind == Kind::kSend ? sends_ : receives_;
  queues[operation.spec.tag].push_back(&operation);
  match(operation.spec.tag);
}

OperationState* OwnMessages::take(Queues& queues, std::uint32_t tag) {
  const auto queue = queues.find(tag);
  OperationState* const first = queue->second.front();
  queue->second.pop_front();
  if (queue->second.empty()) queues.erase(queue);
  return first;
}

bool OwnMessages::drop(Queues& queues, const OperationState& operation) {
  const auto queue = queues.find(operation.spec.tag);
  if (queue == queues.end() || std::erase(queue->second, &operation) == 0) return false;
  if (queue->second.empty()) queues.erase(queue);
  return true;
}

void OwnMessages::match(std::uint32_t tag) {
  if (!sends_.contains(tag) || !receives_.contains(tag)) return;
  Copy copy{take(sends_, tag), take(receives_, tag)};
  if (copy.send->signature != copy.receive->signature) return refuse(copy);
  if (step(copy)) return finish(copy);
  copies_.push_back(copy);
  transport_->arm_st(timer_, transport_->now_st());
}

// The first that is broken may take the group with it, and the other one, too.
void OwnMessages::refuse(const Copy& copy) {
  const Status why(Code::kMismatch, "send and receive carry different signatures");
  const std::shared_ptr<OperationState> send = copy.send->self;
  owner_.message_broken_st(*copy.receive, group_.rank, why);
  if (!send->done()) owner_.message_broken_st(*send, group_.rank, why);
}

// True: all of it is there.
bool OwnMessages::step(Copy& copy) {
  const Piece& from = copy.send->spec.inputs[0];
  const Piece& to = copy.receive->spec.outputs[0];
  const std::size_t piece = std::min(kCopiedAtOnce, from.bytes - copy.done);
  if (piece > 0) std::memmove(to.data + copy.done, from.data + copy.done, piece);
  copy.done += piece;
  return copy.done == from.bytes;
}

void OwnMessages::finish(const Copy& copy) {
  copy.receive->bytes_done = copy.done;
  copy.receive->set_source_rank(group_.rank);
  end(*copy.send, Status());
  end(*copy.receive, Status());
}

void OwnMessages::end(OperationState& operation, const Status& status) {
  operation.message = nullptr;
  owner_.message_done_st(operation, status);
}

void OwnMessages::on_timer(harp::Timer& timer, Time now) {
  auto& self = *static_cast<OwnMessages*>(timer.context);
  const bool done = self.step(self.copies_.front());
  const Copy copy = self.copies_.front();
  if (done) self.copies_.pop_front();
  if (!self.copies_.empty()) self.transport_->arm_st(timer, now);
  if (done) self.finish(copy);  // with its end the group may be gone
}

void OwnMessages::fail_st(OperationState& operation, const Status& why) {
  OperationState* other = nullptr;
  const auto is_its = [&](const Copy& copy) {
    return copy.send == &operation || copy.receive == &operation;
  };
  if (const auto copy = std::ranges::find_if(copies_, is_its); copy != copies_.end()) {
    other = copy->send == &operation ? copy->receive : copy->send;
    copies_.erase(copy);
    if (copies_.empty()) transport_->disarm_st(timer_);
  } else if (!drop(sends_, operation)) {
    drop(receives_, operation);
  }
  end(operation, why);
  if (other != nullptr) end(*other, why);
}

std::string OwnMessages::describe(const OperationState& operation) {
  return operation.spec.kind == Kind::kSend ? "waiting for this rank itself to receive it"
                                            : "waiting for this rank itself to send it";
}

}  // namespace taco::pg
