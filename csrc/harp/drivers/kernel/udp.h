// The Nic over kernel UDP sockets: the built-in default, which needs only the kernel. One
// non-blocking socket per local address; bursts by sendmmsg and recvmmsg; runs of segments as one
// super-packet each way (UDP_SEGMENT, UDP_GRO) where the kernel has it.
//
// Owner thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/cache_line.h"
#include "base/status.h"
#include "harp/drivers/kernel/address_watch.h"
#include "harp/drivers/kernel/udp_socket.h"
#include "harp/network.h"
#include "harp/nic.h"

namespace taco::harp {

struct UdpNicOptions : NicOptions {
  bool allow_gso = true;
  bool allow_gro = true;
};

class alignas(kCacheLine) UdpNic final : public Nic {
 public:
  static Result<std::unique_ptr<UdpNic>> create(const UdpNicOptions& options);

  const NicCapabilities& capabilities() const override { return capabilities_; }
  std::span<const NicAddress> addresses() const override { return addresses_; }
  std::span<const NicDescriptor> descriptors() const override { return descriptors_; }
  std::size_t send_st(std::span<const TxPacket> packets) override;
  bool is_full_st(std::uint32_t local_path) const override {
    return sockets_[local_path]->is_full();
  }
  std::size_t receive_st(std::span<RxPacket> packets) override;
  void look_everywhere_st() override { look_everywhere_ = true; }
  std::uint32_t missing_st() const override { return missing_; }
  std::uint64_t arrivals_st() const override { return arrivals_; }
  std::vector<Refusal> take_refusals_st() override { return std::exchange(refusals_, {}); }
  // How often the host's addresses and interfaces, having changed, were looked at.
  std::uint64_t looks() const { return looks_; }
  void close_st() override;
  std::uint64_t overflows() const override;

 private:
  explicit UdpNic(const UdpNicOptions& options) : options_(options) {}
  Status open_address(const NicOptions::Local& local, std::size_t place);
  std::optional<std::size_t> place_for_more() const;
  void watch_addresses();
  void open_more(std::span<const NicOptions::Local> locals);

  static constexpr std::size_t kMaxAddresses = 24;  // a bit each, of 32

  const UdpNicOptions options_;
  NicCapabilities capabilities_;
  std::vector<NicAddress> addresses_;
  std::vector<NicDescriptor> descriptors_;
  std::vector<std::unique_ptr<UdpSocket>> sockets_;  // one an address
  std::unique_ptr<AddressWatch> watch_;              // null: the kernel has none
  std::uint32_t missing_ = 0;
  std::uint64_t arrivals_ = 0;
  std::uint64_t looks_ = 0;
  std::uint64_t former_overflows_ = 0;  // of sockets that others have taken the place of
  UdpReceiveRing ring_;
  std::vector<Refusal> refusals_;
  std::uint64_t polls_ = 1;         // 0 says of a socket that it was never used
  std::uint32_t next_receive_ = 0;  // the address that the next receive_st begins with
  bool look_everywhere_ = true;
};

}  // namespace taco::harp
