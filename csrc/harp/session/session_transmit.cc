// Packets out, in order of urgency: handshake, acknowledgements and records, eager messages, runs
// of segments. A packet is built, offered to the Nic, and only then becomes part of our state.
#include <algorithm>

#include "harp/session/session.h"

namespace taco::harp {
namespace {

// Credit kept back from bulk data, so that small packets need not wait behind it.
constexpr std::uint64_t kCreditReserve = 4;
// Runs shorter than this wait for more room, as long as something is in flight.
constexpr std::uint32_t kWorthARun = 8;

}  // namespace

Session::Turn Session::transmit(std::size_t budget) {
  finish_taken();
  if (state_ == State::kEnded) return Turn::kDone;
  for (std::size_t i = unreturned_.size(); i-- > 0;) {
    if (unreturned_[i]->reference.count > 0) continue;
    BulkSend& send = *unreturned_[i];
    unreturned_.erase(unreturned_.begin() + static_cast<std::ptrdiff_t>(i));
    finish_send(send, Status());
  }
  Sent sent = send_hello();
  if (established()) {
    while (sent != Sent::kNicFull && (sent = send_control()) == Sent::kYes) {
    }
    while (sent != Sent::kNicFull && (sent = send_eager()) == Sent::kYes) {
    }
    while (sent != Sent::kNicFull && budget > 0 && (sent = send_run(budget)) == Sent::kYes) {
    }
  }
  update_timer();
  if (sent == Sent::kNicFull) {
    ++host_.counters().nic_full;
    return Turn::kNicFull;
  }
  return sent == Sent::kYes || !unreturned_.empty() ? Turn::kMore : Turn::kDone;
}

// Seals the header and offers header and body as one datagram.
bool Session::offer_packet(wire::Header& header, std::span<const std::byte> body) {
  wire::seal(header, body);
  const std::array<IoSlice, 2> slices{IoSlice{&header, sizeof header},
                                      IoSlice{body.data(), body.size()}};
  TxPacket packet;
  packet.destination = &remote_;
  packet.local_path = config_.local_path;
  packet.slices = slices;
  packet.bytes = sizeof header + body.size();
  if (host_.nic().send_st({&packet, 1}) == 0) return false;
  recent_.add(header);
  ++host_.counters().packets_sent;
  return true;
}

bool Session::within_credit(std::uint32_t packets) const {
  return next_number_ + packets - 1 <= peer_limit_ || host_.test_hooks().skip_credit;
}

// Remembers what has just left.
void Session::commit(SentRun run) {
  run.first = next_number_;
  run.sent = host_.now();
  run.pending = run.count == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << run.count) - 1;
  next_number_ += run.count;
  probe_base_ = host_.now();
  credit_blocked_ = false;
  sent_.add(run);
}

// One packet of frames: acknowledgement and credit, then a block of records or a ping.
Session::Sent Session::send_control() {
  if (!records_.has_work()) seal_block();
  const bool with_records = records_.has_work() && within_credit(1);
  const bool lowering = credit_.lowering() && !lowering_in_flight_;
  if (!ack_now_ && !with_records && !probe_due_ && !lowering) {
    if (records_.has_work()) credit_blocked_ = true;
    return Sent::kNothing;
  }
  SmallSender::Packet block{};
  if (with_records) block = records_.front();
  credit_.refresh();
  const std::size_t tail =
      with_records ? wire::kRecordsOverhead + block.bytes.size() : wire::kPingBytes;
  const std::span<std::byte> buffer(host_.scratch_.body);
  wire::Writer writer(buffer.first(buffer.size() - sizeof(wire::Header) - tail));
  writer.credit({credit_.limit(), credit_.epoch()});
  if (received_.largest() > 0 && (ack_now_ || unacknowledged_ > 0)) {
    wire::Ack ack;
    received_.fill(ack, host_.now());
    writer.ack(ack);
  }
  wire::Writer end(buffer.subspan(writer.size(), tail));
  const bool eliciting = with_records || probe_due_ || lowering;
  if (with_records) {
    end.records(block.serial, block.bytes);
  } else if (eliciting) {
    end.ping();
  }
  const std::size_t bytes = writer.size() + end.size();
  wire::Header header = wire::frames_header(wire::Type::kControl, peer_connection_, 0,
                                            eliciting ? next_number_ : next_uncounted_, bytes,
                                            eliciting ? 0 : wire::kUncounted);
  if (!offer_packet(header, buffer.first(bytes))) return Sent::kNicFull;

  ack_now_ = false;
  unacknowledged_ = 0;
  ack_deadline_ = kNever;
  if (!eliciting) {
    ++next_uncounted_;
    return Sent::kYes;
  }
  SentRun run;
  run.has_credit = true;
  run.credit_epoch = credit_.epoch();
  lowering_in_flight_ = credit_.lowering();
  if (with_records) {
    run.kind = SentRun::Kind::kRecords;
    run.owner = block.serial;
    records_.mark_sent(block.serial);
    if (block.again) ++host_.counters().retransmits;
  } else if (probe_due_) {
    ++host_.counters().probes;
    ++unanswered_probes_;
  }
  probe_due_ = false;
  commit(run);
  return Sent::kYes;
}

Session::Sent Session::send_eager() {
  if (!eager_.has_work()) return Sent::kNothing;
  if (sent_.in_flight() >= static_cast<std::uint32_t>(window_.window)) {
    window_limited_ = true;
    return Sent::kNothing;
  }
  if (!within_credit(1)) {
    credit_blocked_ = true;
    return Sent::kNothing;
  }
  const SmallSender::Packet packet = eager_.front();
  wire::Header header = wire::eager_header(peer_connection_, 0, next_number_, packet.serial,
                                           packet.bytes.size() - sizeof(wire::EagerDescriptor));
  if (!offer_packet(header, packet.bytes)) return Sent::kNicFull;
  host_.counters().bytes_sent += packet.bytes.size();
  if (packet.again) ++host_.counters().retransmits;
  eager_.mark_sent(packet.serial);
  SentRun run;
  run.kind = SentRun::Kind::kEager;
  run.owner = packet.serial;
  commit(run);
  return Sent::kYes;
}

// How many of `wanted` segments may leave now; notes what stands in the way.
std::uint32_t Session::room_for(std::uint32_t wanted) {
  const auto window = static_cast<std::uint32_t>(window_.window);
  const std::uint32_t in_flight = sent_.in_flight();
  std::uint32_t room = window > in_flight ? window - in_flight : 0;
  if (room < wanted) window_limited_ = true;
  if (!host_.test_hooks().skip_credit) {
    const std::uint64_t used = next_number_ - 1;
    std::uint64_t credit = peer_limit_ > used ? peer_limit_ - used : 0;
    credit -= std::min(kCreditReserve, credit / 4);
    if (credit < wanted) {
      window_limited_ = false;  // a larger window would not help
      if (credit == 0) credit_blocked_ = true;
    }
    room = static_cast<std::uint32_t>(std::min<std::uint64_t>(room, credit));
  }
  const std::uint32_t granted = std::min(room, wanted);
  return granted < std::min(wanted, kWorthARun) && in_flight > 0 ? 0 : granted;
}

// Headers, checksums and gather list of a run of consecutive segments. Returns its bytes.
std::size_t Session::fill_run(BulkSend& send, SegmentRange range) {
  SessionHost::Scratch& scratch = host_.scratch_;
  std::size_t bytes = 0;
  for (std::uint32_t i = 0; i < range.count; ++i) {
    const std::uint32_t segment = range.first + i;
    const std::size_t payload = send.bytes_of(segment);
    const std::byte* data = send.data_of(segment);
    wire::Header& header = scratch.headers[i];
    header = wire::data_header(peer_connection_, 0, next_number_ + i, send.slot, segment,
                               send.request->bytes,
                               segment + 1 == send.segments ? wire::kLastSegment : 0);
    wire::seal(header, {data, payload});
    scratch.slices[2 * i] = {&header, sizeof header};
    scratch.slices[2 * i + 1] = {data, payload};
    bytes += sizeof header + payload;
  }
  return bytes;
}

// Groups take turns, so that none waits for another's large messages. Within a group the oldest
// message goes first: messages that took turns would all end late and together, and with them the
// receives whose end lets the receiver ask for more.
BulkSend* Session::next_send() const {
  BulkSend* after = nullptr;  // of the next group id beyond the last one served
  BulkSend* least = nullptr;  // of the least group id: where the round starts again
  const auto group_of = [](const BulkSend* send) { return send->request->key.group; };
  for (BulkSend* send = first_active_; send != nullptr; send = send->next_active) {
    if (least == nullptr || group_of(send) < group_of(least)) least = send;
    if (group_of(send) <= last_group_) continue;
    if (after == nullptr || group_of(send) < group_of(after)) after = send;
  }
  return after != nullptr ? after : least;
}

// Up to one super-packet of one message.
Session::Sent Session::send_run(std::size_t& budget) {
  if (first_active_ == nullptr) return Sent::kNothing;
  const NicCapabilities& nic = host_.nic().capabilities();
  SessionHost::Scratch& scratch = host_.scratch_;
  BulkSend& send = *next_send();
  const std::size_t segment = sizeof(wire::Header) + send.segment_bytes;
  const std::size_t longest =
      nic.gso_segments > 1 ? std::min(nic.gso_segments, nic.gso_bytes / segment) : 16;
  const auto wanted = static_cast<std::uint32_t>(std::min<std::size_t>(
      {longest, SessionHost::kRunSegments,
       send.lost.empty() ? send.segments - send.next : send.lost.back().count}));
  const std::uint32_t room = wanted == 0 ? 0 : room_for(wanted);
  if (wanted > 0 && room == 0) return Sent::kNothing;
  bool again = false;
  const SegmentRange range = send.take(room, again);
  if (range.count == 0) {
    deactivate(send);
    return Sent::kYes;
  }
  const std::size_t bytes = fill_run(send, range);
  const bool one_packet = nic.gso_segments > 1 || range.count == 1;
  const std::size_t packets = one_packet ? 1 : range.count;
  for (std::size_t i = 0; i < packets; ++i) {
    const std::size_t slices = one_packet ? 2 * range.count : 2;
    TxPacket& packet = scratch.packets[i];
    packet.destination = &remote_;
    packet.local_path = config_.local_path;
    packet.slices = std::span<const IoSlice>(scratch.slices).subspan(2 * i, slices);
    packet.bytes = one_packet ? bytes : sizeof(wire::Header) + scratch.slices[2 * i + 1].bytes;
    packet.segment_bytes = one_packet && range.count > 1 ? segment : 0;
    packet.alternating = true;
    packet.reference = nic.asynchronous_return ? &send.reference : nullptr;
  }
  const std::size_t taken = host_.nic().send_st({scratch.packets.data(), packets});
  const std::uint32_t left =
      one_packet ? (taken == 1 ? range.count : 0) : static_cast<std::uint32_t>(taken);
  if (left < range.count) send.put_back({range.first + left, range.count - left}, again);
  if (left > 0) {
    SentRun run;
    run.kind = SentRun::Kind::kBulk;
    run.owner = send.index;
    run.owner_generation = send.generation;
    run.first_segment = range.first;
    run.count = static_cast<std::uint8_t>(left);
    commit(run);
    host_.counters().packets_sent += left;
    host_.counters().bytes_sent += std::size_t{left} * send.segment_bytes;
    if (again) host_.counters().retransmits += left;
    budget -= std::min(budget, std::size_t{left} * send.segment_bytes);
  }
  last_group_ = send.request->key.group;
  if (!send.has_work()) deactivate(send);
  return left < range.count ? Sent::kNicFull : Sent::kYes;
}

}  // namespace taco::harp
