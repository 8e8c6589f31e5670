// The Nic over kernel UDP sockets: the built-in default, which needs only the kernel. One
// non-blocking socket per local address; bursts by sendmmsg and recvmmsg; runs of segments as one
// super-packet each way (UDP_SEGMENT, UDP_GRO) where the kernel has it.
//
// Made and owned by the engine. Owner thread only, but for the counters.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "harp/drivers/udp_socket.h"
#include "harp/nic.h"

namespace taco::harp {

struct UdpNicOptions {
  struct Local {
    Endpoint address;        // port 0: any
    std::size_t mtu = 1500;  // of its interface
  };
  std::vector<Local> locals;
  std::size_t socket_buffer = 0;  // 0: as much as the kernel allows, within reason
  bool allow_gso = true;
  bool allow_gro = true;
};

// The UDP payload that fits an interface's MTU.
std::size_t max_datagram(const Endpoint& address, std::size_t mtu);

class UdpNic final : public Nic {
 public:
  static Result<std::unique_ptr<UdpNic>> create(const UdpNicOptions& options);

  const NicCapabilities& capabilities() const override { return capabilities_; }
  std::size_t send_st(std::span<const TxPacket> packets) override;
  std::size_t receive_st(std::span<RxPacket> packets) override;
  std::uint64_t overflows() const override;

  // As bound, the port filled in; the index is the local path.
  const Endpoint& local(std::size_t path) const { return sockets_[path]->local(); }
  std::size_t paths() const { return sockets_.size(); }
  // Without fragmentation on this path; the capabilities tell the most of all paths.
  std::size_t max_datagram_of(std::size_t path) const { return datagrams_[path]; }
  int descriptor(std::size_t path) const { return sockets_[path]->fd(); }

  // Ports that answered "unreachable" since the last call: the destination and the beginning of
  // the packet that caused it. Taken by the engine every turn.
  bool has_refusals_st() const { return !refusals_.empty(); }
  std::vector<Refusal> take_refusals_st();

  // A send was refused for lack of room; true until the next send that succeeds.
  bool is_full_st(std::size_t path) const { return sockets_[path]->is_full(); }
  // Gives the ports back, for good: see UdpSocket::close().
  void close_st();
  // The next receive_st looks at every socket, also those that have been silent for long.
  void look_everywhere_st() { look_everywhere_ = true; }

 private:
  UdpNic() = default;

  NicCapabilities capabilities_;
  std::vector<std::unique_ptr<UdpSocket>> sockets_;
  std::vector<std::size_t> datagrams_;  // by path
  UdpReceiveRing ring_;
  std::vector<Refusal> refusals_;
  std::uint64_t polls_ = 1;         // 0 says of a socket that it was never used
  std::uint32_t next_receive_ = 0;  // the path that the next receive_st begins with
  bool look_everywhere_ = true;
};

}  // namespace taco::harp
