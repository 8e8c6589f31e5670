// Records of a link, out and in, and the doorbell.
#include "harp/shm/pair_link.h"

#include <unistd.h>

#include <cstring>

namespace taco::harp {
namespace {

constexpr int kRecordsPerTurn = 256;

template <class Record>
bool read_record(std::span<const std::byte> bytes, Record* record) {
  if (bytes.size() < sizeof *record) return false;
  std::memcpy(record, bytes.data(), sizeof *record);
  return record->head.bytes == bytes.size() - sizeof *record;
}

}  // namespace

std::byte* PairLink::reserve(std::size_t bytes) {
  std::byte* room = ring_out_->reserve(bytes);
  if (room != nullptr) return room;
  // Say that we wait before looking again: the peer frees before it looks whether anybody waits.
  starved_ = true;
  half_->starved.store(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return ring_out_->reserve(bytes);
}

// May one more answer wait here? A peer that goes on asking and reads no answers is no honest one.
bool PairLink::may_answer(std::size_t bytes) {
  answer_bytes_ += bytes;
  if (answer_bytes_ <= kMaxAnswerBytes) return true;
  break_off(
      "it reads nothing and goes on asking; its memory is damaged, or it is not what it says");
  return false;
}

void PairLink::push(const void* record, std::size_t bytes, std::span<const std::byte> data,
                    bool answers) {
  connect();
  if (connection_.is(PairConnection::kLost) || verdict_.is(PairVerdict::kBroken) ||
      half_ == nullptr)
    return;
  std::byte* room = outbox_.empty() ? reserve(bytes + data.size()) : nullptr;
  if (room == nullptr) {
    if (answers && !may_answer(bytes + data.size())) return;
    outbox_.emplace_back(bytes + data.size());
    room = outbox_.back().data();
  }
  std::memcpy(room, record, bytes);
  if (!data.empty()) std::memcpy(room + bytes, data.data(), data.size());
  if (!outbox_.empty()) return;
  ring_out_->commit();
  dirty_ = true;
}

bool PairLink::empty_outbox() {
  if (!starved_ || half_ == nullptr) return false;
  bool moved = false;
  while (outbox_sent_ < outbox_.size()) {
    const std::vector<std::byte>& record = outbox_[outbox_sent_];
    std::byte* room = reserve(record.size());
    if (room == nullptr) return moved;
    std::memcpy(room, record.data(), record.size());
    ring_out_->commit();
    outbox_sent_++;
    dirty_ = moved = true;
  }
  outbox_.clear();
  outbox_sent_ = answer_bytes_ = 0;
  starved_ = false;
  half_->starved.store(0, std::memory_order_relaxed);
  return moved;
}

void PairLink::push_slot(ShmRecordType type, SlotId slot, ShmSendId send, std::uint64_t offset,
                         bool refused) {
  ShmSlotRecord record;
  record.head.type = type;
  record.head.refused = refused;
  record.slot = slot;
  record.send = send;
  record.offset = offset;
  const bool answers = type == ShmRecordType::kReturned || type == ShmRecordType::kPulled ||
                       type == ShmRecordType::kCannotPull;
  push(&record, sizeof record, {}, answers);
}

void PairLink::eager(SendRequest& request) {
  ShmKeyRecord record;
  record.head.type = ShmRecordType::kEager;
  record.head.bytes = static_cast<std::uint32_t>(request.bytes);
  record.key = request.key;
  record.signature = request.signature;
  push(&record, sizeof record, {static_cast<const std::byte*>(request.data), request.bytes});
  shm_count(host_.stats.messages_sent);
  shm_count(host_.stats.bytes_sent, request.bytes);
  shm_count(host_.stats.bytes_staged, request.bytes);
  finish(request, Status());
}

void PairLink::want(RecvRequest& request) {
  ShmKeyRecord record;
  record.head.type = ShmRecordType::kWant;
  record.head.places = request.sink.contiguous;
  record.key = request.key;
  record.signature = request.signature;
  record.bytes = request.max_bytes;
  record.slot = request.slot;
  push(&record, sizeof record);
}

void PairLink::offer(const SendRequest& request) {
  ShmKeyRecord record;
  record.head.type = ShmRecordType::kOffer;
  record.key = request.key;
  record.signature = request.signature;
  record.bytes = request.bytes;
  push(&record, sizeof record);
}

void PairLink::control(const Control& control) {
  ShmControlRecord record;
  record.head.type = ShmRecordType::kControl;
  record.fields = fields_of(control);
  push(&record, sizeof record, {}, record.fields.kind == ControlFields::kEagerConsumed);
}

void PairLink::notice(std::span<const std::byte> bytes) {
  ShmSlotRecord record;
  record.head.type = ShmRecordType::kNotice;
  record.head.bytes = static_cast<std::uint32_t>(bytes.size());
  push(&record, sizeof record, bytes, reading_);
}

// If a publisher then sees no sleep number, the sleeper's own second look has seen what was
// published.
void PairLink::flush() {
  if (!dirty_ || !is_connected()) return;
  dirty_ = false;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const std::uint32_t sleep = peer_page_->sleep.load(std::memory_order_relaxed);
  if ((sleep & 1) == 0 || sleep == rung_) return;
  rung_ = sleep;
  const std::uint64_t one = 1;
  // An eventfd refuses a write only when it is full, and then it is readable, which is the point.
  if (write(peer_doorbell_.get(), &one, sizeof one) < 0) return;
  shm_count(host_.stats.doorbells);
}

bool PairLink::has_input() {
  if (!finished_.empty()) return true;
  if (!is_open()) return false;
  if (has_verdict()) return true;
  if (!is_connected()) return connection_.is(PairConnection::kConnecting);
  if (work_waits_ || !ring_in_->empty()) return true;
  if (!starved_) return false;
  // The ring was full: did the peer make room meanwhile?
  return ring_out_->reserve(kShmEagerBytes) != nullptr;
}

bool PairLink::drain() {
  if (!reads() || ring_in_->empty()) return false;
  last_heard_ = host_.now;
  reading_ = true;
  for (int i = 0; i < kRecordsPerTurn && reads(); i++) {
    const std::span<const std::byte> record = ring_in_->front();
    if (record.data() == nullptr) break;
    dispatch(record);
    ring_in_->pop();
  }
  reading_ = false;
  if (ring_in_->corrupt()) damaged();
  if (ring_in_->release()) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (peer_half_->starved.load(std::memory_order_relaxed) != 0) dirty_ = true;
  }
  return true;
}

void PairLink::dispatch(std::span<const std::byte> record) {
  if (record.size() < sizeof(ShmRecordHead)) return damaged();
  switch (static_cast<ShmRecordType>(record[0])) {
    case ShmRecordType::kEager:
    case ShmRecordType::kWant:
    case ShmRecordType::kOffer:
      return dispatch_key(record);
    case ShmRecordType::kControl:
      return dispatch_control(record);
    case ShmRecordType::kPiece:
    case ShmRecordType::kPull: {
      ShmPieceRecord piece;
      if (!read_record(record, &piece)) return damaged();
      return on_piece(piece);
    }
    default:
      return dispatch_slot(record);
  }
}

void PairLink::dispatch_key(std::span<const std::byte> bytes) {
  ShmKeyRecord record;
  if (!read_record(bytes, &record)) return damaged();
  switch (record.head.type) {
    case ShmRecordType::kEager:
      shm_count(host_.stats.messages_received);
      shm_count(host_.stats.bytes_received, record.head.bytes);
      return events_->on_eager(record.key, record.signature, bytes.subspan(sizeof record));
    case ShmRecordType::kWant:
      note_want(record.slot, record.head.places != 0);
      return events_->on_want({record.key, record.signature, record.bytes, record.slot});
    default:
      return events_->on_offer({record.key, record.signature, record.bytes});
  }
}

void PairLink::dispatch_control(std::span<const std::byte> bytes) {
  ShmControlRecord record;
  if (!read_record(bytes, &record)) return damaged();
  const std::optional<Control> control = control_of(record.fields);
  if (!control) return damaged();
  events_->on_control(*control);
}

void PairLink::dispatch_slot(std::span<const std::byte> bytes) {
  ShmSlotRecord record;
  if (!read_record(bytes, &record)) return damaged();
  const std::span<const std::byte> data = bytes.subspan(sizeof record);
  switch (record.head.type) {
    case ShmRecordType::kInline:
      return on_inline(record, data);
    case ShmRecordType::kNotice:
      return events_->on_notice(data);
    case ShmRecordType::kReturned:
      return on_returned(record.send, record.offset);
    case ShmRecordType::kPulled:
      return on_pulled(record.send, record.head.refused != 0);
    case ShmRecordType::kCannotPull:
      return on_cannot_pull(record.send, record.offset, record.head.refused != 0);
    case ShmRecordType::kMayPull:
      peer_pulls_ = true;
      return;
    case ShmRecordType::kGoodbye:
      if (peer_goodbye_.is(PeerGoodbye::kUnsaid)) peer_goodbye_.go(PeerGoodbye::kRead);
      return;
    case ShmRecordType::kGoodbyeSeen:
      if (own_goodbye_.is(OwnGoodbye::kSaid)) own_goodbye_.go(OwnGoodbye::kSeen);
      return;
    default:
      return damaged();
  }
}

bool PairLink::run_deferred() {
  bool something = empty_outbox();
  if (connection_.is(PairConnection::kConnecting) && !has_verdict()) start_connecting();
  part_with_sockets();
  if (!finished_.empty()) {
    something = true;
    std::vector<Finished> finished;
    finished.swap(finished_);
    for (const Finished& one : finished) events_->send_finished(*one.request, one.status);
    finished.clear();
    if (finished_.empty()) finished_.swap(finished);  // keeps the memory
  }
  return report_end() || something;
}

}  // namespace taco::harp
