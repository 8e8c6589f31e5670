#include "pg/window/window.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "harp/message_parts.h"
#include "pg/planning/schedule.h"

namespace taco::pg {
namespace {

// Open receives of one rank at a time.
constexpr std::size_t kMaxLandings = 16;

// Heads and bytes have numbers of their own, each in the order in which the sender gave them.
constexpr std::uint64_t window_tag(bool is_head, std::uint32_t number) {
  return std::uint64_t{is_head ? 0u : 1u} << 32 | kPointToPointTag | (number & 0x7fffffff);
}

std::span<const std::byte> bytes_of(const Piece& piece) { return {piece.data, piece.bytes}; }

}  // namespace

// One message of a put, with its head, or a signal.
struct OneSidedPart {
  OneSided* one = nullptr;
  bool head_open = false, bytes_open = false;
  harp::SendRequest head, bytes;
  std::array<std::byte, kMaxWindowMessageBytes> text;
};

// An operation while the engine has it.
struct OneSided {
  Window* owner = nullptr;
  OperationState* operation = nullptr;
  int rank = -1;
  bool waits = false;  // for a signal
  bool failing = false;
  int open = 0;
  std::vector<OneSidedPart> parts;
  Status status;
};

// Something that one rank has asked for, in its order: a put, or a signal that stands behind some.
struct Window::Landing {
  Inbox* inbox = nullptr;
  bool open = false;
  bool signals = false;
  std::uint64_t offset = 0, bytes = 0;
  harp::RecvRequest recv;
};

struct Window::Inbox {
  Window* owner = nullptr;
  int rank = -1;
  std::uint32_t next_head = 0, next_bytes = 0;
  bool open = false;  // the receive of the next head
  harp::RecvRequest recv;
  std::array<std::byte, kMaxWindowMessageBytes> text;
  std::optional<WindowMessage> held;
  std::deque<Landing> landings;
  std::uint64_t signals = 0;  // that nobody has waited for yet
  std::deque<OneSided*> waits;
};

Window::Window(WindowOwner& owner, GroupView& group, WindowMemory memory)
    : owner_(owner),
      group_(group),
      memory_(memory),
      outboxes_(static_cast<std::size_t>(group.world)),
      inboxes_(static_cast<std::size_t>(group.world)) {}
Window::~Window() = default;

Window::Inbox& Window::inbox_of(int rank) {
  if (inboxes_[rank] == nullptr) {
    inboxes_[rank] = std::make_unique<Inbox>();
    inboxes_[rank]->owner = this;
    inboxes_[rank]->rank = rank;
  }
  return *inboxes_[rank];
}

bool Window::knows_st(int rank) const {
  return inboxes_[rank] != nullptr || outboxes_[rank].next_head > 0;
}

OneSided& Window::take(OperationState& operation) {
  if (free_.empty()) {
    all_.push_back(std::make_unique<OneSided>());
    free_.push_back(all_.back().get());
  }
  OneSided& one = *free_.back();
  free_.pop_back();
  one.owner = this;
  one.operation = &operation;
  one.rank = operation.spec.root;
  one.waits = operation.spec.kind == Kind::kWaitSignal;
  one.failing = false;
  one.open = 0;
  one.status = Status();
  operation.one_sided = &one;
  return one;
}

void Window::start_st(OperationState& operation, harp::Transport& transport) {
  transport_ = &transport;
  OneSided& one = take(operation);
  if (one.waits) return wait(one);
  if (!is_own(operation)) return send(one);
  ++inbox_of(group_.rank).signals;
  finish_if_done(one);
  count_signals(inbox_of(group_.rank));
}

// The sender's side

void Window::send(OneSided& one) {
  const OperationSpec& spec = one.operation->spec;
  if (!group_.gone[one.rank].ok())
    return owner_.one_sided_broken_st(*one.operation, one.rank, group_.gone[one.rank]);
  if (spec.kind == Kind::kSignal) {
    one.parts.resize(1);
    return send_head(one, {.type = WindowMessage::Type::kSignal, .signals = true}, 0);
  }
  const Piece& piece = spec.inputs[0];
  const std::size_t parts = harp::parts_of(piece.bytes);
  one.parts.resize(parts);
  for (std::size_t i = 0; i < parts; ++i) {
    const std::size_t from = i * harp::kPartBytes;
    const Piece part{piece.data + from, std::min(harp::kPartBytes, piece.bytes - from)};
    WindowMessage put{.type = WindowMessage::Type::kPut,
                      .dtype = spec.dtype,
                      .signals = i + 1 == parts,
                      .offset = spec.offset + from,
                      .bytes = part.bytes};
    if (part.bytes <= kMaxCarriedBytes) put.carried = bytes_of(part);
    send_head(one, put, i);
    if (!put.follows()) continue;
    OneSidedPart& made = one.parts[i];
    made.bytes_open = true;
    ++one.open;
    made.bytes = harp::SendRequest{};
    made.bytes.key = {group_.id, window_tag(false, outboxes_[one.rank].next_bytes++)};
    made.bytes.signature = signature_of_bytes(put.dtype, put.bytes);
    made.bytes.data = part.data;
    made.bytes.bytes = part.bytes;
    made.bytes.context = &made;
    made.bytes.on_done = [](harp::SendRequest& request, const Status& status) {
      OneSidedPart& done = *static_cast<OneSidedPart*>(request.context);
      done.bytes_open = false;
      done.one->owner->sent(*done.one, status);
    };
    transport_->send_st(peer_of(one.rank), made.bytes);
  }
}

void Window::send_head(OneSided& one, const WindowMessage& message, std::size_t index) {
  OneSidedPart& part = one.parts[index];
  part.one = &one;
  part.bytes_open = false;
  part.head_open = true;
  ++one.open;
  part.head = harp::SendRequest{};
  part.head.key = {group_.id, window_tag(true, outboxes_[one.rank].next_head++)};
  part.head.signature = signature_of_heads();
  part.head.data = part.text.data();
  part.head.bytes = write_window_message(message, part.text.data());
  part.head.context = &part;
  part.head.on_done = [](harp::SendRequest& request, const Status& status) {
    OneSidedPart& done = *static_cast<OneSidedPart*>(request.context);
    done.head_open = false;
    done.one->owner->sent(*done.one, status);
  };
  transport_->send_st(peer_of(one.rank), part.head);
}

void Window::sent(OneSided& one, const Status& status) {
  --one.open;
  if (!status.ok() && !one.failing)
    return owner_.one_sided_broken_st(*one.operation, one.rank, status);
  finish_if_done(one);
}

void Window::finish_if_done(OneSided& one) {
  if (one.open > 0) return;
  OperationState& operation = *one.operation;
  const Status status = std::exchange(one.status, Status());
  one.operation = nullptr;
  operation.one_sided = nullptr;
  free_.push_back(&one);
  owner_.one_sided_done_st(operation, status);
}

void Window::fail_st(OperationState& operation, const Status& why) {
  OneSided& one = *operation.one_sided;
  if (one.failing) return;
  one.failing = true;
  one.status = why;
  if (one.waits) std::erase(inbox_of(one.rank).waits, &one);
  if (one.open > 0) {
    for (OneSidedPart& part : one.parts) {
      if (part.head_open) transport_->cancel_st(part.head, why);
      if (part.bytes_open) transport_->cancel_st(part.bytes, why);
    }
  }
  finish_if_done(one);
}

void Window::wait(OneSided& one) {
  if (one.rank != group_.rank && !knows_st(one.rank)) owner_.introduce_st(one.rank);
  Inbox& inbox = inbox_of(one.rank);
  inbox.waits.push_back(&one);
  if (one.rank == group_.rank) return count_signals(inbox);
  advance(inbox);
}

// The owner's side

harp::MessageKey Window::head_key(const Inbox& inbox) const {
  return {group_.id, window_tag(true, inbox.next_head)};
}

bool Window::has_next_head(const Inbox& inbox) const {
  return transport_->has_unmatched_st(peer_of(inbox.rank), head_key(inbox));
}

void Window::heard_st(int rank, harp::Transport& transport) {
  transport_ = &transport;
  if (!stopping_) advance(inbox_of(rank));
}

// A receive that nobody needs would make silence of the peer matter: it is open only while a head
// is there, or waited for.
void Window::take_next_head(Inbox& inbox) {
  if (stopping_ || inbox.open || inbox.held) return;
  if (!has_next_head(inbox)) {
    if (inbox.waits.empty()) return;
    if (!group_.gone[inbox.rank].ok() && inbox.landings.empty())
      return fail_waits(inbox, group_.gone[inbox.rank]);
  }
  inbox.open = true;
  ++open_;
  inbox.recv = harp::RecvRequest{};
  inbox.recv.key = head_key(inbox);
  inbox.recv.signature = signature_of_heads();
  inbox.recv.sink = harp::Sink::place(inbox.text.data());
  inbox.recv.max_bytes = inbox.text.size();
  inbox.recv.context = &inbox;
  inbox.recv.on_done = [](harp::RecvRequest& request, const Status& status) {
    Inbox& done = *static_cast<Inbox*>(request.context);
    done.owner->head_came(done, status);
  };
  transport_->recv_st(peer_of(inbox.rank), inbox.recv);
}

void Window::head_came(Inbox& inbox, const Status& status) {
  inbox.open = false;
  --open_;
  if (stopping_) return ended_one();
  if (!status.ok()) {
    if (status.code() != Code::kPeerLost) return owner_.incoming_broken_st(inbox.rank, status);
    return fail_waits(inbox, status);
  }
  ++inbox.next_head;
  Result<WindowMessage> message =
      read_window_message({inbox.text.data(), static_cast<std::size_t>(inbox.recv.bytes)});
  if (!message.ok()) return owner_.incoming_broken_st(inbox.rank, message.status());
  if (message->type == WindowMessage::Type::kPut) {
    if (const std::string refusal = refusal_of(*message, memory_); !refusal.empty()) {
      return owner_.incoming_broken_st(
          inbox.rank, Status(Code::kMismatch, "it put what this window does not take: " + refusal));
    }
  }
  inbox.held = *message;
  advance(inbox);
}

bool Window::may_land(const Inbox& inbox, const WindowMessage& put) const {
  if (inbox.landings.size() >= kMaxLandings) return false;
  return std::none_of(inbox.landings.begin(), inbox.landings.end(), [&](const Landing& other) {
    return other.open && other.offset < put.offset + put.bytes &&
           put.offset < other.offset + other.bytes;
  });
}

void Window::land(Inbox& inbox, const WindowMessage& message) {
  Landing& landing = inbox.landings.emplace_back();
  landing.inbox = &inbox;
  landing.signals = message.signals;
  if (message.type == WindowMessage::Type::kSignal) return;
  std::byte* const place = memory_.memory.data + message.offset;
  if (!message.follows()) {
    if (!message.carried.empty())
      std::memcpy(place, message.carried.data(), message.carried.size());
    return;
  }
  landing.open = true;
  ++open_;
  landing.offset = message.offset;
  landing.bytes = message.bytes;
  landing.recv.key = {group_.id, window_tag(false, inbox.next_bytes++)};
  landing.recv.signature = signature_of_bytes(message.dtype, message.bytes);
  landing.recv.sink = harp::Sink::place(place);
  landing.recv.max_bytes = message.bytes;
  landing.recv.context = &landing;
  landing.recv.on_done = [](harp::RecvRequest& request, const Status& status) {
    Landing& done = *static_cast<Landing*>(request.context);
    done.inbox->owner->landed(done, status);
  };
  transport_->recv_st(peer_of(inbox.rank), landing.recv);
}

void Window::landed(Landing& landing, const Status& status) {
  Inbox& inbox = *landing.inbox;
  landing.open = false;
  --open_;
  if (stopping_) return ended_one();
  if (status.ok() && landing.recv.bytes == landing.bytes) return advance(inbox);
  landing.signals = false;
  if (status.code() == Code::kPeerLost) return fail_waits(inbox, status);
  owner_.incoming_broken_st(
      inbox.rank, status.ok()
                      ? Status(Code::kMismatch, "it put " + std::to_string(landing.recv.bytes) +
                                                    " bytes where its head says " +
                                                    std::to_string(landing.bytes))
                      : status);
}

// Takes all that can be taken now of what the rank has sent.
void Window::advance(Inbox& inbox) {
  if (inbox.held && may_land(inbox, *inbox.held)) {
    const WindowMessage message = *std::exchange(inbox.held, std::nullopt);
    land(inbox, message);
  }
  count_signals(inbox);
  if (inbox.held && may_land(inbox, *inbox.held)) return advance(inbox);
  take_next_head(inbox);
}

void Window::count_signals(Inbox& inbox) {
  while (!inbox.landings.empty() && !inbox.landings.front().open) {
    inbox.signals += inbox.landings.front().signals ? 1 : 0;
    inbox.landings.pop_front();
  }
  while (inbox.signals > 0 && !inbox.waits.empty()) {
    OneSided& one = *inbox.waits.front();
    inbox.waits.pop_front();
    --inbox.signals;
    finish_if_done(one);
  }
}

void Window::fail_waits(Inbox& inbox, const Status& why) {
  if (!inbox.waits.empty())  // with the group, all of them
    owner_.one_sided_broken_st(*inbox.waits.front()->operation, inbox.rank, why);
}

void Window::peer_gone_st(int rank) {
  for (std::size_t i = 0; i < all_.size(); ++i) {
    const OneSided& one = *all_[i];
    if (one.operation == nullptr || one.failing || one.rank != rank || one.open == 0) continue;
    owner_.one_sided_broken_st(*one.operation, rank, group_.gone[rank]);
  }
  Inbox* const inbox = inboxes_[rank].get();
  if (inbox == nullptr || stopping_ || inbox->waits.empty()) return;
  if (!inbox->landings.empty() || inbox->held || has_next_head(*inbox)) return;
  fail_waits(*inbox, group_.gone[rank]);
}

void Window::stop_st(const Status& why) {
  if (std::exchange(stopping_, true)) return;
  for (const auto& inbox : inboxes_) {
    if (inbox == nullptr) continue;
    inbox->held.reset();
    if (inbox->open) transport_->cancel_st(inbox->recv, why);
    for (Landing& landing : inbox->landings)
      if (landing.open) transport_->cancel_st(landing.recv, why);
  }
  if (open_ == 0) owner_.window_stopped_st();
}

void Window::ended_one() {
  if (open_ == 0) owner_.window_stopped_st();
}

std::string Window::describe(const OperationState& operation) const {
  const std::string peer = "rank " + std::to_string(operation.spec.root);
  if (operation.one_sided->waits) return "waiting for a signal of " + peer;
  return "waiting for " + peer + " to take it";
}

}  // namespace taco::pg
