// Packets in: checked, told apart from duplicates, handed on.
#include <algorithm>

#include "harp/session/session.h"

namespace taco::harp {

void Session::on_packets(const RxPacket& packets) {
  Datagrams rest(packets);
  while (!rest.empty() && !life_.ended()) on_packet(rest, packets);
  if (!life_.ended()) after_receive();
}

// Decrypts a sealed packet where it lies. Its number in full is not in it: that must be right for
// the tag to be.
wire::Verdict Session::open(std::span<std::byte> bytes, wire::Packet& packet) {
  const Path* const path = paths_.find(packet.path);
  const PacketNonce nonce{packet.path, path == nullptr ? packet.number : path->number_of(packet),
                          (packet.flags & wire::kUncounted) != 0, wire::attempt(bytes)};
  const bool opened = sealing_->open(bytes, nonce, host_.sealing_buffer(bytes.size()));
  return opened ? wire::parse_opened(bytes, packet) : wire::Verdict::kBadChecksum;
}

// The path by which a packet has come that may act. Null: this one may not, and is counted.
Path* Session::admit(std::span<std::byte> bytes, const RxPacket& from, wire::Packet& packet) {
  ProtocolCounters& counters = host_.counters();
  // Before there are keys nothing is believed: no checksum can be told from a masked one either.
  const bool early = security_ != Security::kNone && sealing_ == nullptr;
  wire::SegmentMask segments{received_key(), 1};
  if (segments.key != nullptr && bytes.size() >= sizeof(wire::Header)) {
    const Path* const by = paths_.find(wire::peek_path(bytes));
    if (by != nullptr) segments.number = by->expected();
  }
  wire::Verdict verdict = wire::parse(bytes, packet, !early, segments);
  const bool sealed = verdict == wire::Verdict::kSealed;
  const auto refuse = [](std::uint64_t& counter) -> Path* {
    ++counter;
    return nullptr;
  };
  if (verdict == wire::Verdict::kBadChecksum) return refuse(counters.checksum_failures);
  if (verdict != wire::Verdict::kGood && !sealed) return refuse(counters.malformed);
  if (packet.connection != connection_id() || packet.type == wire::Type::kHello ||
      packet.type == wire::Type::kReset) {
    return refuse(counters.malformed);
  }
  if (sealed != seals(security_, packet.type)) return refuse(counters.unsealed);
  const bool segment = packet.type == wire::Type::kData || packet.type == wire::Type::kFragment;
  const bool trusted = (packet.flags & wire::kTrusted) != 0;
  if (trusted != (segment && trusts_payload())) return refuse(counters.unsealed);
  if (early) {
    heard_early_ = true;
    return refuse(counters.early);
  }
  if (sealed) verdict = open(bytes, packet);
  if (verdict == wire::Verdict::kBadChecksum) return refuse(counters.forged);
  Path* const path = verdict == wire::Verdict::kGood ? path_of(packet, from) : nullptr;
  return path != nullptr ? path : refuse(counters.malformed);
}

// The first of the packets, and segments that follow it.
void Session::on_packet(Datagrams& arrived, const RxPacket& from) {
  ProtocolCounters& counters = host_.counters();
  const std::span<std::byte> bytes = arrived.take();
  wire::Packet packet;
  Path* const path = admit(bytes, from, packet);
  if (path == nullptr) return;
  const bool uncounted = (packet.flags & wire::kUncounted) != 0;
  const std::uint64_t number = path->number_of(packet);
  // No segment leaves beyond the limit, so that number would be somebody else's.
  const bool segment = packet.type == wire::Type::kData || packet.type == wire::Type::kFragment;
  if (segment && number > credit_.promised()) {
    ++counters.malformed;
    return;
  }
  ++counters.packets_received;
  // A copy does nothing, and is no sign of life: it may come from anybody. Of an uncounted packet
  // it goes unanswered; and where nothing proves who has sent one, its number is not believed.
  if (uncounted && sealing_ != nullptr && !path->take_uncounted(number)) {
    ++counters.duplicates;
    return;
  }
  if (!uncounted && path->has_received(number)) {
    ++counters.duplicates;
    path->on_copy();
    return;
  }
  counters.bytes_received += packet.body.size();
  last_heard_ = silence_base_ = host_.now();
  refused_ = 0;
  if (uncounted) {
    on_frames(*path, packet, from);
    return;
  }
  // A packet that cannot be kept must not be acknowledged: it is dropped before it is noted.
  if (packet.type == wire::Type::kEager && !on_eager_packet(*path, packet)) return;
  if (packet.type == wire::Type::kFragment && !on_fragment(*path, packet)) return;
  if (packet.type == wire::Type::kControl && !on_frames(*path, packet, from)) return;
  if (life_.ended()) return;
  if (path->on_packet(number, bytes.size(), from)) ready();
  if ((packet.flags & wire::kAckSoon) != 0) path->ack().hurry();
  if (packet.type == wire::Type::kFragment) path->ack().want();
  if (packet.type == wire::Type::kData) {
    path->ack().want();
    RecvState* const state = on_data(*path, packet);
    if (state == nullptr || !path->has_just_heard(number, from)) return;
    on_following(*path, *state, {bytes, packet, {received_key(), number}}, packet, arrived);
  }
}

// Segments of the same message, in packets of the next numbers that have come the same way, are
// checked one by one like any other. That nothing else about them is new is known from the first.
void Session::on_following(Path& path, RecvState& state, wire::FollowingSegments following,
                           wire::Packet& packet, Datagrams& arrived) {
  const std::uint64_t most = credit_.promised() - path.largest_received();
  std::uint32_t count = 0;
  bool complete = false;
  while (count < most && !complete && !arrived.empty() && following.take(arrived.front(), packet)) {
    arrived.take();
    ++count;
    complete = place(state, packet);
  }
  path.on_following(count);
  host_.counters().packets_received += count;
  host_.counters().bytes_received += count * packet.body.size();
  if (complete) finish_message(path, state);
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
  state.offered = (packet.flags & wire::kOffered) != 0;
  const std::size_t segment = last && packet.segment > 0
                                  ? (packet.message_bytes - bytes) / packet.segment
                                  : std::max<std::size_t>(bytes, 1);
  state.begin(packet.message_bytes, static_cast<std::uint32_t>(segment));
  return true;
}

// The receive, if more of its message is to come.
RecvState* Session::on_data(Path& path, const wire::Packet& packet) {
  RecvState* const state = receive_of(packet.slot);
  if (state == nullptr) {
    ++host_.counters().late;
    return nullptr;
  }
  if (state->segment_bytes == 0 && !begin_message(*state, packet)) return nullptr;
  if (!place(*state, packet)) return state;
  finish_message(path, *state);
  return nullptr;
}

// True: that was the last segment missing.
bool Session::place(RecvState& state, const wire::Packet& packet) {
  ProtocolCounters& counters = host_.counters();
  const std::uint64_t offset = std::uint64_t{packet.segment} * state.segment_bytes;
  if (packet.message_bytes != state.message_bytes || packet.segment >= state.segments ||
      packet.body.size() !=
          std::min<std::uint64_t>(state.segment_bytes, state.message_bytes - offset)) {
    ++counters.malformed;
    return false;
  }
  if (!state.bits.set(packet.segment)) {
    ++counters.duplicates;
    return false;
  }
  state.consume(packet.segment, packet.body);
  if (!reassembly_.empty()) reassembly_.forget(packet.slot, packet.segment);
  return ++state.received == state.segments;
}

void Session::finish_message(Path& path, RecvState& state) {
  state.request->bytes = state.message_bytes;
  if (state.offered) events_.on_offered(state.slot);
  if (life_.ended()) return;  // that was one too many
  path.ack().hurry_next_turn();
  finish_receive(state, Status());
}

void Session::finish_receive(RecvState& state, const Status& status) {
  const SlotId slot = state.slot;
  drop_receive(state);
  events_.receive_finished(slot, status);
}

// False: there is no room for it, so it must not be acknowledged. A segment that has come whole is
// consumed like any other, so that it is consumed once.
bool Session::on_fragment(Path& path, const wire::Packet& packet) {
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
  on_data(path, whole);
  reassembly_.forget(packet.slot, packet.segment);  // whatever came of it
  return true;
}

bool Session::on_eager_packet(Path& path, const wire::Packet& packet) {
  const auto verdict = eager_filter_.add(packet.serial);
  if (verdict == SerialFilter::Verdict::kBeyondWindow) return false;
  path.ack().want();
  if (verdict == SerialFilter::Verdict::kDuplicate) {
    ++host_.counters().duplicates;
    return true;
  }
  events_.on_eager({packet.eager.group, packet.eager.tag}, packet.eager.signature, packet.body);
  return true;
}

// False: do not acknowledge the packet.
bool Session::on_frames(Path& path, const wire::Packet& packet, const RxPacket& from) {
  wire::FrameReader reader(packet.body);
  wire::Frame frame;
  bool keep = true;
  while (!life_.ended() && reader.next(frame)) {
    if (wire::asks_for_ack(frame)) {
      if (packet.flags & wire::kUncounted) {
        ++host_.counters().malformed;
        return false;
      }
      path.ack().want();
    }
    switch (frame) {
      case wire::Frame::kPing:
      case wire::Frame::kProbe:
        path.ack().hurry();
        if (!path.is_live()) doubt_where_acks_go();
        break;
      case wire::Frame::kAck:
        on_ack(reader.ack);
        break;
      case wire::Frame::kCredit:
        if (send_credit_.on_granted(reader.credit.limit, reader.credit.epoch)) ready();
        break;
      case wire::Frame::kRecords:
        keep = on_records(reader.serial, reader.records) && keep;
        break;
      case wire::Frame::kPathChallenge:
        path.on_challenge(from, reader.token);
        ready();
        break;
      case wire::Frame::kPathResponse:
        on_path_response(path, from, reader.token);
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
  reading_ = true;
  while (!life_.ended() && !asks_too_much_ && reader.next(record)) {
    deliver_record(record);
    asks_too_much_ = keeps_asking();
  }
  reading_ = false;
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
      return on_goodbye();
    case wire::RecordType::kPathOpen:
      return on_path_open(record.path_open);
    case wire::RecordType::kPathClosed:
      return on_path_closed(record.path_closed);
    case wire::RecordType::kPathMove:
      return on_path_move(record.path_move);
    default:  // of a later time
      return;
  }
}

void Session::on_goodbye() {
  if (life_.peer_left()) return;
  life_.on_peer_left();
  credit_.close();
  for (const auto& path : paths_) path->on_peer_left();
  paths_.main().ack().hurry();
  events_.on_left();
}

// Null: the message has ended.
BulkSend* Session::send_of(const SentRun& run) const {
  BulkSend* const send = run.owner < sends_.size() ? sends_[run.owner] : nullptr;
  return send != nullptr && send->generation == run.owner_generation ? send : nullptr;
}

void Session::on_bulk_acked(Path& path, const SentRun& run, std::uint64_t mask) {
  BulkSend* const send = send_of(run);
  if (send == nullptr) return;
  const bool whole = run.kind == SentRun::Kind::kBulk;
  if (whole) path.on_size_acked(run, send->datagram_of_segment(run.first_segment));
  if (!send->acknowledge(run.first_segment, mask, whole)) {
    if (send->has_work()) queue_->add(*send);  // of a split message more segments may leave now
    return;
  }
  if (send->reference.count > 0) {
    retire(*send);
    unreturned_.push_back(send);
    ready();
  } else {
    finish_send(*send, Status());
  }
}

void Session::on_run_acked(Path& path, const SentRun& run, std::uint64_t mask) {
  if (run.has_credit) credit_.on_confirmed(run.credit_epoch);
  const bool bulk = run.kind == SentRun::Kind::kBulk || run.kind == SentRun::Kind::kPieces;
  if (sealing_ != nullptr && (!bulk || seals_data())) sealing_->on_acknowledged(run.sent);
  switch (run.kind) {
    case SentRun::Kind::kBulk:
    case SentRun::Kind::kPieces:
      return on_bulk_acked(path, run, mask);
    case SentRun::Kind::kEager:
      return eager_.on_acked(run.owner);
    case SentRun::Kind::kRecords:
      records_.on_acked(run.owner);
      if (records_.empty() && block_ == nullptr) send_credit_.on_told();
      return;
    case SentRun::Kind::kMtuProbe:
      path.on_mtu_probe_acked(run);
      return ready();
    case SentRun::Kind::kProbe:
      return;
  }
}

void Session::on_bulk_lost(Path& path, const SentRun& run, std::uint64_t mask) {
  BulkSend* const send = send_of(run);
  if (send == nullptr) return;
  const bool whole = run.kind == SentRun::Kind::kBulk;
  if (whole) path.on_size_lost(run, mask, send->datagram_of_segment(run.first_segment));
  send->lose(run.first_segment, mask, whole);
  if (send->has_work()) queue_->add(*send);
  ready();
}

void Session::on_run_lost(Path& path, const SentRun& run, std::uint64_t mask) {
  if (run.has_credit) credit_.on_lost();
  switch (run.kind) {
    case SentRun::Kind::kBulk:
    case SentRun::Kind::kPieces:
      return on_bulk_lost(path, run, mask);
    case SentRun::Kind::kEager:
      eager_.on_lost(run.owner);
      return ready();
    case SentRun::Kind::kRecords:
      records_.on_lost(run.owner);
      return ready();
    case SentRun::Kind::kMtuProbe:
      return path.on_mtu_probe_lost();
    case SentRun::Kind::kProbe:
      return;
  }
}

void Session::on_ack(const wire::Ack& ack) {
  Path::News news = Path::News::kMalformed;
  if (Path* const path = paths_.find(ack.path)) {
    Fates fates(*this, *path);
    news = path->on_ack(ack, paths_.beside(*path), fates);
  }
  if (news == Path::News::kMalformed) ++host_.counters().malformed;
  if (news != Path::News::kSomething) return;
  if (!groups_.empty()) look_for_slow_paths();
  if (has_bulk() || eager_.has_work()) ready();
  say_goodbye_when_quiet();
}

// Once per burst: answers, credit, acknowledgements, timers.
void Session::after_receive() {
  if (asks_too_much_) {
    return break_off(
        "it acknowledges no answers and goes on asking; its memory is damaged, or it is not what "
        "it says");
  }
  stir();
  credit_.on_received(paths_.received());
  bool wanted = false, due = false;
  for (const auto& path : paths_) wanted |= path->ack().wanted();
  // Packets that used up no credit ask for none.
  if (wanted) refresh_credit();
  for (const auto& path : paths_) {
    path->ack().on_burst_end(host_.now());
    due |= path->ack().due();
    if (path->ack().is_pressing()) host_.press();
  }
  if (due) ready();
  update_timer();
}

}  // namespace taco::harp
