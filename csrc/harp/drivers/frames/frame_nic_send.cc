// Datagrams out: from whom to whom, and what waits for a MAC address.
#include <algorithm>

#include "base/assert.h"
#include "harp/address.h"
#include "harp/drivers/frames/frame_nic.h"

namespace taco::harp {

namespace {

// How long a way is taken to be known without a look: so soon it is asked about again.
constexpr Duration kWayLasts = kSecond;

}  // namespace

std::size_t FrameNic::send_st(std::span<const TxPacket> packets) {
  if (closed_) return packets.size();
  alarm_.on_traffic(now_);
  std::size_t done = 0;
  while (done < packets.size()) {
    Wire& wire = wire_of(packets[done]);
    std::array<TxFrame, kBatch> frames;
    std::size_t count = 0;
    Fate fate = Fate::kReady;
    while (count < kBatch && done + count < packets.size()) {
      const TxPacket& packet = packets[done + count];
      if (&wire_of(packet) != &wire) break;
      fate = prepare(packet, frames[count]);
      if (fate != Fate::kReady) break;
      ++count;
    }
    const std::size_t sent = send_frames(wire, std::span(frames).first(count));
    done += sent;
    if (sent < count) break;
    if (fate == Fate::kReady) continue;
    if (fate == Fate::kWaits) keep_waiting(packets[done]);
    ++done;
  }
  return done;
}

void FrameNic::recall_st(TxReference& reference) {
  for (const Wire& wire : wires_) wire.link.port->recall_st(&reference);
  TACO_ASSERT(reference.count == 0);
}

// Everything is taken while a link is down, and lost, as by a cable that is not plugged in.
std::size_t FrameNic::send_frames(Wire& wire, std::span<const TxFrame> frames) {
  if (frames.empty()) return 0;
  const std::size_t sent = wire.is_up ? wire.link.port->send_st(frames) : 0;
  wire.is_full = sent < frames.size();
  if (!wire.is_full) return sent;
  wire.is_up = wire.link.port->is_up_st();
  if (wire.is_up) return sent;
  wire.is_full = false;
  drops_.link_down += frames.size() - sent;
  return frames.size();
}

FrameNic::Fate FrameNic::prepare(const TxPacket& packet, TxFrame& frame) {
  TACO_ASSERT(packet.segment_bytes == 0);
  if (packet.bytes > addresses_[packet.local_path].max_datagram) {
    ++drops_.too_large;
    return Fate::kLost;
  }
  const Wire& wire = wire_of(packet);
  const bool is_known = way_.local_path == packet.local_path && now_ < way_.until &&
                        way_.changes == wire.neighbours.changes() &&
                        way_.destination == *packet.destination;
  if (!is_known && !find_way(packet.local_path, *packet.destination)) {
    return way_.local_path == UINT32_MAX ? Fate::kLost : Fate::kWaits;
  }
  const UdpDatagram datagram{packet.slices, packet.bytes, checksum_by(packet)};
  frame.header_bytes = static_cast<std::uint8_t>(udp_headers_bytes(*packet.destination));
  frame.ip_bytes =
      static_cast<std::uint8_t>(frame.header_bytes - kEthernetHeader - kUdpHeaderBytes);
  frame.slices = packet.slices;
  frame.bytes = packet.bytes;
  frame.reference = packet.reference;
  write_udp_headers(way_.flow, datagram, frame.headers);
  return Fate::kReady;
}

// Over IPv6 there always is one. What stays in memory needs none that HARP's own does not make
// needless.
UdpChecksumBy FrameNic::checksum_by(const TxPacket& packet) const {
  const FramePortInfo& port = wire_of(packet).link.port->info();
  if (port.checksums) return UdpChecksumBy::kHardware;
  const bool may_lack = port.in_memory && !options_.needs_checksums;
  return may_lack && !is_ipv6(*packet.destination) ? UdpChecksumBy::kNobody
                                                   : UdpChecksumBy::kSoftware;
}

// False: nobody leads there, and way_ is none; or its MAC address is not known yet.
bool FrameNic::find_way(std::uint32_t local_path, const Endpoint& destination) {
  Wire& wire = wires_[paths_[local_path].wire];
  const Endpoint& own = addresses_[local_path].endpoint;
  const auto hop =
      is_ipv6(own) == is_ipv6(destination) ? next_hop(wire.link, own, destination) : std::nullopt;
  way_.local_path = UINT32_MAX;
  if (!hop) {
    ++drops_.no_route;
    return false;
  }
  const auto mac = wire.neighbours.look_up(*hop, now_);
  way_ = {local_path,
          destination,
          wire.neighbours.changes(),
          mac ? now_ + kWayLasts : 0,
          {wire.link.port->info().mac, mac.value_or(MacAddress{}), own, destination}};
  return mac.has_value();
}

void FrameNic::keep_waiting(const TxPacket& packet) {
  const Wire& wire = wire_of(packet);
  const auto hop = next_hop(wire.link, addresses_[packet.local_path].endpoint, *packet.destination);
  const auto already = std::ranges::count_if(
      waiting_, [&](const Waiting& each) { return same_host_address(each.hop, *hop); });
  if (waiting_.size() == kMaxWaiting || already == kMaxWaitingForOne) {
    ++drops_.no_neighbour;
    return;
  }
  Waiting& kept =
      waiting_.emplace_back(Waiting{packet.local_path, *packet.destination, *hop, now_, {}});
  kept.datagram.reserve(packet.bytes);
  for (const IoSlice& slice : packet.slices) {
    const auto* const data = static_cast<const std::byte*>(slice.data);
    kept.datagram.insert(kept.datagram.end(), data, data + slice.bytes);
  }
}

// A MAC address has become known, perhaps one that some wait for. A ring that is full loses them.
void FrameNic::send_waiting(Wire& wire) {
  std::deque<Waiting> others;
  for (Waiting& each : std::exchange(waiting_, {})) {
    const IoSlice slice{each.datagram.data(), each.datagram.size()};
    TxPacket packet;
    packet.destination = &each.destination;
    packet.local_path = each.local_path;
    packet.slices = {&slice, 1};
    packet.bytes = each.datagram.size();
    TxFrame frame;
    if (&wire_of(packet) != &wire || prepare(packet, frame) != Fate::kReady) {
      others.push_back(std::move(each));
    } else if (send_frames(wire, {&frame, 1}) == 0) {
      ++drops_.ring_full;
    }
  }
  waiting_ = std::move(others);
}

// One that does not leave is sent again when it is asked for again.
void FrameNic::send_message(Wire& wire, std::span<const std::byte> frame) {
  TxFrame out;
  std::ranges::copy(frame.first(kEthernetHeader), out.headers.begin());
  out.header_bytes = kEthernetHeader;
  const IoSlice rest{frame.data() + kEthernetHeader, frame.size() - kEthernetHeader};
  out.slices = {&rest, 1};
  out.bytes = rest.bytes;
  if (wire.is_up) wire.link.port->send_st({&out, 1});
}

}  // namespace taco::harp
