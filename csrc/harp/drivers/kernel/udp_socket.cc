#include "harp/drivers/kernel/udp_socket.h"

#include <errno.h>
#include <linux/errqueue.h>
#include <netinet/udp.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/descriptors.h"
#include "harp/address.h"

namespace taco::harp {

namespace {

static_assert(sizeof(IoSlice) == sizeof(iovec));
static_assert(offsetof(IoSlice, data) == offsetof(iovec, iov_base));
static_assert(offsetof(IoSlice, bytes) == offsetof(iovec, iov_len));

constexpr std::size_t kBurst = 16;
// The buffer to ask for when the most is wanted and privilege would allow anything: beyond this,
// more buffer only means colder memory. Twice as much made an all_reduce of 40 MiB between 4 hosts
// on one machine 4% slower; half as much leaves senders waiting for credit.
constexpr std::size_t kMaxReceiveBuffer = std::size_t{4} << 20;
// Small enough that a rate-limited interface pushes back here instead of dropping in its queue.
constexpr std::size_t kSendBuffer = std::size_t{1} << 18;
// A call that fails for another destination's error is repeated this often: were there always a new
// one, somebody would be flooding us with them.
constexpr int kRetries = 8;
// Errors taken out at once; more of them wait until the socket is next looked at.
constexpr int kErrorsAtOnce = 32;
// So many in so long a time are more than peers can bring about whose hosts ration them: somebody
// forges them, and each takes as long as a packet or two. For as long again none are heard.
constexpr int kErrorsHeard = 64;
constexpr Duration kErrorsRest = 10 * kMillisecond;
constexpr std::size_t kFlatBytes = 512;
constexpr int kRunsUntilRetry = 256;

bool set_option(int fd, int level, int name, int value) {
  return setsockopt(fd, level, name, &value, sizeof value) == 0;
}

// Nothing has left. Of a datagram for which a queue behind the socket had no room (ENOBUFS, ENOMEM)
// fragments may have, and of a run whole datagrams.
bool is_lack_of_room(int error) { return error == EAGAIN; }

// Segments that were cut already stay sendable, fragmented, when the interface's MTU drops. What
// some ICMP message has said about the route is not believed: anybody can send one.
constexpr int kFragmented = IP_PMTUDISC_OMIT, kFragmentedV6 = IPV6_PMTUDISC_OMIT;

msghdr header_to(const Endpoint& destination, const iovec* slices, std::size_t count) {
  msghdr header{};
  header.msg_name = const_cast<std::byte*>(destination.bytes.data());
  header.msg_namelen = destination.size;
  header.msg_iov = const_cast<iovec*>(slices);
  header.msg_iovlen = count;
  return header;
}

msghdr header_of(const TxPacket& packet) {
  return header_to(*packet.destination, reinterpret_cast<const iovec*>(packet.slices.data()),
                   packet.slices.size());
}

// Copies the message into one piece. False: too long for that to be worth a copy.
bool flatten(const msghdr& header, std::span<std::byte> out, std::size_t* bytes) {
  *bytes = 0;
  for (std::size_t i = 0; i < header.msg_iovlen; ++i) {
    const iovec& slice = header.msg_iov[i];
    if (slice.iov_len > out.size() - *bytes) return false;
    memcpy(out.data() + *bytes, slice.iov_base, slice.iov_len);
    *bytes += slice.iov_len;
  }
  return true;
}

// The calls for a single message cost a tenth less than those for many, and that for a short one in
// one piece, of which the kernel reads no lists, another tenth. Returns how many; -1: see errno.
int send_all(int fd, std::span<mmsghdr> headers) {
  if (headers.size() != 1) {
    return sendmmsg(fd, headers.data(), static_cast<unsigned>(headers.size()), 0);
  }
  const msghdr& header = headers.front().msg_hdr;
  std::array<std::byte, kFlatBytes> flat;
  std::size_t bytes = 0;
  const ssize_t sent =
      header.msg_controllen == 0 && flatten(header, flat, &bytes)
          ? sendto(fd, flat.data(), bytes, 0, static_cast<const sockaddr*>(header.msg_name),
                   header.msg_namelen)
          : sendmsg(fd, &header, 0);
  return sent < 0 ? -1 : 1;
}

int receive_some(int fd, std::span<mmsghdr> headers) {
  if (headers.size() != 1) {
    return recvmmsg(fd, headers.data(), static_cast<unsigned>(headers.size()), 0, nullptr);
  }
  const ssize_t bytes = recvmsg(fd, &headers.front().msg_hdr, 0);
  if (bytes < 0) return -1;
  headers.front().msg_len = static_cast<unsigned>(bytes);
  return 1;
}

// Behind what the header has already.
template <class T>
void add_control(msghdr& header, std::span<std::byte> room, int level, int type, const T& value) {
  auto* const control = reinterpret_cast<cmsghdr*>(room.data() + header.msg_controllen);
  header.msg_control = room.data();
  header.msg_controllen += CMSG_SPACE(sizeof value);
  control->cmsg_level = level;
  control->cmsg_type = type;
  control->cmsg_len = CMSG_LEN(sizeof value);
  memcpy(CMSG_DATA(control), &value, sizeof value);
}

int family_of(const Endpoint& endpoint) {
  return reinterpret_cast<const sockaddr*>(endpoint.bytes.data())->sa_family;
}

}  // namespace

UdpReceiveRing::UdpReceiveRing() : memory_(new std::byte[kPackets * kPacketBytes]) {
  for (std::size_t i = 0; i < kPackets; ++i) {
    entries[i].slice = {memory_.get() + i * kPacketBytes, kPacketBytes};
    headers[i] = {};
    headers[i].msg_hdr.msg_iov = &entries[i].slice;
    headers[i].msg_hdr.msg_iovlen = 1;
    headers[i].msg_hdr.msg_name = entries[i].source.bytes.data();
    headers[i].msg_hdr.msg_control = entries[i].control.data();
  }
  reset(0, kPackets);
}

void UdpReceiveRing::reset(std::size_t from, std::size_t count) {
  for (std::size_t i = from; i < from + count; ++i) {
    headers[i].msg_hdr.msg_namelen = sizeof entries[i].source.bytes;
    headers[i].msg_hdr.msg_controllen = sizeof entries[i].control;
  }
}

Result<std::unique_ptr<UdpSocket>> UdpSocket::open(const UdpSocketOptions& options) {
  const int family = family_of(options.local);
  OwnFd fd(socket(family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) {
    return Status(Code::kResource, "cannot open a UDP socket: " + system_error_text(errno));
  }
  std::unique_ptr<UdpSocket> opened(new UdpSocket(std::move(fd)));
  TACO_RETURN_IF_ERROR(opened->configure(options));
  return opened;
}

Status UdpSocket::configure(const UdpSocketOptions& options) {
  const bool v6 = family_of(options.local) == AF_INET6;
  if (v6) set_option(fd_.get(), IPPROTO_IPV6, IPV6_V6ONLY, 1);
  set_option(fd_.get(), SOL_SOCKET, SO_RXQ_OVFL, 1);
  size_buffers(options.buffer);
  has_gro_ = options.allow_gro && set_option(fd_.get(), SOL_UDP, UDP_GRO, 1);
  int segment = 0;
  socklen_t length = sizeof segment;
  has_gso_ =
      options.allow_gso && getsockopt(fd_.get(), SOL_UDP, UDP_SEGMENT, &segment, &length) == 0;

  const auto* address = reinterpret_cast<const sockaddr*>(options.local.bytes.data());
  if (bind(fd_.get(), address, options.local.size) != 0) {
    return Status(Code::kResource, "cannot bind a UDP socket to " + to_string(options.local) +
                                       ": " + strerror(errno));
  }
  length = sizeof local_.bytes;
  getsockname(fd_.get(), reinterpret_cast<sockaddr*>(local_.bytes.data()), &length);
  local_.size = length;
  network_ = options.network;
  may_fragment(true);
  hear_errors(true);
  return {};
}

// Without it an unconnected socket never hears that a port is closed. What has been kept goes with
// it.
void UdpSocket::hear_errors(bool hear) {
  const bool v6 = family_of(local_) == AF_INET6;
  set_option(fd_.get(), v6 ? int{IPPROTO_IPV6} : int{IPPROTO_IP}, v6 ? IPV6_RECVERR : IP_RECVERR,
             hear ? 1 : 0);
  deaf_until_ = hear ? kNever : monotonic_now() + kErrorsRest;
}

bool UdpSocket::may_fragment(bool may) {
  if (family_of(local_) == AF_INET6) {
    return set_option(fd_.get(), IPPROTO_IPV6, IPV6_MTU_DISCOVER,
                      may ? kFragmentedV6 : IPV6_PMTUDISC_PROBE);
  }
  return set_option(fd_.get(), IPPROTO_IP, IP_MTU_DISCOVER, may ? kFragmented : IP_PMTUDISC_PROBE);
}

void UdpSocket::size_buffers(std::size_t wanted) {
  const int bytes =
      static_cast<int>(std::min(wanted != 0 ? wanted : kMaxReceiveBuffer, std::size_t{1} << 30));
  if (!set_option(fd_.get(), SOL_SOCKET, SO_RCVBUFFORCE, bytes)) {
    set_option(fd_.get(), SOL_SOCKET, SO_RCVBUF, bytes);
  }
  set_option(fd_.get(), SOL_SOCKET, SO_SNDBUF, static_cast<int>(kSendBuffer));
  int real = 0;
  socklen_t length = sizeof real;
  getsockopt(fd_.get(), SOL_SOCKET, SO_RCVBUF, &real, &length);
  receive_buffer_ = static_cast<std::size_t>(real);
}

// An error that waits on the socket is handed to whoever sends next, although an earlier packet to
// somebody else brought it about: it is taken out and the send tried again. What fails twice, with
// nothing in the queue of errors to explain it, fails for a reason of its own.
std::size_t UdpSocket::offer(std::span<mmsghdr> headers, std::vector<Refusal>& refusals,
                             int* error) {
  for (int tries = 0;; ++tries) {
    const int sent = send_all(fd_.get(), headers);
    *error = sent < 0 ? errno : 0;
    if (sent >= 0) return static_cast<std::size_t>(sent);
    if (is_lack_of_room(*error)) return 0;
    const bool explained = *error == EINTR || drain_errors(refusals) > 0;
    if ((tries > 0 && !explained) || tries == kRetries) return 0;
  }
}

// A neighbour on a network that several interfaces share is reached by the one that has this
// address: the routes would have it reached by the same one always. The address is the socket's.
void UdpSocket::name_interface(const Endpoint& to, msghdr& header, Control& control) const {
  if (network_.interface == 0 || !same_network(to, local_, network_.prefix)) return;
  if (family_of(local_) == AF_INET6) {
    in6_pktinfo info{};
    info.ipi6_ifindex = network_.interface;
    std::ranges::copy(address_bytes(local_), reinterpret_cast<std::byte*>(&info.ipi6_addr));
    add_control(header, control.bytes, IPPROTO_IPV6, IPV6_PKTINFO, info);
  } else {
    in_pktinfo info{};
    info.ipi_ifindex = static_cast<int>(network_.interface);
    std::ranges::copy(address_bytes(local_), reinterpret_cast<std::byte*>(&info.ipi_spec_dst));
    add_control(header, control.bytes, IPPROTO_IP, IP_PKTINFO, info);
  }
}

std::size_t UdpSocket::send_burst(std::span<const TxPacket> packets, std::vector<Refusal>& refusals,
                                  int* error) {
  std::array<mmsghdr, kBurst> headers;
  std::array<Control, kBurst> controls;
  std::size_t count = 0;
  for (; count < std::min(packets.size(), kBurst) && !packets[count].unfragmented; ++count) {
    const TxPacket& packet = packets[count];
    msghdr& header = headers[count].msg_hdr;
    header = header_of(packet);
    name_interface(*packet.destination, header, controls[count]);
    if (packet.segment_bytes == 0 || packet.bytes <= packet.segment_bytes) continue;
    add_control(header, controls[count].bytes, SOL_UDP, UDP_SEGMENT,
                static_cast<std::uint16_t>(packet.segment_bytes));
  }
  return offer(std::span(headers).first(count), refusals, error);
}

std::size_t UdpSocket::send(std::span<const TxPacket> packets, std::vector<Refusal>& refusals) {
  if (!fd_) return packets.size();
  std::size_t done = 0;
  is_full_ = false;
  while (done < packets.size() && !is_full_) {
    const TxPacket& packet = packets[done];
    if (packet.unfragmented) {
      is_full_ = !send_unfragmented(packet, refusals);
      done += is_full_ ? 0 : 1;
      continue;
    }
    const bool is_run = packet.segment_bytes != 0 && packet.bytes > packet.segment_bytes;
    int error = 0;
    if (!is_run || may_be_a_run(packet)) {
      const std::size_t sent = send_burst(packets.subspan(done), refusals, &error);
      done += sent;
      is_full_ = is_lack_of_room(error);
      // The interface carries more than it did.
      if (is_run && sent > 0 && packet.segment_bytes >= too_long_for_runs_) {
        too_long_for_runs_ = SIZE_MAX;
      }
      if (sent > 0 || is_full_) continue;
    }
    if (is_run) {
      // EIO: the interface cannot do it at all; EINVAL, EMSGSIZE: not for its MTU.
      if (error == EIO) has_gso_ = false;
      if (error == EINVAL || error == EMSGSIZE) {
        too_long_for_runs_ = packet.segment_bytes;
        runs_until_retry_ = kRunsUntilRetry;
      }
      is_full_ = !has_room_for_pieces() || !send_in_pieces(packet, refusals);
    }
    // Anything else (no route, a firewall) is a lost packet: timers and liveness deal with it.
    done += is_full_ ? 0 : 1;
  }
  return done;
}

// A run of segments that are longer than what the interface carries is refused as a whole: to try
// again each time would cost more than the run.
bool UdpSocket::may_be_a_run(const TxPacket& packet) {
  if (!has_gso_) return false;
  if (packet.segment_bytes < too_long_for_runs_) return true;
  if (runs_until_retry_ == 0) return true;  // until one is sent, or refused again
  --runs_until_retry_;
  return false;
}

// Writable is a socket half of whose buffer is free, which is more than a run's fragments take. So
// no run ends in the middle for want of room, its rest lost.
bool UdpSocket::has_room_for_pieces() const {
  pollfd room{fd_.get(), POLLOUT, 0};
  return poll(&room, 1, 0) == 1;
}

// Probes of a path's MTU, and hellos that prove one: rare, so that the socket's option may change
// for each. PMTUDISC_PROBE sets "don't fragment" and asks the interface alone, not what some ICMP
// message has once said about the route.
bool UdpSocket::send_unfragmented(const TxPacket& packet, std::vector<Refusal>& refusals) {
  if (!may_fragment(false)) return true;
  mmsghdr header{header_of(packet), 0};
  Control control;
  name_interface(*packet.destination, header.msg_hdr, control);
  int error = 0;
  offer({&header, 1}, refusals, &error);
  may_fragment(true);
  return !is_lack_of_room(error);
}

bool UdpSocket::send_in_pieces(const TxPacket& packet, std::vector<Refusal>& refusals) {
  std::size_t slice = 0, within = 0;
  std::vector<iovec> pieces;
  for (std::size_t left = packet.bytes; left > 0;) {
    const bool first = left == packet.bytes;
    std::size_t segment = std::min(left, packet.segment_bytes);
    left -= segment;
    pieces.clear();
    while (segment > 0) {
      const IoSlice& from = packet.slices[slice];
      const std::size_t take = std::min(segment, from.bytes - within);
      pieces.push_back({static_cast<std::byte*>(const_cast<void*>(from.data)) + within, take});
      segment -= take;
      within += take;
      if (within == from.bytes) {
        ++slice;
        within = 0;
      }
    }
    mmsghdr header{header_to(*packet.destination, pieces.data(), pieces.size()), 0};
    Control control;
    name_interface(*packet.destination, header.msg_hdr, control);
    int error = 0;
    // If the first piece finds no room, or no way, nothing has left. Later pieces count as lost on
    // the wire.
    if (offer({&header, 1}, refusals, &error) == 0) return !first || !is_lack_of_room(error);
  }
  return true;
}

std::size_t UdpSocket::receive(UdpReceiveRing& ring, std::size_t first, std::size_t most,
                               std::vector<Refusal>& refusals) {
  if (deaf_until_ != kNever && fd_ && monotonic_now() >= deaf_until_) hear_errors(true);
  for (int retries = 0; fd_ && retries < kRetries; ++retries) {
    const int got = receive_some(fd_.get(), std::span(ring.headers).subspan(first, most));
    if (got >= 0) return static_cast<std::size_t>(got);
    if (errno == EAGAIN) return 0;
    if (errno != EINTR) drain_errors(refusals);
  }
  return 0;
}

std::size_t UdpSocket::segment_bytes_of(const UdpReceiveRing& ring, std::size_t index) {
  const msghdr& header = ring.headers[index].msg_hdr;
  std::size_t segment = 0;
  for (cmsghdr* control = CMSG_FIRSTHDR(&header); control != nullptr;
       control = CMSG_NXTHDR(const_cast<msghdr*>(&header), control)) {
    if (control->cmsg_level == SOL_UDP && control->cmsg_type == UDP_GRO) {
      int bytes = 0;
      memcpy(&bytes, CMSG_DATA(control), sizeof bytes);
      segment = static_cast<std::size_t>(std::max(bytes, 0));
    } else if (control->cmsg_level == SOL_SOCKET && control->cmsg_type == SO_RXQ_OVFL) {
      std::uint32_t dropped = 0;
      memcpy(&dropped, CMSG_DATA(control), sizeof dropped);
      overflows_.store(dropped, std::memory_order_relaxed);
    }
  }
  return segment < ring.headers[index].msg_len ? segment : 0;
}

std::size_t UdpSocket::drain_errors(std::vector<Refusal>& refusals) {
  const std::size_t taken = take_errors(refusals);
  const Time now = monotonic_now();
  if (now - errors_since_ >= kErrorsRest) {
    errors_since_ = now;
    errors_ = 0;
  }
  errors_ += static_cast<int>(taken);
  if (errors_ >= kErrorsHeard && deaf_until_ == kNever) hear_errors(false);
  return taken;
}

std::size_t UdpSocket::take_errors(std::vector<Refusal>& refusals) {
  constexpr std::size_t kMaxKept = 64;
  std::size_t from_others = 0;
  for (int taken = 0; taken < kErrorsAtOnce; ++taken) {
    Refusal refusal;
    std::array<std::byte, 576> quoted;
    alignas(cmsghdr) std::array<std::byte, 256> control;
    iovec slice{quoted.data(), quoted.size()};
    msghdr header{};
    header.msg_name = refusal.destination.bytes.data();
    header.msg_namelen = sizeof refusal.destination.bytes;
    header.msg_iov = &slice;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    const ssize_t got = recvmsg(fd_.get(), &header, MSG_ERRQUEUE | MSG_DONTWAIT);
    if (got < 0) return from_others;
    refusal.destination.size = header.msg_namelen;
    for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
      const bool is_error = (c->cmsg_level == SOL_IP && c->cmsg_type == IP_RECVERR) ||
                            (c->cmsg_level == SOL_IPV6 && c->cmsg_type == IPV6_RECVERR);
      if (!is_error) continue;
      sock_extended_err error;
      memcpy(&error, CMSG_DATA(c), sizeof error);
      const bool from_network =
          error.ee_origin == SO_EE_ORIGIN_ICMP || error.ee_origin == SO_EE_ORIGIN_ICMP6;
      from_others += from_network ? 1 : 0;
      if (!from_network || error.ee_errno != ECONNREFUSED || refusals.size() >= kMaxKept) continue;
      refusal.quoted.assign(quoted.begin(), quoted.begin() + got);
      refusals.push_back(std::move(refusal));
      break;
    }
  }
  return from_others;
}

}  // namespace taco::harp
