// The interface of a packet driver, with what the protocol needs and nothing more: the addresses it
// sends from, bursts of packets out, bursts in, the return of sent buffers, what was refused, and
// something to sleep on. A Network (network.h) opens one; the tests have one in virtual time.
//
// Owner thread only. The protocol above holds no packet that a Nic has refused: it builds one
// (super-)packet, offers it, and commits to it only when it was taken.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace taco::harp {

// Where a packet goes or came from: a sockaddr_in or sockaddr_in6, opaque to the protocol.
struct Endpoint {
  alignas(4) std::array<std::byte, 28> bytes{};
  std::uint32_t size = 0;
  bool operator==(const Endpoint& other) const {
    return size == other.size && std::memcmp(bytes.data(), other.bytes.data(), size) == 0;
  }
};

struct IoSlice {
  const void* data = nullptr;
  std::size_t bytes = 0;
};

// Counts the packets of one send that an asynchronous driver still refers to. Its owner must not
// give the payload back before `count` is 0.
struct TxReference {
  std::uint32_t count = 0;
};

// One datagram, or a run of equal-size datagrams to one destination that goes out as one GSO
// super-packet. The slices alternate header, payload, header, payload, ... when `alternating`;
// otherwise they are one datagram's pieces in order. Headers (and every slice of a packet whose
// `reference` is null) are copied, or handed to the kernel, before send_st returns. Payload slices
// of a packet with a reference may be read until the driver has dropped its count.
struct TxPacket {
  const Endpoint* destination = nullptr;
  std::uint32_t local_path = 0;  // which of the Nic's addresses sends
  std::span<const IoSlice> slices;
  std::size_t bytes = 0;          // of all slices
  std::size_t segment_bytes = 0;  // 0: one datagram; else each is this long, the last may be less
  bool alternating = false;
  TxReference* reference = nullptr;
  // One datagram that IP must carry whole: one too large for the path, or for the interface, is
  // lost. Other packets may be fragmented on the way.
  bool unfragmented = false;
};

// A datagram, or a GRO super-packet: datagrams of `segment_bytes` each, the last may be less.
// `data` is valid, and may be written, until the next receive_st.
struct RxPacket {
  std::span<std::byte> data;
  std::size_t segment_bytes = 0;  // 0: one datagram
  const Endpoint* source = nullptr;
  std::uint32_t local_path = 0;
};

struct NicCapabilities {
  std::size_t gso_segments = 1;         // datagrams in one super-packet; 1: no GSO
  std::size_t gso_bytes = 65'000;       // of a super-packet
  bool asynchronous_return = false;     // payload is referred to after send_st (TxReference counts)
  std::size_t receive_buffer = 212992;  // bytes of the real receive buffer, as the kernel counts
  std::size_t packet_overhead = 832;    // bytes the kernel charges a datagram beyond its payload
};

// An address that a Nic sends from and receives at. Its place among the Nic's addresses is what
// packets call their local path.
struct NicAddress {
  Endpoint endpoint;             // as bound, the port filled in
  std::size_t max_datagram = 0;  // UDP payload that leaves without IP fragmentation, but for:
  bool spare = false;            // for a path to be moved to: peers are not told of it
  // Longer ones leave in fragments, and never in runs: the interface carries less than the protocol
  // relies on. 0: it does not.
  std::size_t whole_datagram = 0;
};

// Something to sleep on: readable when something has arrived there, writable (if anybody asks) when
// that address, having been full, has room again.
struct NicDescriptor {
  static constexpr std::uint32_t kNoAddress = UINT32_MAX;
  int fd = -1;
  std::uint32_t local_path = 0;  // kNoAddress: tells of something else, and is never full
};

// The network says that nobody has the port a datagram went to.
struct Refusal {
  Endpoint destination;
  std::vector<std::byte> quoted;  // the beginning of the datagram that was refused
};

class Nic {
 public:
  virtual ~Nic() = default;

  virtual const NicCapabilities& capabilities() const = 0;
  // At least one. Addresses that the host comes to have may join them, behind those that are there,
  // with a receive_st; none ever leaves. Once there are as many as can be, one may take the place
  // of another that is gone (missing_st).
  virtual std::span<const NicAddress> addresses() const = 0;
  // A thread with nothing to do sleeps on these, until a timer is due: all that arrives must show.
  // More may join them, as addresses do.
  virtual std::span<const NicDescriptor> descriptors() const = 0;

  // Takes packets from the front; fewer than given means full: try again after a later poll. Of a
  // packet that was not taken nothing is kept, and no datagram has left, as far as the driver can
  // tell: one that may have left is taken, and perhaps lost. Parts of a datagram may have left all
  // the same (fragments of IP's, which nobody can put together).
  virtual std::size_t send_st(std::span<const TxPacket> packets) = 0;
  // The last send by this address found no room, and its descriptor is writable once there is some.
  // A driver that wakes its owner for room by something readable says no.
  virtual bool is_full_st(std::uint32_t local_path) const = 0;
  // Gives back what the hardware has finished with (drops TxReference counts). No-op when sends
  // return at once.
  virtual void reap_st() {}
  // Returns with reference.count == 0, whatever it takes: a withdrawn send's memory is going away.
  virtual void recall_st(TxReference& reference) { reference.count = 0; }

  // Bursts longer than this are not asked for.
  static constexpr std::size_t kReceiveBurst = 8;
  // Fills from the front, returns how many; fewer than asked for: there is nothing more. The views
  // last until the next call.
  virtual std::size_t receive_st(std::span<RxPacket> packets) = 0;
  // Called when the owner has slept: the next receive_st looks everywhere, also where a driver that
  // saves itself trouble looks only now and then.
  virtual void look_everywhere_st() {}
  // The addresses (bit i: the i-th) that the host does not have at the moment, or whose interface
  // is down. Nothing leaves from there, nor arrives; it may when they come back. As of the last
  // receive_st.
  virtual std::uint32_t missing_st() const { return 0; }
  // How often an address has joined the others, or taken the place of one that is gone.
  virtual std::uint64_t arrivals_st() const { return addresses().size(); }
  // The refusals since the last call.
  virtual std::vector<Refusal> take_refusals_st() { return {}; }

  // Gives the addresses back, for good: packets to them are refused from now on. Sends take
  // everything and receives bring nothing any more.
  virtual void close_st() = 0;

  // Datagrams that found the receive buffer full, since the start.
  virtual std::uint64_t overflows() const { return 0; }
};

}  // namespace taco::harp
