// Packets out, in order of urgency: handshake, what each path is asked, acknowledgements and
// records, eager messages, runs of segments, each by the path that brings it soonest. A packet is
// built, offered to the Nic, and only then becomes part of our state.
#include <algorithm>
#include <utility>

#include "harp/session/session.h"

namespace taco::harp {
namespace {

// Frames of a packet that is answered by a reset, should the peer have ended: a reset is no longer
// than what it answers.
constexpr std::size_t kLeastPing = wire::kResetBytes;

std::uint32_t address_bit(const Path& path) { return 1u << path.pair().local; }

}  // namespace

Session::Turn Session::transmit(std::size_t budget) {
  finish_taken();
  full_ = 0;
  if (life_.ended()) return Turn::kDone;
  finish_returned();
  if (sealing_ != nullptr && sealing_->begin_turn(host_.now())) paths_.main().probe();
  const Sent sent = send_hello();
  bool more = sent == Sent::kYes && !established();
  if (established() && full_ == 0) {
    for (const auto& path : paths_) {
      if (transmit_small(*path) == Sent::kNicFull) full_ |= address_bit(*path);
    }
    more |= transmit_runs(budget);
    more |= ask_for_credit();
  }
  update_timer();
  if (full_ != 0) ++host_.counters().nic_full;
  if (more || !unreturned_.empty()) return Turn::kMore;
  return full_ != 0 ? Turn::kNicFull : Turn::kDone;
}

// Whatever is no segment. Of a path that is not live, only what asks where it leads.
Session::Sent Session::transmit_small(Path& path) {
  Sent sent = path.send_tokens();
  if (!path.is_live()) {
    give_back_credit(path, path.in_flight());
    return sent;
  }
  while (sent != Sent::kNicFull && (sent = path.send_mtu_probe()) == Sent::kYes) {
  }
  while (sent != Sent::kNicFull && (sent = send_control(path)) == Sent::kYes) {
  }
  while (sent != Sent::kNicFull && (sent = send_eager(path)) == Sent::kYes) {
  }
  return sent;
}

// Run after run by the path that brings it soonest. True: the budget is used up.
bool Session::transmit_runs(std::size_t budget) {
  share_out();
  std::uint32_t tried = 0, index = 0;
  while (budget > 0) {
    Path* const path = paths_.soonest(tried, &index);
    if (path == nullptr) return false;
    const bool full = (full_ & address_bit(*path)) != 0;
    const Sent sent = full || !worth_it(*path, tried) ? Sent::kNothing : send_run(*path, budget);
    if (sent == Sent::kNicFull) full_ |= address_bit(*path);
    if (sent != Sent::kYes) tried |= 1u << index;
  }
  return true;
}

// Which path brings something soonest is a guess, and whatever has left by the wrong one is waited
// for. So of what there is to be sent or acknowledged, each of several paths may have half of its
// part under way; the rest leaves by whichever has delivered what it had. (Of large messages that
// is more than their windows allow anyway.)
void Session::share_out() {
  const std::size_t live = paths_.live();
  if (live < 2) return paths_.main().take_all();
  std::size_t all = queue_ == nullptr ? 0 : queue_->unsent();
  for (const auto& path : paths_) all += path->in_flight();
  for (const auto& path : paths_) path->set_share(all / (2 * live));
}

// Are the last segments of the last message there sooner by this path than if they wait for room on
// one of those that were tried before it?
bool Session::worth_it(const Path& path, std::uint32_t tried) const {
  if (tried == 0 || !has_bulk() || !queue_->has_one()) return true;
  const BulkSend* const last = queue_->next();
  if (last == nullptr) return true;
  const BulkSend& send = *last;
  const std::size_t left = send.units - send.next;
  const Duration arrival = path.arrival();
  std::uint32_t index = 0;
  for (const auto& other : paths_) {
    const bool waits = (tried >> index++ & 1) != 0 && other->is_crowded() &&
                       send.datagram_bytes() <= other->mtu().usable();
    if (waits && other->arrival(left) < arrival) return false;
  }
  return true;
}

// Patience would gain nothing. True: a packet that asks is to leave.
bool Session::ask_for_credit() {
  if (!send_credit_.is_to_be_asked_for() || life_.peer_left()) return false;
  send_credit_.on_asked();
  paths_.main().probe();
  return true;
}

// Packets that have come by a path which is not live are acknowledged by the main one.
bool Session::owes_ack(const Path& path) const {
  if (path.ack().due()) return true;
  if (&path != &paths_.main()) return false;
  return std::any_of(paths_.begin(), paths_.end(),
                     [](const auto& other) { return !other->is_live() && other->ack().due(); });
}

// Writes the acknowledgements of its own path and, by the main one, those of paths that are not
// live. With a goodbye, those of all paths: it may overtake what they say themselves, and nobody
// asks a peer again that has left. Returns the paths beside its own (bit i: the i-th).
std::uint32_t Session::write_acks(const Path& path, wire::Writer& writer) const {
  const bool is_main = &path == &paths_.main();
  const bool all = is_main && life_.said_goodbye();
  const std::size_t share = std::max(writer.room() / paths_.count(), wire::kAckBytes);
  const std::size_t ranges = 1 + (share - wire::kAckBytes) / wire::kAckRangeBytes;
  const auto is_due = [&](const Path& which) {
    return all ? which.largest_received() > 0 : which.may_ack();
  };
  const auto write = [&](const Path& which) {
    wire::Ack ack;
    which.fill(ack);
    if (all) ack.count = std::min(ack.count, static_cast<std::uint32_t>(ranges));
    return writer.ack(ack);
  };
  if (is_due(path)) write(path);
  std::uint32_t others = 0, bit = 1;
  if (!is_main) return others;
  for (const auto& other : paths_) {
    const std::uint32_t own = std::exchange(bit, bit << 1);
    if (other.get() == &path || (other->is_live() && !all)) continue;
    if (!is_due(*other) || write(*other)) others |= own;
  }
  return others;
}

// One packet of frames: acknowledgements and credit, then a block of records or a ping.
Session::Sent Session::send_control(Path& path) {
  if (!records_.has_work()) seal_block();
  const bool is_main = &path == &paths_.main();
  // A peer that has heard goodbye grants nothing more; it may yet have to be said again.
  const bool allowed = send_credit_.may_tell() || life_.said_goodbye();
  const bool with_records = is_main && records_.has_work() && allowed;
  const bool probe = path.is_live() && path.probe_due();
  const bool untold = is_main && credit_.lowering() == CreditAccount::Lowering::kUntold;
  if (!owes_ack(path) && !with_records && !probe && !untold) {
    if (is_main && records_.has_work()) send_credit_.set_blocked();
    return Sent::kNothing;
  }
  SmallSender::Packet block{};
  if (with_records) block = records_.front();
  credit_.refresh();
  const bool counted = with_records || probe || untold;
  const std::size_t tail =
      with_records ? wire::kRecordsOverhead + block.bytes.size() : wire::kPingBytes;
  const std::span<std::byte> buffer(host_.scratch_.body);
  wire::Writer writer(
      buffer.first(buffer.size() - sizeof(wire::Header) - path.small_tag_bytes() - tail));
  writer.credit({credit_.limit(), credit_.epoch()});
  const std::uint32_t others = write_acks(path, writer);
  wire::Writer end(buffer.subspan(writer.size(), std::max(tail, kLeastPing)));
  if (with_records) {
    end.records(block.serial, block.bytes);
  } else if (counted) {
    end.ping();
    if (writer.size() + end.size() < kLeastPing) {
      end.padding(kLeastPing - writer.size() - end.size());
    }
  }
  if (!path.send_frames(buffer.first(writer.size() + end.size()), counted)) return Sent::kNicFull;
  paths_.on_acks_sent(others);
  if (!counted) return Sent::kYes;
  SentRun run;
  run.has_credit = true;
  run.credit_epoch = credit_.epoch();
  credit_.on_told();
  if (with_records) {
    run.kind = SentRun::Kind::kRecords;
    run.owner = block.serial;
    records_.mark_sent(block.serial);
    if (block.again) ++host_.counters().retransmits;
  } else if (probe) {
    ++host_.counters().probes;
  }
  path.commit(run);
  return Sent::kYes;
}

Session::Sent Session::send_eager(Path& path) {
  if (!eager_.has_work() || !path.has_room()) return Sent::kNothing;
  const SmallSender::Packet packet = eager_.front();
  wire::Header header = wire::eager_header(path.next_id(), packet.serial,
                                           packet.bytes.size() - sizeof(wire::EagerDescriptor));
  if (!path.offer(header, packet.bytes)) return Sent::kNicFull;
  path.count_payload(packet.bytes.size());
  if (packet.again) ++host_.counters().retransmits;
  eager_.mark_sent(packet.serial);
  SentRun run;
  run.kind = SentRun::Kind::kEager;
  run.owner = packet.serial;
  path.commit(run);
  return Sent::kYes;
}

// The flags of packets that are not sealed.
std::uint8_t Session::flags_of(const BulkSend& send, std::uint32_t segment) const {
  return static_cast<std::uint8_t>(send.flags_of(segment) |
                                   (trusts_payload() ? wire::kTrusted : 0));
}

// The flags of the last packet of a run, beside its segment's.
std::uint8_t Session::flags_of_last(const Path& path, SegmentRange range) {
  return path.wants_news(range.count) ? wire::kAckSoon : 0;
}

// Headers, checksums and gather list of a run of consecutive segments. Returns its bytes.
std::size_t Session::fill_run(const Path& path, BulkSend& send, SegmentRange range) {
  SessionHost::Scratch& scratch = host_.scratch_;
  wire::SegmentHeaders headers(path.next_id(), send.slot, range.first, send.request->bytes,
                               segment_key());
  const std::uint8_t flags = flags_of(send, range.first);
  const std::uint32_t last = range.count - 1;
  const std::byte* data = send.data_of(range.first);
  const auto add = [&](std::uint32_t i, std::uint8_t flags_here, std::size_t payload) {
    scratch.headers[i] = headers.next(flags_here, {data, payload});
    scratch.slices[2 * i] = {&scratch.headers[i], sizeof(wire::Header)};
    scratch.slices[2 * i + 1] = {data, payload};
    data += payload;
  };
  // Only the last one may end the message, and be shorter than the others.
  for (std::uint32_t i = 0; i < last; ++i) add(i, flags, send.segment_bytes);
  const std::uint32_t end = range.first + last;
  add(last, flags_of(send, end) | flags_of_last(path, range), send.bytes_of(end));
  const auto payload = static_cast<std::size_t>(data - send.data_of(range.first));
  return range.count * sizeof(wire::Header) + payload;
}

// The same for pieces of one segment.
std::size_t Session::fill_pieces(const Path& path, BulkSend& send, SegmentRange range) {
  SessionHost::Scratch& scratch = host_.scratch_;
  const std::uint32_t segment = send.segment_of(range.first);
  const std::uint8_t last = flags_of_last(path, range);
  const HeaderKey* const key = segment_key();
  wire::PacketId id = path.next_id();
  std::size_t bytes = 0;
  for (std::uint32_t i = 0; i < range.count; ++i, ++id.number) {
    const std::uint32_t unit = range.first + i;
    const std::size_t payload = send.bytes_of(unit);
    const std::byte* data = send.data_of(unit);
    SessionHost::PieceHeader& front = scratch.piece_headers[i];
    const std::uint8_t flags = flags_of(send, segment) | (i + 1 == range.count ? last : 0);
    front.header = wire::fragment_header(id, send.slot, segment, send.request->bytes, flags);
    front.piece = {static_cast<std::uint16_t>(send.offset_in_segment(unit) / wire::kGranule),
                   static_cast<std::uint16_t>(send.bytes_of_segment(segment))};
    constexpr std::size_t kFront = sizeof front.header + sizeof front.piece;
    wire::seal(front.header, std::as_bytes(std::span(&front.piece, 1)), {data, payload},
               {key, id.number});
    scratch.slices[2 * i] = {&front, kFront};
    scratch.slices[2 * i + 1] = {data, payload};
    bytes += kFront + payload;
  }
  return bytes;
}

// Segments or pieces of one, sealed: what leaves is a copy of the payload.
std::size_t Session::fill_sealed(const Path& path, BulkSend& send, SegmentRange range) {
  SessionHost::Scratch& scratch = host_.scratch_;
  std::byte* out = host_.sealing_buffer(range.count * send.datagram_bytes()).data();
  const std::uint8_t last = flags_of_last(path, range);
  wire::PacketId id = path.next_id();
  std::size_t bytes = 0;
  for (std::uint32_t i = 0; i < range.count; ++i, ++id.number) {
    const std::uint32_t unit = range.first + i, segment = send.segment_of(unit);
    const std::uint8_t flags = send.flags_of(segment) | (i + 1 == range.count ? last : 0);
    const std::span<const std::byte> payload{send.data_of(unit), send.bytes_of(unit)};
    wire::Header& header = scratch.headers[i];
    wire::FragmentDescriptor piece{};
    std::span<const std::byte> front;
    if (send.is_split()) {
      header = wire::fragment_header(id, send.slot, segment, send.request->bytes, flags);
      piece = {static_cast<std::uint16_t>(send.offset_in_segment(unit) / wire::kGranule),
               static_cast<std::uint16_t>(send.bytes_of_segment(segment))};
      front = std::as_bytes(std::span(&piece, 1));
    } else {
      header = wire::data_header(id, send.slot, segment, send.request->bytes, flags);
    }
    sealing_->seal(header, path.nonce_of(id), front, payload, out);
    const std::size_t body = front.size() + payload.size() + wire::kTagBytes;
    scratch.slices[2 * i] = {&header, sizeof header};
    scratch.slices[2 * i + 1] = {out, body};
    out += body;
    bytes += sizeof header + body;
  }
  return bytes;
}

// Segments that an interface would have to break into fragments could not leave in runs.
std::size_t Session::segment_bytes(std::size_t message_bytes) const {
  const std::span<const NicAddress> addresses = host_.nic().addresses();
  std::size_t datagram = paths_.datagram();
  for (const auto& path : paths_) {
    const std::size_t whole = addresses[path->pair().local].whole_datagram;
    if (whole != 0 && path->is_live()) datagram = std::min(datagram, whole);
  }
  return std::max(wire::segment_bytes(datagram, tag_bytes(security_, wire::Type::kData)),
                  wire::least_segment_bytes(message_bytes));
}

// Does the path carry this message's units as they are? A message that has not begun takes the
// size that all paths carry; one whose segments have become too large for all goes on in pieces.
// False: the path is in doubt, or another one carries them.
bool Session::fit(Path& path, BulkSend& send) {
  PathMtu& mtu = path.mtu();
  if (mtu.on_traffic(host_.now())) ready();
  const std::size_t segment = segment_bytes(send.request->bytes);
  if (send.untouched() && send.segment_bytes != segment) send.resize(segment);
  if (send.datagram_bytes() <= mtu.usable()) return true;
  if (mtu.in_doubt()) return false;
  for (const auto& other : paths_) {
    if (other->is_live() && send.datagram_bytes() <= other->mtu().size()) return false;
  }
  send.split();
  return true;
}

// Offers the run as one super-packet, or packet by packet. Returns how many of them have left.
std::uint32_t Session::offer_run(const Path& path, BulkSend& send, SegmentRange range) {
  const NicCapabilities& nic = host_.nic().capabilities();
  SessionHost::Scratch& scratch = host_.scratch_;
  const std::size_t bytes = seals_data()      ? fill_sealed(path, send, range)
                            : send.is_split() ? fill_pieces(path, send, range)
                                              : fill_run(path, send, range);
  const bool one_packet = nic.gso_segments > 1 || range.count == 1;
  const std::size_t packets = one_packet ? 1 : range.count;
  for (std::size_t i = 0; i < packets; ++i) {
    const std::size_t slices = one_packet ? 2 * range.count : 2;
    TxPacket& packet = scratch.packets[i];
    packet.destination = &path.pair().remote;
    packet.local_path = path.pair().local;
    packet.slices = std::span<const IoSlice>(scratch.slices).subspan(2 * i, slices);
    packet.bytes =
        one_packet ? bytes : scratch.slices[2 * i].bytes + scratch.slices[2 * i + 1].bytes;
    packet.segment_bytes = one_packet && range.count > 1 ? send.datagram_bytes() : 0;
    packet.alternating = true;
    packet.reference = nic.asynchronous_return && !seals_data() ? &send.reference : nullptr;
  }
  const std::size_t taken = host_.nic().send_st({scratch.packets.data(), packets});
  if (one_packet) return taken == 1 ? range.count : 0;
  return static_cast<std::uint32_t>(taken);
}

// Up to one super-packet of one message.
Session::Sent Session::send_run(Path& path, std::size_t& budget) {
  const NicCapabilities& nic = host_.nic().capabilities();
  BulkSend* const chosen = queue_ == nullptr ? nullptr : queue_->next();
  if (chosen == nullptr || !fit(path, *chosen)) return Sent::kNothing;
  BulkSend& send = *chosen;
  if (send.is_split() && !queue_->may_leave_in_pieces(send)) {
    queue_->add(send);  // it has just been split, and waits
    return Sent::kYes;
  }
  const std::size_t datagram = send.datagram_bytes();
  const std::size_t payload = datagram - sizeof(wire::Header) - send.tag_bytes;
  const std::size_t longest =
      nic.gso_segments > 1 ? std::min(nic.gso_segments, nic.gso_bytes / datagram) : 16;
  const auto wanted = static_cast<std::uint32_t>(
      std::min<std::size_t>({longest, SessionHost::kRunSegments,
                             send.lost.empty() ? send.units - send.next : send.lost.back().count}));
  const std::uint32_t room = wanted == 0 ? 0 : path.room_for(wanted);
  if (wanted > 0 && room == 0) return Sent::kNothing;
  bool again = false;
  const SegmentRange range = send.take(room, again);
  if (range.count == 0) {
    queue_->remove(send);
    return Sent::kYes;
  }
  const std::uint32_t left = offer_run(path, send, range);
  if (left < range.count) path.on_not_taken(range.count, left);
  if (left < range.count) send.put_back({range.first + left, range.count - left}, again);
  if (left > 0) {
    SentRun run;
    run.kind = send.is_split() ? SentRun::Kind::kPieces : SentRun::Kind::kBulk;
    run.owner = send.index;
    run.owner_generation = send.generation;
    run.first_segment = range.first;
    run.count = static_cast<std::uint8_t>(left);
    path.commit(run);
    if (send.units > 1) path.on_datagram(datagram);
    host_.counters().packets_sent += left;
    path.count_payload(std::size_t{left} * payload);
    if (again) host_.counters().retransmits += left;
    budget -= std::min(budget, std::size_t{left} * payload);
  }
  if (!again) queue_->on_served(send);
  if (send.has_work()) {
    queue_->add(send);
  } else {
    queue_->remove(send);
  }
  return left < range.count ? Sent::kNicFull : Sent::kYes;
}

}  // namespace taco::harp
