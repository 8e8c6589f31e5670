// The XDP program on one interface: datagrams to our addresses and ports go to our sockets, and
// everything else goes on to the kernel as if the program were not there, ARP and ping too, and
// fragments, which only the kernel puts together.
//
// Owner thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/own_fd.h"
#include "base/status.h"
#include "harp/drivers/xdp/bpf.h"
#include "harp/nic.h"

namespace taco::harp {

class XdpFilter {
 public:
  // `queues`: of the interface, those that sockets may be given for.
  static Result<std::unique_ptr<XdpFilter>> create(std::uint32_t queues);

  // Datagrams that arrive by that queue go to that AF_XDP socket.
  Status add_socket(std::uint32_t queue, int socket);
  // To take, from now on, datagrams to these addresses and no others.
  Status set_addresses(std::span<const Endpoint> addresses);
  // Natively where the interface's driver can, generically elsewhere.
  Status attach(std::uint32_t interface);
  XdpMode mode() const { return mode_; }  // as attached

  // The instructions alone, for tests.
  static BpfProgram program(const OwnFd& addresses, const OwnFd& sockets);

 private:
  // An address and a port as they stand in a packet; IPv4 is mapped into IPv6.
  struct Key {
    std::array<std::byte, 16> address;
    std::uint16_t port;
    std::uint16_t nothing = 0;
    bool operator==(const Key&) const = default;
  };
  static constexpr std::uint32_t kMostAddresses = 64;

  XdpFilter() = default;

  OwnFd addresses_, sockets_, program_;
  OwnFd link_;
  XdpMode mode_ = XdpMode::kNative;
  std::vector<Key> keys_;  // in the map
};

}  // namespace taco::harp
