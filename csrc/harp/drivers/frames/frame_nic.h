// The Nic over devices that take whole Ethernet frames: it writes and reads the headers of
// Ethernet, IP and UDP, answers those who ask for its addresses, and asks for the MAC addresses of
// others. It fragments nothing and takes no fragments; datagrams are never longer than a device's
// MTU.
//
// A datagram to a host whose MAC address is not known yet waits for it, among few; one too many is
// lost, as on any way. An address that the kernel has too (a device that shares an interface with
// it) gets a socket of the kernel's at the same port, so that the kernel refuses nobody's packets.
//
// Owner thread only, but for overflows().
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/own_fd.h"
#include "base/status.h"
#include "harp/drivers/frames/frame_link.h"
#include "harp/drivers/frames/neighbour_message.h"
#include "harp/drivers/frames/neighbours.h"
#include "harp/drivers/frames/poll_alarm.h"
#include "harp/drivers/frames/slow_count.h"
#include "harp/drivers/frames/udp_frame.h"
#include "harp/network.h"
#include "harp/nic.h"

namespace taco::harp {

struct FrameNicOptions : NicOptions {
  bool poll_always = false;
  // UDP's checksums are all that vouches for some payload: they are computed where no wire is
  // crossed, too. Otherwise the checksums above them do as well.
  bool needs_checksums = false;
  Time (*clock)() = monotonic_now;
};

// Datagrams that neither arrived nor left, by what became of them.
struct FrameDrops {
  std::uint64_t damaged = 0;     // a length, an address or a checksum was wrong
  std::uint64_t for_others = 0;  // no address or port of ours, or no datagram at all
  std::uint64_t link_down = 0;
  std::uint64_t no_route = 0;
  std::uint64_t no_neighbour = 0;  // the host did not say its MAC address
  std::uint64_t ring_full = 0;     // when a host that they waited for had said it
  std::uint64_t too_large = 0;
  bool operator==(const FrameDrops&) const = default;
};

class FrameNic final : public Nic {
 public:
  static Result<std::unique_ptr<FrameNic>> create(const FrameNicOptions& options,
                                                  std::vector<FrameLink> links);
  ~FrameNic() override { close_st(); }

  const NicCapabilities& capabilities() const override { return capabilities_; }
  std::span<const NicAddress> addresses() const override { return addresses_; }
  std::span<const NicDescriptor> descriptors() const override { return {&alarm_fd_, 1}; }
  std::size_t send_st(std::span<const TxPacket> packets) override;
  bool is_full_st(std::uint32_t local_path) const override {
    return !closed_ && wires_[paths_[local_path].wire].is_full;
  }
  void recall_st(TxReference& reference) override;
  std::size_t receive_st(std::span<RxPacket> packets) override;
  void look_everywhere_st() override { alarm_.on_wake(); }
  std::uint32_t missing_st() const override { return missing_; }
  std::vector<Refusal> take_refusals_st() override { return std::exchange(refusals_, {}); }
  void close_st() override;
  std::uint64_t overflows() const override;

  const FrameDrops& drops_st() const { return drops_; }

 private:
  static constexpr std::size_t kBatch = 16;
  static constexpr std::size_t kMaxWaiting = 64;  // datagrams, for all hosts together
  static constexpr std::size_t kMaxWaitingForOne = 8;
  static constexpr Duration kMaxWait = kSecond;
  static constexpr Duration kLookAtLinks = kMillisecond;

  // One device.
  struct Wire {
    FrameLink link;
    Neighbours neighbours;
    bool is_full = false;
    bool is_up = false;
    bool was_up = false;  // until then its other end is awaited, not missed
  };
  struct Place {  // a local path
    std::size_t wire = 0;
    OwnFd kernel_socket;  // empty: the kernel has no such address
  };
  // The way of the latest packet, which is most often the next one's too.
  struct Way {
    std::uint32_t local_path = UINT32_MAX;
    Endpoint destination;
    std::uint64_t changes = 0;
    Time until = 0;
    UdpFlow flow;
  };
  struct Waiting {
    std::uint32_t local_path;
    Endpoint destination;
    Endpoint hop;
    Time since;
    std::vector<std::byte> datagram;
  };
  enum class Fate { kReady, kWaits, kLost };

  explicit FrameNic(const FrameNicOptions& options) : options_(options) {}
  Status open_address(const NicOptions::Local& local);
  Status choose_port(Endpoint& endpoint, OwnFd* socket);
  bool has_address(const Endpoint& endpoint) const;
  void size_credit();

  Wire& wire_of(const TxPacket& packet) { return wires_[paths_[packet.local_path].wire]; }
  const Wire& wire_of(const TxPacket& packet) const {
    return wires_[paths_[packet.local_path].wire];
  }
  Fate prepare(const TxPacket& packet, TxFrame& frame);
  UdpChecksumBy checksum_by(const TxPacket& packet) const;
  bool find_way(std::uint32_t local_path, const Endpoint& destination);
  void keep_waiting(const TxPacket& packet);
  void send_waiting(Wire& wire);
  std::size_t send_frames(Wire& wire, std::span<const TxFrame> frames);
  void send_message(Wire& wire, std::span<const std::byte> frame);

  std::size_t receive_from(std::size_t wire, std::span<RxPacket> packets, std::size_t filled);
  bool accept(std::size_t wire, const RxFrame& frame, RxPacket& packet, Endpoint& source);
  void on_other(Wire& wire, std::span<const std::byte> frame);
  void on_solicitation(Wire& wire, const NeighbourMessage& message);
  void ask_neighbours(Wire& wire);
  void look_at_links();
  void report() const;

  const FrameNicOptions options_;
  NicCapabilities capabilities_;
  std::vector<NicAddress> addresses_;
  std::vector<Place> paths_;
  std::vector<Wire> wires_;
  PollAlarm alarm_;
  NicDescriptor alarm_fd_;
  std::vector<Refusal> refusals_;
  std::deque<Waiting> waiting_;
  std::array<Endpoint, kReceiveBurst> sources_;
  Way way_;
  FrameDrops drops_;
  mutable SlowCount overflows_;
  Time now_ = 0;
  Time links_looked_at_ = 0;
  std::uint32_t missing_ = 0;
  std::size_t next_receive_ = 0;
  bool closed_ = false;
};

}  // namespace taco::harp
