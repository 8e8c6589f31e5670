// Session as a Link: what the Matcher asks of it. Receiving, transmitting and time have files of
// their own.
#include "harp/session/session.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "harp/quotas.h"

namespace taco::harp {
namespace {

constexpr std::uint8_t kEngine = 0;  // the process has one so far
// A block of records fills a packet, and leaves room for an acknowledgement and a tag beside it.
constexpr std::size_t kBlockBytes = 1088;
static_assert(kBlockBytes >= wire::kMaxRecordBytes);
static_assert(sizeof(wire::Header) + wire::kRecordsOverhead + kBlockBytes + wire::kCreditBytes +
                  wire::kAckBytes + wire::kAckRangeBytes + wire::kTagBytes <=
              wire::kMinDatagram);

wire::Nonce nonce_from(SessionHost& host) {
  const std::array<std::uint64_t, 2> random{host.random(), host.random()};
  return std::bit_cast<wire::Nonce>(random);
}

std::size_t datagram_limit(const SessionConfig& config, const Nic& nic) {
  const std::size_t own = nic.addresses()[config.ways.front().local].max_datagram;
  return config.max_datagram == 0 ? own : std::min(own, config.max_datagram);
}

}  // namespace

Session::Session(SessionConfig config, SessionHost& host, LinkEvents& events)
    : host_(host),
      events_(events),
      own_incarnation_(config.own_incarnation),
      peer_incarnation_(config.peer_incarnation),
      key_(config.key),
      security_(config.security),
      checksum_(config.checksum),
      packets_per_key_(config.packets_per_key),
      peer_timeout_(config.peer_timeout),
      description_(std::move(config.description)),
      handshake_{wire::connection_id(kEngine, host.random()), nonce_from(host),
                 datagram_limit(config, host.nic()), std::move(config.ways), host.now()},
      credit_(host.credit(), handshake_.max_datagram() + host.nic().capabilities().packet_overhead),
      congestion_(config.congestion != nullptr ? *config.congestion : kSwift),
      paths_(std::make_unique<Path>(wire::kFirstPath, handshake_.ways().front(), leads(),
                                    congestion_, host, send_credit_)),
      reassembly_(host.buffers()),
      eager_(host.buffers(), kEagerWindow),
      records_(host.buffers(), kRecordWindow),
      record_order_(host.buffers()) {
  timer_.on_expiry = on_expiry;
  timer_.context = this;
  host_.add(*this);
  ready();
}

Session::~Session() {
  host_.disarm(timer_);
  host_.remove(*this);
  for (BulkSend* send : unreturned_) host_.nic().recall_st(send->reference);
  for (BulkSend* send : sends_) {
    if (send == nullptr) continue;
    if (send->reference.count > 0) host_.nic().recall_st(send->reference);
    queue_->remove(*send);
    host_.sends_.give(send);
  }
  for (RecvState* state : receives_) {
    if (state != nullptr) host_.receives_.give(state);
  }
  if (block_ != nullptr) host_.buffers().give(block_, kBlockBytes);
}

std::size_t Session::eager_limit() const {
  return wire::max_eager_bytes(tag_bytes(security_, wire::Type::kEager));
}

// The message is small: a copy of it is what would be sent again, so the request is finished on
// the next turn, whether or not the packet has arrived by then.
void Session::eager(SendRequest& request) {
  const std::size_t bytes = sizeof(wire::EagerDescriptor) + request.bytes;
  std::byte* block = host_.buffers().take(bytes);
  const wire::EagerDescriptor descriptor{request.key.group, request.key.tag, request.signature};
  std::memcpy(block, &descriptor, sizeof descriptor);
  if (request.bytes > 0) std::memcpy(block + sizeof descriptor, request.data, request.bytes);
  taken_.push_back(&request);
  if (life_.ended()) {
    host_.buffers().give(block, bytes);
  } else {
    eager_.push(block, bytes, bytes);
  }
  ready();
}

void Session::finish_taken() {
  const Status status = life_.ended() ? Status(Code::kAborted, "the session has ended") : Status();
  for (SendRequest* request : taken_) events_.send_finished(*request, status);
  taken_.clear();
}

void Session::bulk(SendRequest& request, SlotId slot, bool offered) {
  BulkSend* send = host_.sends_.take();
  if (free_sends_.empty()) {
    free_sends_.push_back(static_cast<std::uint32_t>(sends_.size()));
    sends_.push_back(nullptr);
  }
  send->index = free_sends_.back();
  free_sends_.pop_back();
  sends_[send->index] = send;
  send->start(request, slot, segment_bytes(request.bytes), ++send_uses_,
              tag_bytes(security_, wire::Type::kData));
  send->offered = offered;
  request.transfer = send;
  if (queue_ == nullptr) queue_ = std::make_unique<SendQueue>();
  queue_->add(*send);
  ready();
}

// There is nothing left to send of it: the next split message may begin.
void Session::retire(BulkSend& send) {
  if (queue_->retire(send)) ready();
}

void Session::drop_send(BulkSend& send) {
  retire(send);
  sends_[send.index] = nullptr;
  free_sends_.push_back(send.index);
  send.request = nullptr;
  host_.sends_.give(&send);
}

// The driver no longer refers to what these sent.
void Session::finish_returned() {
  for (std::size_t i = unreturned_.size(); i-- > 0;) {
    if (unreturned_[i]->reference.count > 0) continue;
    BulkSend& send = *unreturned_[i];
    unreturned_.erase(unreturned_.begin() + static_cast<std::ptrdiff_t>(i));
    finish_send(send, Status());
  }
}

void Session::finish_send(BulkSend& send, const Status& status) {
  SendRequest& request = *send.request;
  drop_send(send);
  events_.send_finished(request, status);
}

void Session::withdraw(SendRequest& request) {
  if (request.stage.is(SendStage::kEager)) {
    std::erase(taken_, &request);
    return;
  }
  auto& send = *static_cast<BulkSend*>(request.transfer);
  std::erase(unreturned_, &send);
  if (send.reference.count > 0) host_.nic().recall_st(send.reference);
  request.transfer = nullptr;
  drop_send(send);
  say_goodbye_when_quiet();
}

void Session::want(RecvRequest& request) {
  if (life_.ended()) return;
  const Want want = want_of(request);
  if (want.slot.index >= receives_.size()) receives_.resize(want.slot.index + 1, nullptr);
  RecvState* state = host_.receives_.take();
  state->slot = want.slot;
  state->request = &request;
  state->segment_bytes = state->segments = state->received = 0;
  state->message_bytes = 0;
  state->offered = false;
  receives_[want.slot.index] = state;
  if (open_receives_++ == 0) {
    credit_.set_active(true);
    refresh_credit();
  }
  record([](wire::Writer& writer,
            const void* what) { return writer.want(*static_cast<const Want*>(what)); },
         &want);
}

void Session::forget(SlotId slot) {
  if (slot.index >= receives_.size() || receives_[slot.index] == nullptr) return;
  if (receives_[slot.index]->slot == slot) drop_receive(*receives_[slot.index]);
}

void Session::drop_receive(RecvState& state) {
  if (!reassembly_.empty()) reassembly_.forget(wire::slot_number(state.slot));
  receives_[state.slot.index] = nullptr;
  state.end();
  host_.receives_.give(&state);
  TACO_ASSERT(open_receives_ > 0);
  if (--open_receives_ == 0) credit_.set_active(false);
}

void Session::offer(const SendRequest& request) {
  const Offer offer = offer_of(request);
  record([](wire::Writer& writer,
            const void* what) { return writer.offer(*static_cast<const Offer*>(what)); },
         &offer);
}

void Session::control(const Control& control) {
  const ControlFields fields = fields_of(control);
  record([](wire::Writer& writer,
            const void* what) { return writer.control(*static_cast<const ControlFields*>(what)); },
         &fields, fields.kind == ControlFields::kEagerConsumed ? Says::kInAnswer : Says::kOfItself);
}

void Session::notice(std::span<const std::byte> bytes) {
  const auto cut = bytes.first(std::min(bytes.size(), kMaxNoticeBytes));
  record(
      [](wire::Writer& writer, const void* what) {
        return writer.notice(*static_cast<const std::span<const std::byte>*>(what));
      },
      &cut, reading_ ? Says::kInAnswer : Says::kOfItself);
}

void Session::record(bool (*write)(wire::Writer& writer, const void* what), const void* what,
                     Says says) {
  if (!life_.may_record()) return;
  for (;;) {
    if (block_ == nullptr) {
      block_ = host_.buffers().take(kBlockBytes);
      block_bytes_ = block_answers_ = 0;
    }
    wire::Writer writer({block_ + block_bytes_, kBlockBytes - block_bytes_});
    if (write(writer, what)) {
      block_bytes_ += writer.size();
      if (says == Says::kInAnswer) block_answers_ += writer.size();
      break;
    }
    seal_block();
  }
  ready();
}

void Session::seal_block() {
  if (block_ == nullptr) return;
  records_.push(std::exchange(block_, nullptr), kBlockBytes, block_bytes_, block_answers_);
}

// Answers are bounded by nobody but the peer; words of our own, by what this process does.
bool Session::keeps_asking() const {
  const std::size_t unsealed = block_ != nullptr ? block_answers_ : 0;
  return records_.answer_bytes() + unsealed > kMaxAnswerBytes;
}

bool Session::content_unacknowledged() const {
  return !eager_.empty() || !records_.empty() || block_ != nullptr ||
         sends_.size() > free_sends_.size();
}

bool Session::busy() const {
  if (life_.ended()) return false;
  if (life_.peer_left()) {
    return std::any_of(paths_.begin(), paths_.end(),
                       [](const auto& path) { return path->ack().due(); });
  }
  return !taken_.empty() || content_unacknowledged() || life_.owes_goodbye();
}

void Session::leave() {
  if (life_.ended() || life_.leaving()) return;
  // A peer that has seen a hello of ours may be waiting for us: it gets a goodbye.
  if (!established() && !handshake_.has_called() && !content_unacknowledged()) {
    life_.end();
    return let_go();
  }
  life_.leave();
  say_goodbye_when_quiet();
  update_timer();
}

// Goodbye comes after everything else: whoever has heard it has everything of ours.
void Session::say_goodbye_when_quiet() {
  if (!life_.owes_goodbye() || content_unacknowledged()) return;
  record([](wire::Writer& writer, const void*) { return writer.goodbye(); }, nullptr);
  life_.say_goodbye();
}

void Session::break_off(const std::string& how) {
  declare_lost(Status(how, PeerLoss{-1, description_, 0}));
}

void Session::declare_lost(const Status& why) {
  if (life_.ended()) return;
  life_.end();
  events_.on_lost(why);
  let_go();
}

// Empties a session that a group which has failed may keep for long: it holds nothing that others
// need.
void Session::let_go() {
  host_.disarm(timer_);
  next_tick_ = kNever;
  host_.let_rest(*this);
  credit_.close();
  eager_.clear();
  records_.clear();
  reassembly_.clear();
  record_order_.clear();
  for (const auto& path : paths_) path->close();
  if (block_ != nullptr) host_.buffers().give(std::exchange(block_, nullptr), kBlockBytes);
  trim();
}

void Session::move_to(const AddressPair& pair) {
  paths_.first().move_to(pair);
  ready();
}

bool Session::sent_lately(const wire::Header& header, const AddressPair& by) const {
  if (!established() || header.connection != peer_connection_id()) return false;
  const Path* const path = paths_.find(header.path);
  return path != nullptr && path->has_led_there() && path->pair() == by &&
         path->sent_lately(header);
}

void Session::flush_acks() {
  if (life_.ended()) return;
  for (const auto& path : paths_) {
    if (!path->ack().wanted()) continue;
    path->ack().hurry();
    ready();
  }
}

void Session::refresh_credit() {
  if (!credit_.refresh() || !established()) return;
  paths_.main().ack().hurry();
  ready();
  if (credit_.lowering() != CreditAccount::Lowering::kNone) stir();  // it is to be confirmed
}

std::size_t Session::memory_bytes() const {
  std::size_t bytes = sizeof(Session) + handshake_.memory_bytes() + paths_.memory_bytes() +
                      std::distance(announced_.begin(), announced_.end()) * sizeof(Endpoint) +
                      eager_.memory_bytes() + records_.memory_bytes() + reassembly_.memory_bytes() +
                      sends_.capacity() * sizeof(BulkSend*) +
                      free_sends_.capacity() * sizeof(std::uint32_t) +
                      receives_.capacity() * sizeof(RecvState*) +
                      taken_.capacity() * sizeof(SendRequest*) + description_.capacity();
  if (free_pairs_) {
    bytes += sizeof(std::vector<AddressPair>) + free_pairs_->capacity() * sizeof(AddressPair);
  }
  if (block_ != nullptr) bytes += kBlockBytes;
  for (const PathGroup& group : groups_) {
    bytes += sizeof group + group.paths.capacity() + group.moves.memory_bytes();
  }
  if (sealing_ != nullptr) bytes += sealing_->memory_bytes();
  if (queue_ != nullptr) bytes += queue_->memory_bytes();
  for (const BulkSend* send : sends_) {
    if (send != nullptr) bytes += sizeof(BulkSend) + send->acked_bits.heap_bytes();
  }
  for (const RecvState* state : receives_) {
    if (state != nullptr) bytes += state->memory_bytes();
  }
  return bytes;
}

}  // namespace taco::harp
