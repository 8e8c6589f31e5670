// One UDP socket of the udp driver: its options, its bursts, and the errors the kernel reports.
// Owner thread only.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/own_fd.h"
#include "base/status.h"
#include "harp/address.h"
#include "harp/nic.h"

namespace taco::harp {

// Buffers for a burst of incoming (super-)packets, used again from the first for every burst, so
// that light traffic stays in the cache.
class UdpReceiveRing {
 public:
  static constexpr std::size_t kPackets = Nic::kReceiveBurst;
  static constexpr std::size_t kPacketBytes = 65'536;

  UdpReceiveRing();

  struct Entry {
    Endpoint source;
    alignas(cmsghdr) std::array<std::byte, 64> control;
    iovec slice;
  };
  std::array<mmsghdr, kPackets> headers;
  std::array<Entry, kPackets> entries;

  void reset(std::size_t from, std::size_t count);  // before the kernel fills these

 private:
  std::unique_ptr<std::byte[]> memory_;
};

struct UdpSocketOptions {
  Endpoint local;
  std::size_t buffer = 0;
  bool allow_gso = true, allow_gro = true;
  OwnNetwork network;  // see NicOptions::Local
};

class UdpSocket {
 public:
  static Result<std::unique_ptr<UdpSocket>> open(const UdpSocketOptions& options);
  UdpSocket(const UdpSocket&) = delete;
  UdpSocket& operator=(const UdpSocket&) = delete;

  int fd() const { return fd_.get(); }
  const Endpoint& local() const { return local_; }
  bool has_gso() const { return has_gso_; }
  bool has_gro() const { return has_gro_; }
  std::size_t receive_buffer() const { return receive_buffer_; }

  // How many packets from the front the kernel took. Refusals that surface are appended.
  std::size_t send(std::span<const TxPacket> packets, std::vector<Refusal>& refusals);
  // Fills the ring's entries from `first`; returns how many.
  std::size_t receive(UdpReceiveRing& ring, std::size_t first, std::size_t most,
                      std::vector<Refusal>& refusals);
  // The segment size of entry `index` (0: one datagram). Counts overflows on the way.
  std::size_t segment_bytes_of(const UdpReceiveRing& ring, std::size_t index);

  // Gives the port back: packets to it are refused from now on. Sends and receives do nothing.
  void close() { fd_.reset(); }

  bool is_full() const { return is_full_; }
  std::uint64_t overflows() const { return overflows_.load(std::memory_order_relaxed); }

  // The interface that has its address may be another one by now, of the same name or not.
  void set_network(const OwnNetwork& network) { network_ = network; }

  std::uint64_t last_used = 0;  // the driver's: the poll in which traffic was last seen; 0: never

 private:
  // Control data that goes with a message to the kernel: by which interface, and how long its
  // segments are.
  struct alignas(cmsghdr) Control {
    std::array<std::byte, CMSG_SPACE(sizeof(in6_pktinfo)) + CMSG_SPACE(sizeof(std::uint16_t))>
        bytes;
  };

  explicit UdpSocket(OwnFd fd) : fd_(std::move(fd)) {}
  Status configure(const UdpSocketOptions& options);
  void size_buffers(std::size_t wanted);
  // How many from the front the kernel took. None: `error` says what it has against the first.
  std::size_t offer(std::span<mmsghdr> headers, std::vector<Refusal>& refusals, int* error);
  void name_interface(const Endpoint& to, msghdr& header, Control& control) const;
  std::size_t send_burst(std::span<const TxPacket> packets, std::vector<Refusal>& refusals,
                         int* error);
  // False: no room. Anything else that the kernel has against it counts as a loss on the way.
  bool send_unfragmented(const TxPacket& packet, std::vector<Refusal>& refusals);
  bool may_fragment(bool may);
  bool may_be_a_run(const TxPacket& packet);
  bool has_room_for_pieces() const;
  // One by one, for packets that the kernel refuses as a whole. False: no room.
  bool send_in_pieces(const TxPacket& packet, std::vector<Refusal>& refusals);
  // Takes what is in the queue of errors, up to a bound. Returns how many came from the network,
  // about packets that had left: what this host itself refuses is in the queue as well.
  std::size_t drain_errors(std::vector<Refusal>& refusals);
  std::size_t take_errors(std::vector<Refusal>& refusals);
  // Whether the kernel is to keep errors for this socket.
  void hear_errors(bool hear);

  OwnFd fd_;  // empty: closed
  Endpoint local_;
  OwnNetwork network_;
  bool has_gso_ = false, has_gro_ = false;
  bool is_full_ = false;
  int errors_ = 0;  // from the network, since then
  Time errors_since_ = 0;
  Time deaf_until_ = kNever;                  // to errors; kNever: it hears them
  std::size_t too_long_for_runs_ = SIZE_MAX;  // segments of so many bytes, as last refused
  int runs_until_retry_ = 0;                  // of those
  std::size_t receive_buffer_ = 0;
  std::atomic<std::uint64_t> overflows_{0};
};

}  // namespace taco::harp
