// The XDP program on one interface: datagrams to our addresses and ports go to our sockets, and
// everything else goes on to the kernel as if the program were not there, ARP and ping too, and
// fragments, which only the kernel puts together.
//
// Engines that have queues of the interface, of one process or of several, share one program and
// its two maps: whoever comes first puts it there, and it stays as long as any of them lives. To
// whom a datagram goes its address and port say; if it came by a queue of somebody else, it goes on
// to the kernel, which has a socket there, too. An engine is known by the first of its queues. What
// one that was killed has left in the maps does no harm, and goes with the next that has its queue.
//
// Owner thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/own_fd.h"
#include "base/status.h"
#include "harp/drivers/xdp/attached_program.h"
#include "harp/drivers/xdp/bpf.h"
#include "harp/nic.h"

namespace taco::harp {

class XdpFilter {
 public:
  static constexpr std::uint32_t kMaxQueues = 64;
  // Another layout of the maps needs another name: those that share a program know it by that, and
  // see that it is no other's of the same name.
  static constexpr char kProgramName[] = "taco_harp_2";

  // A program that runs nowhere yet.
  static Result<std::unique_ptr<XdpFilter>> create();
  ~XdpFilter();

  // Runs on what arrives at the interface from now on: natively where its driver can, generically
  // elsewhere; or takes part in the one that another engine has there. `owner`: the first of this
  // engine's queues, each of which has its socket by now. False: another engine's comes or goes at
  // the moment, and this may be called again. kResource names the program that is in the way, or
  // the right that is missing.
  Result<bool> attach(std::uint32_t interface, std::uint32_t owner);
  // Datagrams to our addresses that arrive by that queue go to that AF_XDP socket.
  Status add_socket(std::uint32_t queue, int socket);
  // To take, from now on, datagrams to these addresses and no others.
  Status set_addresses(std::span<const Endpoint> addresses);
  XdpMode mode() const { return mode_; }  // as attached

  // The instructions and the shapes of the maps alone, for tests.
  static BpfProgram program(const OwnFd& addresses, const OwnFd& sockets);
  static BpfMapShape shape_of_addresses();
  static BpfMapShape shape_of_sockets();

 private:
  // An address and a port as they stand in a packet; IPv4 is mapped into IPv6.
  struct Key {
    std::array<std::byte, 16> address;
    std::uint16_t port;
    std::uint16_t nothing = 0;
    bool operator==(const Key&) const = default;
  };
  static constexpr std::uint32_t kMaxAddresses = 4096;  // of all engines

  XdpFilter() = default;
  Status attach_new(std::uint32_t interface);
  Status join(std::uint32_t interface);
  std::string why_not_ours(const AttachedProgram& there) const;
  bool owns(const Key& key) const;
  void forget_former_owner();

  OwnFd addresses_, sockets_, program_;
  OwnFd link_;
  std::uint32_t first_place_ = 0;  // of this engine's sockets in their map
  XdpMode mode_ = XdpMode::kNative;
  std::vector<Key> keys_;  // in the map
};

}  // namespace taco::harp
