// Packets in: checked, told apart from duplicates, handed on.
#include <algorithm>

#include "harp/session/session.h"

namespace taco::harp {
namespace {

// Acknowledge at the latest after this many packets or this long.
constexpr std::uint32_t kAckEvery = 48;
constexpr Duration kAckDelay = kMillisecond;

}  // namespace

void Session::on_packets(const RxPacket& packets) {
  const std::size_t stride =
      packets.segment_bytes == 0 ? packets.data.size() : packets.segment_bytes;
  for (std::size_t at = 0; at < packets.data.size() && state_ != State::kEnded; at += stride) {
    on_packet(packets.data.subspan(at, std::min(stride, packets.data.size() - at)), packets);
  }
  if (state_ != State::kEnded) after_receive();
}

void Session::on_packet(std::span<std::byte> bytes, const RxPacket& from) {
  ProtocolCounters& counters = host_.counters();
  wire::Packet packet;
  const wire::Verdict verdict = wire::parse(bytes, packet);
  if (verdict != wire::Verdict::kGood || packet.connection != own_connection_ ||
      packet.type == wire::Type::kHello || packet.type == wire::Type::kReset ||
      packet.path != wire::kFirstPath) {
    ++(verdict == wire::Verdict::kBadChecksum ? counters.checksum_failures : counters.malformed);
    return;
  }
  ++counters.packets_received;
  counters.bytes_received += packet.body.size();
  const Time now = host_.now();
  last_heard_ = silence_base_ = now;
  unanswered_probes_ = 0;

  // Has no number to remember, and whatever it says does no harm twice: a copy goes unanswered.
  if (packet.flags & wire::kUncounted) {
    on_frames(packet, from);
    return;
  }
  const std::uint64_t largest = received_.largest();
  const std::uint64_t number = wire::expand_number(packet.number, largest + 1);
  // What cannot be kept must not be acknowledged: such packets are dropped before they are noted.
  if (packet.type == wire::Type::kEager && !on_eager_packet(packet)) return;
  if (packet.type == wire::Type::kFragment && !on_fragment(packet)) return;
  if (packet.type == wire::Type::kControl && !on_frames(packet, from)) return;
  if (state_ == State::kEnded) return;
  if (!received_.add(number, now)) {
    ++counters.duplicates;
    if (packet.type != wire::Type::kControl) ++unacknowledged_;
    ack_now_ = true;
    return;
  }
  if (number > largest) {
    if (number > largest + 1 && largest > 0) ack_now_ = true;  // a hole: say so at once
    path_.is_by(from) ? path_.on_newest_here(now) : heard_elsewhere(from);
  }
  if (packet.type == wire::Type::kFragment) ++unacknowledged_;
  if (packet.type == wire::Type::kData) {
    ++unacknowledged_;
    on_data(packet);
  }
}

RecvState* Session::receive_of(std::uint64_t wire_slot) {
  const std::uint64_t index = wire_slot & ((std::uint64_t{1} << wire::kSlotIndexBits) - 1);
  if (index >= receives_.size() || receives_[index] == nullptr) return nullptr;
  const std::uint64_t generation = receives_[index]->slot.generation & wire::kSlotGenerationMask;
  return wire_slot >> wire::kSlotIndexBits == generation ? receives_[index] : nullptr;
}

// The first segment fixes the message's shape. False: the receive refused it and has ended.
bool Session::begin_message(RecvState& state, const wire::Packet& packet) {
  if (packet.message_bytes > state.request->max_bytes) {
    finish_receive(state,
                   Status(Code::kMismatch, "message of " + std::to_string(packet.message_bytes) +
                                               " bytes is longer than the receive of " +
                                               std::to_string(state.request->max_bytes)));
    return false;
  }
  const std::size_t bytes = packet.body.size();
  const bool last = (packet.flags & wire::kLastSegment) != 0;
  state.message_bytes = packet.message_bytes;
  state.offered = (packet.flags & wire::kOffered) != 0;
  if (last && packet.segment > 0) {
    state.segment_bytes =
        static_cast<std::uint32_t>((packet.message_bytes - bytes) / packet.segment);
  } else {
    state.segment_bytes = static_cast<std::uint32_t>(std::max<std::size_t>(bytes, 1));
  }
  state.segments =
      packet.message_bytes == 0
          ? 1
          : static_cast<std::uint32_t>((packet.message_bytes + state.segment_bytes - 1) /
                                       state.segment_bytes);
  state.bits.reset(state.segments);
  return true;
}

void Session::on_data(const wire::Packet& packet) {
  ProtocolCounters& counters = host_.counters();
  RecvState* state = receive_of(packet.slot);
  if (state == nullptr) {
    ++counters.late;
    return;
  }
  if (state->segment_bytes == 0 && !begin_message(*state, packet)) return;
  const std::uint64_t offset = std::uint64_t{packet.segment} * state->segment_bytes;
  if (packet.message_bytes != state->message_bytes || packet.segment >= state->segments ||
      packet.body.size() !=
          std::min<std::uint64_t>(state->segment_bytes, state->message_bytes - offset)) {
    ++counters.malformed;
    return;
  }
  if (!state->bits.set(packet.segment)) {
    ++counters.duplicates;
    return;
  }
  const Sink& sink = state->request->sink;
  if (!packet.body.empty()) sink.consume(sink, offset, packet.body.data(), packet.body.size());
  if (!reassembly_.empty()) reassembly_.forget(packet.slot, packet.segment);
  if (++state->received < state->segments) return;
  state->request->bytes = state->message_bytes;
  if (state->offered) events_.on_offered(state->slot);
  if (state_ == State::kEnded) return;  // that was one too many
  ack_now_ = true;                      // the sender waits for this
  finish_receive(*state, Status());
}

void Session::finish_receive(RecvState& state, const Status& status) {
  const SlotId slot = state.slot;
  drop_receive(state);
  events_.receive_finished(slot, status);
}

// False: there is no room for it, so it must not be acknowledged. A segment that has come whole is
// consumed like any other, so that it is consumed once.
bool Session::on_fragment(const wire::Packet& packet) {
  const RecvState* state = receive_of(packet.slot);
  if (state == nullptr) {
    ++host_.counters().late;
    return true;
  }
  if (packet.segment < state->segments && state->bits.test(packet.segment)) {
    ++host_.counters().duplicates;
    return true;
  }
  wire::Packet whole = packet;
  switch (reassembly_.add(packet, whole.body)) {
    case Reassembly::Verdict::kRefused:
      return false;
    case Reassembly::Verdict::kKept:
      return true;
    case Reassembly::Verdict::kWhole:
      break;
  }
  on_data(whole);
  reassembly_.forget(packet.slot, packet.segment);  // whatever came of it
  return true;
}

bool Session::on_eager_packet(const wire::Packet& packet) {
  const auto verdict = eager_filter_.add(packet.serial);
  if (verdict == SerialFilter::Verdict::kBeyondWindow) return false;
  ++unacknowledged_;
  if (verdict == SerialFilter::Verdict::kDuplicate) {
    ++host_.counters().duplicates;
    return true;
  }
  events_.on_eager({packet.eager.group, packet.eager.tag}, packet.eager.signature, packet.body);
  return true;
}

// False: do not acknowledge the packet.
bool Session::on_frames(const wire::Packet& packet, const RxPacket& from) {
  wire::FrameReader reader(packet.body);
  wire::Frame frame;
  bool keep = true;
  while (state_ != State::kEnded && reader.next(frame)) {
    if (wire::asks_for_ack(frame)) {
      if (packet.flags & wire::kUncounted) {
        ++host_.counters().malformed;
        return false;
      }
      ++unacknowledged_;
    }
    switch (frame) {
      case wire::Frame::kPing:
      case wire::Frame::kProbe:
        ack_now_ = true;
        break;
      case wire::Frame::kAck:
        on_ack(reader.ack);
        break;
      case wire::Frame::kCredit:
        if (static_cast<std::int32_t>(reader.credit.epoch - peer_epoch_) > 0) {
          peer_epoch_ = reader.credit.epoch;
          peer_limit_ = reader.credit.limit;
          ready();
        }
        break;
      case wire::Frame::kRecords:
        keep = on_records(reader.serial, reader.records) && keep;
        break;
      case wire::Frame::kPathChallenge:
        path_.on_challenge(AddressPair::of(from), reader.token);
        ready();
        break;
      case wire::Frame::kPathResponse:
        if (path_.on_response(AddressPair::of(from), reader.token, host_.now())) ready();
        break;
      default:  // of a later time; acknowledged where its type asks for it
        break;
    }
  }
  if (reader.bad()) ++host_.counters().malformed;
  return keep && !reader.bad();
}

bool Session::on_records(std::uint32_t serial, std::span<const std::byte> block) {
  switch (record_order_.add(serial, block)) {
    case RecordOrder::Verdict::kBeyondWindow:
      return false;
    case RecordOrder::Verdict::kStashed:
      return true;
    case RecordOrder::Verdict::kDuplicate:
      ++host_.counters().duplicates;
      return true;
    case RecordOrder::Verdict::kInOrder:
      break;
  }
  deliver_records(block);
  for (;;) {
    const std::span<const std::byte> next = record_order_.pop();
    if (next.empty()) return true;
    deliver_records(next);
  }
}

void Session::deliver_records(std::span<const std::byte> block) {
  wire::RecordReader reader(block);
  wire::Record record;
  while (state_ != State::kEnded && reader.next(record)) deliver_record(record);
  if (reader.bad()) ++host_.counters().malformed;
}

void Session::deliver_record(const wire::Record& record) {
  switch (record.type) {
    case wire::RecordType::kWant:
      return events_.on_want(record.want);
    case wire::RecordType::kOffer:
      return events_.on_offer(record.offer);
    case wire::RecordType::kControl:
      return events_.on_control(record.control);
    case wire::RecordType::kNotice:
      return events_.on_notice(record.notice);
    case wire::RecordType::kGoodbye:
      if (peer_left_) return;
      peer_left_ = true;
      ack_now_ = true;
      credit_.close();
      path_.mtu().close();
      events_.on_left();
      return;
    default:  // of a later time: many paths, and what is not thought of yet
      return;
  }
}

void Session::on_run_acked(const SentRun& run, std::uint64_t mask) {
  if (run.has_credit) {
    credit_.on_confirmed(run.credit_epoch);
    lowering_in_flight_ = false;
  }
  switch (run.kind) {
    case SentRun::Kind::kBulk:
    case SentRun::Kind::kPieces: {
      BulkSend* send = run.owner < sends_.size() ? sends_[run.owner] : nullptr;
      if (send == nullptr || send->generation != run.owner_generation) return;
      note_acked_size(run, *send);
      const bool whole = run.kind == SentRun::Kind::kBulk;
      if (!send->acknowledge(run.first_segment, mask, whole)) {
        if (send->has_work()) activate(*send);  // of a split message more segments may leave now
        return;
      }
      if (send->reference.count > 0) {
        retire(*send);
        unreturned_.push_back(send);
        ready();
      } else {
        finish_send(*send, Status());
      }
      return;
    }
    case SentRun::Kind::kEager:
      return eager_.on_acked(run.owner);
    case SentRun::Kind::kRecords:
      return records_.on_acked(run.owner);
    case SentRun::Kind::kMtuProbe:
      path_.mtu().on_probe_acked(run.first_segment, host_.now());
      return ready();
    case SentRun::Kind::kProbe:
      return;
  }
}

void Session::on_run_lost(const SentRun& run, std::uint64_t mask) {
  if (run.has_credit) lowering_in_flight_ = false;
  switch (run.kind) {
    case SentRun::Kind::kBulk:
    case SentRun::Kind::kPieces: {
      BulkSend* send = run.owner < sends_.size() ? sends_[run.owner] : nullptr;
      if (send == nullptr || send->generation != run.owner_generation) return;
      note_lost_size(run, *send, mask);
      send->lose(run.first_segment, mask, run.kind == SentRun::Kind::kBulk);
      if (send->has_work()) activate(*send);
      break;
    }
    case SentRun::Kind::kEager:
      eager_.on_lost(run.owner);
      break;
    case SentRun::Kind::kRecords:
      records_.on_lost(run.owner);
      break;
    case SentRun::Kind::kMtuProbe:
      ++mtu_probes_lost_;
      return;
    case SentRun::Kind::kProbe:
      return;
  }
  ready();
}

AckSample Session::sample() const {
  AckSample sample;
  sample.now = host_.now();
  sample.largest = sent_.largest_acked();
  sample.next_number = next_number_;
  sample.least_rtt = rtt_.least();
  sample.smoothed_rtt = rtt_.smoothed();
  sample.limited = window_limited_;
  return sample;
}

void Session::on_ack(const wire::Ack& ack) {
  SentPackets::AckOutcome outcome;
  if (ack.path != wire::kFirstPath ||
      !sent_.on_ack(ack, next_number_, host_.now(), *this, outcome)) {
    ++host_.counters().malformed;
    return;
  }
  if (outcome.newly_acked + outcome.spurious == 0) return;
  Duration rtt = 0;
  // What is heard first after a stall has waited here for as long as that: no time of the path's.
  if (outcome.newest == ack.ranges[0].last && host_.now() != back_at_) {
    const Duration delay = std::min<Duration>(ack.delay_us, 1'000'000) * kMicrosecond;
    rtt_.on_sample(host_.now(), host_.now() - outcome.newest_sent, delay, outcome.newest_alone);
    rtt = rtt_.latest();
  }
  backoff_ = 0;
  probe_base_ = host_.now();
  if (outcome.spurious > 0) {
    host_.counters().spurious_retransmits += outcome.spurious;
    reorder_.on_spurious();
    quiet_until_ = next_number_;
    congestion_.undo(window_);
  } else if (sent_.largest_acked() >= quiet_until_) {
    reorder_.on_quiet_round();
    quiet_until_ = next_number_;
  }
  AckSample now = sample();
  now.packets = outcome.newly_acked;
  now.rtt = rtt;
  congestion_.on_ack(window_, now);
  window_limited_ = false;
  if (!active_.empty() || eager_.has_work()) ready();
  say_goodbye_when_quiet();
}

// Once per burst: credit, acknowledgements, timers.
void Session::after_receive() {
  credit_.on_received(received_.largest());
  // What used up no credit asks for none.
  if (unacknowledged_ > 0) refresh_credit();
  if (unacknowledged_ >= kAckEvery) ack_now_ = true;
  if (ack_now_) {
    ready();
  } else if (unacknowledged_ > 0 && ack_deadline_ == kNever) {
    ack_deadline_ = host_.now() + kAckDelay;
  }
  update_timer();
}

}  // namespace taco::harp
