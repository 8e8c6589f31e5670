// Ethernet frames that hold one UDP datagram, over IPv4 or IPv6: read from a network that may be
// hostile, and written. For drivers without a kernel between them and the interface.
//
// Pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "harp/drivers/frames/ethernet.h"
#include "harp/nic.h"

namespace taco::harp {

enum class FrameVerdict {
  kUdp,
  // Something else, or a UDP datagram that takes a whole IP stack to read: fragments, extension
  // headers of IPv6, more than one VLAN tag.
  kOther,
  // A length, an address or the checksum of an IPv4 header is wrong. To be dropped.
  kDamaged,
};

// The headers of a datagram that has arrived.
struct UdpFrame {
  EthernetHeader ethernet;
  Endpoint source;  // with ports
  Endpoint destination;
  std::size_t payload_offset = 0;  // in the frame
  std::size_t payload_bytes = 0;   // all of which lies in the frame
  std::uint16_t checksum = 0;      // as the header has it
};

// `head`: the beginning of the frame, or all of it; the headers have to be in it. `frame_bytes`:
// how long the frame is; behind the datagram there may be padding. `out` holds what was read when
// the verdict is kUdp, and the Ethernet header whatever it is, if there is one that can be read.
FrameVerdict parse_udp_frame(std::span<const std::byte> head, std::size_t frame_bytes,
                             UdpFrame& out);

enum class UdpChecksumVerdict {
  kGood,
  kBad,
  kAbsent,  // over IPv4 a sender need not compute one
  // Left to hardware that it has not met: the frame came from this very machine, by no wire.
  kUnfinished,
};
UdpChecksumVerdict check_udp_checksum(const UdpFrame& frame, std::span<const std::byte> payload);

// The part that computes the checksum of UDP. The one of an IPv4 header is always written.
enum class UdpChecksumBy {
  kSoftware,
  // The header gets the sum over the addresses, the protocol and the length, as interfaces expect
  // it that add the rest and complement it.
  kHardware,
  // Over IPv4 alone: the header says that there is none.
  kNobody,
};

// From where to where.
struct UdpFlow {
  MacAddress source_mac{};
  MacAddress destination_mac{};
  Endpoint source;  // both of one family, with ports
  Endpoint destination;
};

struct UdpDatagram {
  std::span<const IoSlice> payload;
  std::size_t bytes = 0;  // of all slices; what fits an IP packet
  UdpChecksumBy checksum = UdpChecksumBy::kSoftware;
  // Over IPv4 routers may cut it, for which its number has to differ from that of others on the
  // way. Otherwise the number says nothing.
  bool may_be_fragmented = false;
  std::uint16_t identification = 0;
};

// Ethernet, IP and UDP take 42 bytes over IPv4, 62 over IPv6.
std::size_t udp_headers_bytes(const Endpoint& destination);
inline constexpr std::size_t kMaxUdpHeaders = kEthernetHeader + kIpv6Header + kUdpHeaderBytes;

// Fills the first udp_headers_bytes() of `frame`; the payload belongs right behind them.
void write_udp_headers(const UdpFlow& flow, const UdpDatagram& datagram,
                       std::span<std::byte> frame);

}  // namespace taco::harp
