// A device that takes and brings whole Ethernet frames, of which a kernel knows nothing: what a
// FrameNic (frame_nic.h) makes a Nic of. libharp_dpdk.so has one over a port of DPDK; the tests
// have one in memory. Classes without code of their own, so that a library which knows nothing else
// of this project can implement them.
//
// Functions that end in _st: owner thread only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "harp/nic.h"

namespace taco::harp {

enum class FramePayload : std::uint8_t {
  kCopied,    // into buffers of the port's, before send_st returns
  kAttached,  // the device's driver reads it where it lies, before send_st returns
  kLent,      // as before, but later, if the frame has a reference
};

struct FramePortInfo {
  std::string name;
  std::string driver;  // the device's kind
  std::array<std::byte, 6> mac{};
  std::size_t mtu = 1500;           // of IP packets
  std::size_t receive_slots = 512;  // frames that wait for us before any is lost
  std::uint32_t mbits = 0;          // 0: unknown
  // The device fills in and verifies UDP's checksums. IPv4's are finished in every frame.
  bool checksums = false;
  // Frames cross no wire: they stay in this machine's memory.
  bool in_memory = false;
  // The fate of payload that leaves.
  FramePayload payload = FramePayload::kCopied;
};

// Valid, and may be written, until the next release_st.
struct RxFrame {
  std::span<std::byte> bytes;
  bool checked = false;  // the device has found UDP's checksum right
  bool of_vlan = false;  // the device has taken the tag of a VLAN out of it
};

// One datagram in a frame. The first of several slices is the protocol's header. All of it has been
// read when send_st returns, except for payload that is lent (FramePayload::kLent): that counts in
// `reference` (nic.h) until the device has let go of it.
struct TxFrame {
  static constexpr std::size_t kMaxHeaders = 64;  // Ethernet, IPv6 and UDP have 62
  std::array<std::byte, kMaxHeaders> headers;
  std::uint8_t header_bytes = 0;
  std::uint8_t ip_bytes = 0;  // of them IP's
  std::span<const IoSlice> slices;
  std::size_t bytes = 0;  // of all slices
  TxReference* reference = nullptr;
};

struct FramePortCounters {
  std::uint64_t frames_sent = 0, frames_received = 0;
  // Bytes that were copied on the way to the device, headers left out, and from it because they lay
  // in several buffers. What the device does itself is not counted: memif copies once each way.
  std::uint64_t send_copied = 0, receive_copied = 0;
  std::uint64_t no_memory = 0;  // frames lost for want of buffers
  std::uint64_t overflows = 0;  // frames that found no slot
  std::uint64_t damaged = 0;    // frames that the device refused or found damaged
  std::uint64_t too_large = 0;  // frames that the device does not take
  bool operator==(const FramePortCounters&) const = default;
};

class FramePort {
 public:
  virtual ~FramePort() = default;

  virtual const FramePortInfo& info() const = 0;
  // Takes frames from the front; fewer than given means full.
  virtual std::size_t send_st(std::span<const TxFrame> frames) = 0;
  // Payload with that reference is not referred to any more, though its frames still arrive. Null:
  // the same for all payload.
  virtual void recall_st(const TxReference* /*reference*/) {}
  // Frames that are handed out between two calls of release_st, at most.
  static constexpr std::size_t kMaxHeld = 64;
  // Fills from the front, returns how many; fewer than asked for: there is nothing more.
  virtual std::size_t receive_st(std::span<RxFrame> frames) = 0;
  // Nobody looks at the frames that were handed out any more.
  virtual void release_st() = 0;
  // Whether anything can be sent and arrive: a cable, or the other end of a shared memory.
  virtual bool is_up_st() = 0;
  // Any thread; a moment's numbers, which need not agree with each other.
  virtual FramePortCounters counters() const = 0;
};

}  // namespace taco::harp
