#include "pg/group/point_to_point.h"

#include <algorithm>
#include <utility>

#include "harp/message_parts.h"

namespace taco::pg {

struct PointToPointPart {
  PointToPointMessage* message = nullptr;
  std::size_t expected = 0;
  bool open = false;
  harp::SendRequest send;
  harp::RecvRequest recv;
};

// A send or a receive while the engine has it.
struct PointToPointMessage {
  PointToPoint* owner = nullptr;
  OperationState* operation = nullptr;
  int rank = -1;  // the peer; -1: any, not found yet
  bool is_send = false;
  bool waiting = false;  // in PointToPoint::waiting_
  bool failing = false;
  int open = 0;
  std::vector<PointToPointPart> parts;
  Status status;
};

namespace {

const Piece& piece_of(const OperationState& operation) {
  return operation.spec.kind == Kind::kSend ? operation.spec.inputs[0] : operation.spec.outputs[0];
}

}  // namespace

PointToPoint::PointToPoint(PointToPointOwner& owner, GroupView& group)
    : owner_(owner),
      group_(group),
      own_mark_(std::make_unique<PointToPointMessage>()),
      own_(owner, group, *own_mark_) {}
PointToPoint::~PointToPoint() = default;

PointToPointMessage& PointToPoint::take() {
  if (free_.empty()) {
    all_.push_back(std::make_unique<PointToPointMessage>());
    free_.push_back(all_.back().get());
  }
  PointToPointMessage& message = *free_.back();
  free_.pop_back();
  return message;
}

void PointToPoint::start_st(OperationState& operation, harp::Transport& transport) {
  transport_ = &transport;
  if (is_own(operation)) return own_.start_st(operation, transport);
  PointToPointMessage& message = take();
  message.owner = this;
  message.operation = &operation;
  message.rank = operation.spec.root;
  message.is_send = operation.spec.kind == Kind::kSend;
  message.waiting = message.failing = false;
  message.open = 0;
  message.status = Status();
  operation.message = &message;
  if (message.is_send) return post_send(message);
  auto queue = waiting_.find(operation.spec.tag);
  if (message.rank >= 0 && queue == waiting_.end()) return post_receive(message);
  message.waiting = true;
  waiting_[operation.spec.tag].push_back(&message);
  match(operation.spec.tag);
}

bool PointToPoint::is_here_st(const OperationState& operation, harp::Transport& transport) {
  if (operation.spec.kind == Kind::kSend || waiting_.contains(operation.spec.tag)) return false;
  if (is_own(operation)) return false;
  transport_ = &transport;
  if (operation.spec.root < 0) return find_source(operation.spec.tag) >= 0;
  const Counter& counter = received_[counter_key(operation.spec.root, operation.spec.tag)];
  return transport.has_unmatched_st((*group_.peers)[operation.spec.root],
                                    {group_.id, wire_tag(operation.spec.tag, counter.next)});
}

// Takes the message's keys from `counter` and calls open(part, key, data) for each of its parts.
template <class Open>
void PointToPoint::open_parts(PointToPointMessage& message, Counter& counter, const Open& open) {
  const OperationState& operation = *message.operation;
  const Piece& piece = piece_of(operation);
  const std::size_t parts = harp::parts_of(piece.bytes);
  const std::uint32_t first = counter.next;
  counter.next += static_cast<std::uint32_t>(parts);
  message.parts.resize(parts);
  message.open = static_cast<int>(parts);
  for (std::size_t i = 0; i < parts; ++i) {
    PointToPointPart& part = message.parts[i];
    part.message = &message;
    part.expected = std::min(harp::kPartBytes, piece.bytes - i * harp::kPartBytes);
    part.open = true;
    const auto number = first + static_cast<std::uint32_t>(i);
    const harp::MessageKey key{group_.id, wire_tag(operation.spec.tag, number)};
    open(part, key, piece.data + i * harp::kPartBytes);
  }
}

void PointToPoint::post_send(PointToPointMessage& message) {
  OperationState& operation = *message.operation;
  if (!group_.gone[message.rank].ok()) {
    owner_.message_broken_st(operation, message.rank, group_.gone[message.rank]);
    return;
  }
  const harp::PeerId peer = (*group_.peers)[message.rank];
  Counter& counter = sent_[counter_key(message.rank, operation.spec.tag)];
  open_parts(message, counter,
             [&](PointToPointPart& part, const harp::MessageKey& key, auto* data) {
               part.send = harp::SendRequest{};
               part.send.key = key;
               part.send.signature = operation.signature;
               part.send.data = data;
               part.send.bytes = part.expected;
               part.send.on_done = &PointToPoint::on_sent;
               part.send.context = &part;
               transport_->send_st(peer, part.send);
             });
}

void PointToPoint::post_receive(PointToPointMessage& message) {
  OperationState& operation = *message.operation;
  Counter& counter = received_[counter_key(message.rank, operation.spec.tag)];
  const harp::PeerId peer = (*group_.peers)[message.rank];
  const harp::MessageKey head{group_.id, wire_tag(operation.spec.tag, counter.next)};
  if (!group_.gone[message.rank].ok() && !transport_->has_unmatched_st(peer, head)) {
    owner_.message_broken_st(operation, message.rank, group_.gone[message.rank]);
    return;
  }
  operation.set_source_rank(message.rank);
  open_parts(message, counter,
             [&](PointToPointPart& part, const harp::MessageKey& key, auto* data) {
               part.recv = harp::RecvRequest{};
               part.recv.key = key;
               part.recv.signature = operation.signature;
               part.recv.sink = part.expected > 0 ? harp::Sink::place(data) : harp::Sink::discard();
               part.recv.max_bytes = part.expected;
               part.recv.on_done = &PointToPoint::on_received;
               part.recv.context = &part;
               transport_->recv_st(peer, part.recv);
             });
}

// Lets the receives at the head of the tag's queue go as far as messages are known.
void PointToPoint::match(std::uint32_t tag) {
  auto found = waiting_.find(tag);
  while (found != waiting_.end()) {
    PointToPointMessage& head = *found->second.front();
    if (head.rank < 0) head.rank = find_source(tag);
    if (head.rank < 0) {
      const int rank = last_gone();
      if (rank >= 0) owner_.message_broken_st(*head.operation, rank, group_.gone[rank]);
      return;
    }
    head.waiting = false;
    found->second.pop_front();
    if (found->second.empty()) waiting_.erase(found);
    post_receive(head);
    found = waiting_.find(tag);  // posting may have failed the group and emptied the queue
  }
}

// The rank whose next message of this tag waits here, or -1 after asking all of them for theirs.
int PointToPoint::find_source(std::uint32_t tag) {
  for (int i = 1; i <= group_.world; ++i) {
    const int rank = (last_source_ + i) % group_.world;
    if (rank == group_.rank) continue;
    Counter& counter = received_[counter_key(rank, tag)];
    const harp::MessageKey key{group_.id, wire_tag(tag, counter.next)};
    const harp::PeerId peer = (*group_.peers)[rank];
    if (transport_->has_unmatched_st(peer, key)) {
      last_source_ = rank;
      return rank;
    }
    if (!group_.gone[rank].ok() || counter.solicited == counter.next) continue;
    counter.solicited = counter.next;
    transport_->solicit_st(peer, key);
  }
  return -1;
}

// The last of the other ranks when nothing more comes of any of them, else -1.
int PointToPoint::last_gone() const {
  int last = -1;
  for (int rank = 0; rank < group_.world; ++rank) {
    if (rank == group_.rank) continue;
    if (group_.gone[rank].ok()) return -1;
    last = rank;
  }
  return last;
}

void PointToPoint::on_unmatched_st(std::uint32_t tag) {
  if (!waiting_.empty()) match(tag);
}

void PointToPoint::on_sent(harp::SendRequest& request, const Status& status) {
  PointToPointPart& part = *static_cast<PointToPointPart*>(request.context);
  part.open = false;
  part.message->owner->part_done(*part.message, status, part.expected, part.expected);
}

void PointToPoint::on_received(harp::RecvRequest& request, const Status& status) {
  PointToPointPart& part = *static_cast<PointToPointPart*>(request.context);
  part.open = false;
  part.message->operation->bytes_done += request.bytes;
  part.message->owner->part_done(*part.message, status, request.bytes, part.expected);
}

void PointToPoint::part_done(PointToPointMessage& message, const Status& status, std::size_t bytes,
                             std::size_t expected) {
  --message.open;
  if (message.failing) return finish_if_done(message);
  if (!status.ok()) return owner_.message_broken_st(*message.operation, message.rank, status);
  if (bytes != expected) {
    const Status why(Code::kMismatch, "sent " + std::to_string(bytes) + " bytes where " +
                                          std::to_string(expected) + " are expected");
    return owner_.message_broken_st(*message.operation, message.rank, why);
  }
  finish_if_done(message);
}

void PointToPoint::finish_if_done(PointToPointMessage& message) {
  if (message.open > 0) return;
  OperationState& operation = *message.operation;
  const Status status = std::exchange(message.status, Status());
  message.operation = nullptr;
  operation.message = nullptr;
  free_.push_back(&message);
  owner_.message_done_st(operation, status);
}

void PointToPoint::fail_st(OperationState& operation, const Status& why) {
  if (is_own(operation)) return own_.fail_st(operation, why);
  PointToPointMessage& message = *operation.message;
  if (message.failing) return;
  message.failing = true;
  message.status = why;
  if (message.waiting) {
    message.waiting = false;
    auto found = waiting_.find(operation.spec.tag);
    std::erase(found->second, &message);
    if (found->second.empty()) waiting_.erase(found);
  }
  if (message.open > 0) {
    for (PointToPointPart& part : message.parts) {
      if (!part.open) continue;
      if (message.is_send) {
        transport_->cancel_st(part.send, why);
      } else {
        transport_->cancel_st(part.recv, why);
      }
    }
  }
  finish_if_done(message);
}

bool PointToPoint::has_exchanged_st(int rank) const {
  const auto is_its = [&](const auto& counter) {
    return counter.first >> 32 == static_cast<std::uint64_t>(rank) && counter.second.next > 0;
  };
  return std::ranges::any_of(sent_, is_its) || std::ranges::any_of(received_, is_its);
}

void PointToPoint::peer_gone_st(int rank) {
  for (std::size_t i = 0; i < all_.size(); ++i) {
    PointToPointMessage& message = *all_[i];
    if (message.operation == nullptr || message.failing) continue;
    if (message.rank == rank && message.open > 0)
      owner_.message_broken_st(*message.operation, rank, group_.gone[rank]);
  }
  std::vector<std::uint32_t> tags;
  for (const auto& [tag, queue] : waiting_) tags.push_back(tag);
  for (const std::uint32_t tag : tags) match(tag);
}

std::string PointToPoint::describe(const OperationState& operation) const {
  if (is_own(operation)) return OwnMessages::describe(operation);
  const PointToPointMessage& message = *operation.message;
  if (message.waiting) {
    return message.rank < 0 ? "waiting for a message from any rank"
                            : "behind a receive from any rank";
  }
  return message.is_send ? "waiting for rank " + std::to_string(message.rank) + " to receive it"
                         : "waiting for rank " + std::to_string(message.rank);
}

}  // namespace taco::pg
