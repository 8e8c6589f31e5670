// The Nic over AF_XDP: frames to and from rings that this process shares with the kernel, past its
// IP and UDP. Beside them are the kernel's own sockets on the same addresses and ports, those of
// the udp driver: they keep the kernel from refusing peers, hear ICMP, and carry whatever the rings
// do not: to this host itself, to neighbours whose MAC address the kernel has yet to find,
// fragments.
//
// Owner thread only.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "harp/drivers/frames/slow_count.h"
#include "harp/drivers/kernel/udp.h"
#include "harp/drivers/xdp/next_hops.h"
#include "harp/drivers/xdp/wake_alarm.h"
#include "harp/drivers/xdp/xdp_interface.h"
#include "harp/network.h"
#include "harp/nic.h"

namespace taco::harp {

// Datagrams by which way they went, and what was thrown away.
struct XdpCounters {
  std::uint64_t sent_by_ring = 0, sent_by_socket = 0;  // runs of the kernel's count as one
  std::uint64_t received_by_ring = 0, received_by_socket = 0;
  std::uint64_t damaged = 0;     // frames whose lengths, addresses or checksum are wrong
  std::uint64_t for_others = 0;  // frames to another host, which an interface may hand over, too
};

class XdpNic final : public Nic {
 public:
  // `share`: which queues of its interfaces are this engine's.
  static Result<std::unique_ptr<XdpNic>> create(const NicOptions& options, const QueueShare& share);
  ~XdpNic() override;

  const NicCapabilities& capabilities() const override { return capabilities_; }
  std::span<const NicAddress> addresses() const override { return kernel_->addresses(); }
  std::span<const NicDescriptor> descriptors() const override { return descriptors_; }
  std::size_t send_st(std::span<const TxPacket> packets) override;
  // The socket alone is asked: for room in a ring there is an alarm.
  bool is_full_st(std::uint32_t local_path) const override {
    return kernel_->is_full_st(local_path);
  }
  std::size_t receive_st(std::span<RxPacket> packets) override;
  void look_everywhere_st() override {
    look_everywhere_ = true;
    room_alarm_.clear();
  }
  std::uint32_t missing_st() const override { return kernel_->missing_st(); }
  std::uint64_t arrivals_st() const override { return kernel_->arrivals_st(); }
  std::vector<Refusal> take_refusals_st() override { return kernel_->take_refusals_st(); }
  void close_st() override;
  std::uint64_t overflows() const override;

  const XdpCounters& counters() const { return counters_; }

 private:
  struct EndpointHash {
    std::size_t operator()(const Endpoint& endpoint) const;
  };

  explicit XdpNic(const QueueShare& share) : share_(share) {}
  Status make_interfaces();
  Status make_interface(const std::string& name);
  Status take_interfaces();
  Status await_interfaces();
  void use(std::unique_ptr<XdpInterface> interface);
  void list_rings();
  Status set_addresses();
  void list_descriptors();
  void follow_changes();
  void drop_former(std::vector<std::unique_ptr<XdpInterface>>& interfaces);
  void try_again();
  void plan_next_try();
  void forget_descriptor(int fd);
  XdpInterface* interface_at(std::uint32_t index) const;
  bool send_packet(const TxPacket& packet, Time now);
  XdpInterface* way_of(const TxPacket& packet, Time now, MacAddress& neighbour);
  bool send_by_ring(const TxPacket& packet, const MacAddress& neighbour, XdpInterface& by);
  void flush();
  std::size_t receive_by_rings(std::span<RxPacket> packets);
  bool take_frame(std::span<std::byte> frame, std::size_t place, RxPacket& packet);
  std::size_t receive_by_sockets(std::span<RxPacket> packets);

  const QueueShare share_;
  NicCapabilities capabilities_;
  std::unique_ptr<UdpNic> kernel_;
  std::unique_ptr<NextHops> hops_;
  std::vector<std::unique_ptr<XdpInterface>> interfaces_;
  std::vector<XdpSocket*> rings_;  // of all of them, in a row
  // With queues that somebody has not given up yet. They are tried again, less and less often.
  std::vector<std::unique_ptr<XdpInterface>> waiting_;
  Duration pause_ = 0;
  Time next_try_ = 0;
  WakeAlarm try_alarm_;
  std::vector<MacAddress> macs_;      // at which the addresses are reached
  std::vector<OwnNetwork> networks_;  // that the addresses are on, by interfaces of this moment
  std::unordered_map<Endpoint, std::uint32_t, EndpointHash> paths_;  // by address
  std::vector<NicDescriptor> descriptors_;
  std::vector<std::size_t> kernel_places_;  // of the sockets' descriptors among all
  WakeAlarm room_alarm_;
  std::array<Endpoint, kReceiveBurst> sources_;
  mutable SlowCount overflows_;       // of rings
  std::uint64_t former_dropped_ = 0;  // by interfaces that are gone
  std::uint64_t looks_ = 0;           // of the sockets, that were followed
  std::uint16_t identification_ = 0;
  std::uint64_t polls_ = 0;
  std::size_t next_ring_ = 0;
  bool look_everywhere_ = true;
  bool socket_brought_some_ = false;
  bool closed_ = false;
  XdpCounters counters_;
};

}  // namespace taco::harp
