// A datagram out of a frame of which nobody has verified anything: the steps of every driver that
// gets whole frames.
//
// Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "harp/drivers/frames/ethernet.h"
#include "harp/drivers/frames/frame_port.h"
#include "harp/drivers/frames/udp_frame.h"
#include "harp/nic.h"

namespace taco::harp {

enum class TakenFrame {
  kDatagram,   // for a port of ours
  kForOthers,  // of another network, or for another host, address or port
  kDamaged,    // a length, an address or a checksum is wrong
  kOther,      // no datagram, or one that takes a whole IP stack to read
};

// `own`: the MAC addresses of this host. `path_at` says which local path has an address and port:
// std::optional<std::uint32_t>(const Endpoint&). Only what is for one of them has its checksum
// computed. The packet refers to the frame and to `source`.
template <class PathAt>
TakenFrame take_datagram(const RxFrame& frame, std::span<const MacAddress> own,
                         const PathAt& path_at, RxPacket& packet, Endpoint& source) {
  UdpFrame udp;
  const FrameVerdict verdict = parse_udp_frame(frame.bytes, frame.bytes.size(), udp);
  if (frame.of_vlan || !is_for_host(udp.ethernet, own)) return TakenFrame::kForOthers;
  if (verdict == FrameVerdict::kDamaged) return TakenFrame::kDamaged;
  if (verdict == FrameVerdict::kOther) return TakenFrame::kOther;
  const std::optional<std::uint32_t> path = path_at(udp.destination);
  if (!path) return TakenFrame::kForOthers;
  const std::span<std::byte> payload = frame.bytes.subspan(udp.payload_offset, udp.payload_bytes);
  if (!frame.checked && check_udp_checksum(udp, payload) == UdpChecksumVerdict::kBad) {
    return TakenFrame::kDamaged;
  }
  source = udp.source;
  packet = {payload, 0, &source, *path};
  return TakenFrame::kDatagram;
}

}  // namespace taco::harp
