// Bulk data without a transport: a bare program that sends packets as one HARP session does and
// does nothing else, and one TCP stream. benchmarks/bulk.py runs them beside harp-perf.
//
//   bulk_bench --by udp|tcp --rank R --own ADDRESS --other ADDRESS --port N
//              [--crc on|off] [--bytes N] [--seconds S] [--window N]
//
// Rank 0 sends messages of --bytes from --window buffers in turn, rank 1 places them in as many.
// Over UDP: packets of an Ethernet frame in super-packets of 44 (GSO, GRO), each with a header of
// 32 bytes and a CRC32C of all of it at both ends, and one copy from the packet to its place. The
// receiver acknowledges each burst that it has read; no more are under way than half its socket
// buffer holds, so none is lost. There is no other bookkeeping: a packet that is lost ends the run.
#include <netinet/udp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bare_sockets.h"
#include "base/clock.h"
#include "kernels/kernels.h"

namespace {

using namespace taco;         // a program, not a library
using namespace taco::bench;  // NOLINT(google-build-using-namespace)

constexpr std::size_t kSegmentBytes = 1440;
constexpr std::uint32_t kRunSegments = 44;
constexpr std::size_t kSuperPacketBytes = 65'536;
constexpr std::size_t kReceiveBurst = 16;
constexpr int kReceiveBuffer = 4 << 20;  // asked for, as HARP does
constexpr int kSendBuffer = 1 << 18;
constexpr std::size_t kPacketCost = 2304;  // of a small packet, to the kernel's account
constexpr int kEmptyPolls = 200;           // before a process sleeps

struct Settings {
  bool tcp = false;
  bool crc = true;
  bool sends = false;
  Ends ends;
  std::size_t bytes = std::size_t{8} << 20;
  double seconds = 2;
  std::size_t window = 4;
};

double processor_seconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// From the first byte of data to the last, in the words of harp-perf.
class Measured {
 public:
  explicit Measured(const Settings& settings) : settings_(settings) {}
  bool is_over() const {
    return static_cast<double>(monotonic_now() - start_) >= settings_.seconds * kSecond;
  }
  void print(std::uint64_t messages) const {
    const double seconds = static_cast<double>(monotonic_now() - start_) * 1e-9;
    const double gigabytes = static_cast<double>(messages * settings_.bytes) * 1e-9;
    std::printf("%s %zu B: %.2f GB/s = %.1f Gbit/s, %.3f s of processor a GB\n",
                settings_.sends ? "sent" : "received", settings_.bytes, gigabytes / seconds,
                gigabytes * 8 / seconds, (processor_seconds() - processor_) / gigabytes);
  }

 private:
  const Settings& settings_;
  const Time start_ = monotonic_now();
  const double processor_ = processor_seconds();
};

// The buffers that messages are in, one after the other.
class Buffers {
 public:
  explicit Buffers(const Settings& settings)
      : bytes_(settings.bytes), count_(settings.window), memory_(bytes_ * count_, 'y') {}
  char* of(std::uint64_t message) { return memory_.data() + message % count_ * bytes_; }

 private:
  const std::size_t bytes_, count_;
  std::vector<char> memory_;
};

// ---- UDP

enum class Kind : std::uint32_t { kHello = 1, kData = 2, kAck = 3 };

struct Header {
  Kind kind;
  std::uint32_t crc;      // of the whole packet, itself taken as zero
  std::uint64_t number;   // kData: of the packet; kAck: of packets that have arrived
  std::uint64_t message;  // kData; kAck: packets that may be under way
  std::uint32_t segment;
  std::uint32_t last;  // 1: no message follows this one
};
static_assert(sizeof(Header) == 32);

std::uint32_t checksum(Header header, const void* payload, std::size_t bytes) {
  header.crc = 0;
  return kernels::crc32c(kernels::crc32c(0, &header, sizeof header), payload, bytes);
}

class UdpSocket {
 public:
  explicit UdpSocket(const Settings& settings) : other_(settings.ends.other) {
    fd_ = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd_ < 0) fail_call("socket");
    if (setsockopt(fd_, SOL_SOCKET, SO_RCVBUFFORCE, &kReceiveBuffer, sizeof kReceiveBuffer) != 0) {
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &kReceiveBuffer, sizeof kReceiveBuffer);
    }
    setsockopt(fd_, SOL_SOCKET, SO_SNDBUF, &kSendBuffer, sizeof kSendBuffer);
    const int on = 1;
    if (setsockopt(fd_, SOL_UDP, UDP_GRO, &on, sizeof on) != 0) fail_call("UDP_GRO");
    const auto* own = reinterpret_cast<const sockaddr*>(&settings.ends.own);
    if (bind(fd_, own, sizeof settings.ends.own) != 0) fail_call("bind");
  }
  ~UdpSocket() { close(fd_); }
  UdpSocket(const UdpSocket&) = delete;
  UdpSocket& operator=(const UdpSocket&) = delete;

  int fd() const { return fd_; }
  std::uint64_t packets_that_fit() const {
    int bytes = 0;
    socklen_t length = sizeof bytes;
    getsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &bytes, &length);
    return static_cast<std::uint64_t>(bytes) / 2 / kPacketCost;
  }

  // `segment_bytes` 0: one packet.
  void send(std::span<const iovec> slices, std::uint16_t segment_bytes) {
    msghdr message{};
    message.msg_name = &other_;
    message.msg_namelen = sizeof other_;
    message.msg_iov = const_cast<iovec*>(slices.data());
    message.msg_iovlen = slices.size();
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof segment_bytes)> control;
    if (segment_bytes != 0) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr* const option = CMSG_FIRSTHDR(&message);
      option->cmsg_level = SOL_UDP;
      option->cmsg_type = UDP_SEGMENT;
      option->cmsg_len = CMSG_LEN(sizeof segment_bytes);
      std::memcpy(CMSG_DATA(option), &segment_bytes, sizeof segment_bytes);
    }
    while (sendmsg(fd_, &message, 0) < 0) {
      // Nobody may be there yet to hear the first hello.
      if (errno == ECONNREFUSED || errno == EINTR) continue;
      if (errno != EAGAIN && errno != ENOBUFS) fail_call("sendmsg");
      wait_for(fd_, POLLOUT);
    }
  }

  void send(Header header) {
    header.crc = checksum(header, nullptr, 0);
    const iovec slice{&header, sizeof header};
    send({&slice, 1}, 0);
  }

  // False: nothing of this kind is there.
  bool receive(Kind kind, Header& header) {
    for (;;) {
      const ssize_t got = recv(fd_, &header, sizeof header, 0);
      if (got < 0) return false;
      if (got != sizeof header || header.crc != checksum(header, nullptr, 0)) fail("bad packet");
      if (header.kind == kind) return true;
    }
  }

 private:
  int fd_ = -1;
  sockaddr_in other_;
};

class UdpSender {
 public:
  explicit UdpSender(const Settings& settings)
      : settings_(settings), socket_(settings), buffers_(settings) {
    // Until the receiver is there. Its answer says how much it can hold.
    Header answer;
    for (int tries = 0; !socket_.receive(Kind::kAck, answer); ++tries) {
      if (tries == kPatienceMs / 10) fail("nobody answers");
      socket_.send({.kind = Kind::kHello});
      pollfd entry{socket_.fd(), POLLIN, 0};
      poll(&entry, 1, 10);
    }
    max_ = answer.message;
  }

  void run() {
    const Measured measured(settings_);
    std::uint64_t messages = 0;
    for (bool last = false; !last; ++messages) {
      last = measured.is_over();
      send_message(messages, last);
    }
    await(next_);
    measured.print(messages);
  }

 private:
  void send_message(std::uint64_t message, bool last) {
    const char* const data = buffers_.of(message);
    const auto segments =
        static_cast<std::uint32_t>((settings_.bytes + kSegmentBytes - 1) / kSegmentBytes);
    // The message that was in this buffer has arrived.
    if (message >= settings_.window) await(next_ - (settings_.window - 1) * segments);
    for (std::uint32_t first = 0; first < segments;) {
      const std::uint32_t count = std::min(kRunSegments, segments - first);
      if (next_ + count > max_) await(next_ + count - max_);
      for (std::uint32_t i = 0; i < count; ++i) {
        const std::size_t offset = std::size_t{first + i} * kSegmentBytes;
        const std::size_t bytes = std::min(kSegmentBytes, settings_.bytes - offset);
        Header& header = headers_[i];
        header = {Kind::kData, 0, next_++, message, first + i, last ? 1U : 0U};
        if (settings_.crc) header.crc = checksum(header, data + offset, bytes);
        slices_[2 * i] = {&header, sizeof header};
        slices_[2 * i + 1] = {const_cast<char*>(data) + offset, bytes};
      }
      const auto datagram = static_cast<std::uint16_t>(sizeof(Header) + kSegmentBytes);
      socket_.send({slices_.data(), 2 * std::size_t{count}}, datagram);
      first += count;
    }
  }

  // Until so many packets have arrived.
  void await(std::uint64_t arrived) {
    for (int empty = 0; arrived_ < arrived;) {
      Header ack;
      if (socket_.receive(Kind::kAck, ack)) {
        arrived_ = std::max(arrived_, ack.number);
        empty = 0;
      } else if (++empty > kEmptyPolls) {
        wait_for(socket_.fd(), POLLIN);
      }
    }
  }

  const Settings& settings_;
  UdpSocket socket_;
  Buffers buffers_;
  std::uint64_t max_ = 0, next_ = 0, arrived_ = 0;
  std::array<Header, kRunSegments> headers_;
  std::array<iovec, 2 * std::size_t{kRunSegments}> slices_;
};

class UdpReceiver {
 public:
  explicit UdpReceiver(const Settings& settings)
      : settings_(settings), socket_(settings), buffers_(settings) {
    for (std::size_t i = 0; i < kReceiveBurst; ++i) {
      slices_[i] = {memory_.get() + i * kSuperPacketBytes, kSuperPacketBytes};
      headers_[i].msg_hdr = {};
      headers_[i].msg_hdr.msg_iov = &slices_[i];
      headers_[i].msg_hdr.msg_iovlen = 1;
      headers_[i].msg_hdr.msg_control = controls_[i].data();
    }
    Header hello;
    while (!socket_.receive(Kind::kHello, hello)) wait_for(socket_.fd(), POLLIN);
    acknowledge();
  }

  void run() {
    wait_for(socket_.fd(), POLLIN);
    const Measured measured(settings_);
    for (int empty = 0; !complete_;) {
      if (receive_burst()) {
        acknowledge();
        empty = 0;
      } else if (++empty > kEmptyPolls) {
        wait_for(socket_.fd(), POLLIN);
      }
    }
    measured.print(messages_);
  }

 private:
  void acknowledge() {
    socket_.send({.kind = Kind::kAck, .number = received_, .message = socket_.packets_that_fit()});
  }

  bool receive_burst() {
    for (mmsghdr& header : headers_) header.msg_hdr.msg_controllen = controls_[0].size();
    const int got = recvmmsg(socket_.fd(), headers_.data(), kReceiveBurst, 0, nullptr);
    for (int i = 0; i < got; ++i) {
      const std::size_t bytes = headers_[i].msg_len, stride = stride_of(headers_[i]);
      const auto* at = static_cast<const std::byte*>(slices_[i].iov_base);
      for (std::size_t done = 0; done < bytes; done += stride) {
        take(at + done, std::min(stride, bytes - done));
      }
    }
    return got > 0;
  }

  static std::size_t stride_of(const mmsghdr& header) {
    for (cmsghdr* c = CMSG_FIRSTHDR(&header.msg_hdr); c != nullptr;
         c = CMSG_NXTHDR(const_cast<msghdr*>(&header.msg_hdr), c)) {
      if (c->cmsg_level != SOL_UDP || c->cmsg_type != UDP_GRO) continue;
      int bytes = 0;
      std::memcpy(&bytes, CMSG_DATA(c), sizeof bytes);
      return static_cast<std::size_t>(bytes);
    }
    return header.msg_len;
  }

  void take(const std::byte* packet, std::size_t bytes) {
    Header header;
    if (bytes < sizeof header) fail("short packet");
    std::memcpy(&header, packet, sizeof header);
    if (header.kind == Kind::kHello) return;
    const std::byte* const payload = packet + sizeof header;
    const std::size_t size = bytes - sizeof header;
    if (settings_.crc && header.crc != checksum(header, payload, size)) fail("bad checksum");
    const std::size_t offset = std::size_t{header.segment} * kSegmentBytes;
    if (header.kind != Kind::kData || offset + size > settings_.bytes) fail("bad packet");
    std::memcpy(buffers_.of(header.message) + offset, payload, size);
    if (header.number != received_++) fail("a packet was lost or overtaken");
    if (offset + size < settings_.bytes) return;
    ++messages_;
    complete_ = header.last != 0;
  }

  const Settings& settings_;
  UdpSocket socket_;
  Buffers buffers_;
  std::unique_ptr<std::byte[]> memory_{new std::byte[kReceiveBurst * kSuperPacketBytes]};
  std::array<iovec, kReceiveBurst> slices_;
  std::array<mmsghdr, kReceiveBurst> headers_;
  alignas(cmsghdr) std::array<std::array<std::byte, 64>, kReceiveBurst> controls_;
  std::uint64_t received_ = 0, messages_ = 0;
  bool complete_ = false;
};

// ---- TCP: the first byte of a message says whether another follows.

void send_by_tcp(const Settings& settings) {
  const int fd = connect_to(settings.ends);
  Buffers buffers(settings);
  const Measured measured(settings);
  std::uint64_t messages = 0;
  for (bool last = false; !last; ++messages) {
    last = measured.is_over();
    char* const data = buffers.of(messages);
    data[0] = last ? 'l' : 'y';
    for (std::size_t done = 0; done < settings.bytes;) {
      const ssize_t sent = send(fd, data + done, settings.bytes - done, MSG_NOSIGNAL);
      if (sent < 0) fail_call("send");
      done += static_cast<std::size_t>(sent);
    }
  }
  char all = 0;
  if (recv(fd, &all, 1, MSG_WAITALL) != 1) fail("the receiver has gone");
  measured.print(messages);
  close(fd);
}

void receive_by_tcp(const Settings& settings) {
  const int fd = accept_one(listen_at(settings.ends));
  Buffers buffers(settings);
  wait_for(fd, POLLIN);
  const Measured measured(settings);
  std::uint64_t messages = 0;
  for (bool last = false; !last; ++messages) {
    char* const data = buffers.of(messages);
    const ssize_t got = recv(fd, data, settings.bytes, MSG_WAITALL);
    if (got != static_cast<ssize_t>(settings.bytes)) fail("the sender has gone");
    last = data[0] == 'l';
  }
  const char all = 1;
  if (send(fd, &all, 1, MSG_NOSIGNAL) != 1) fail_call("send");
  measured.print(messages);
  close(fd);
}

// ---- settings

constexpr char kUsage[] =
    "bulk_bench --by udp|tcp --rank 0|1 --own IPV4 --other IPV4 --port N\n"
    "                  [--crc on|off] [--bytes N] [--seconds S] [--window N]";

Settings parse(int argc, char** argv) {
  Options options(argc, argv, kUsage);
  Settings settings;
  settings.tcp = options.choice("--by", "tcp", "udp", settings.tcp);
  settings.sends = options.choice("--rank", "0", "1", settings.sends);
  settings.crc = options.choice("--crc", "on", "off", settings.crc);
  settings.bytes = options.number("--bytes", settings.bytes);
  settings.seconds = options.seconds("--seconds", settings.seconds);
  settings.window = options.number("--window", settings.window);
  settings.ends = options.ends(settings.sends ? 0 : 1);
  options.finish();
  return settings;
}

}  // namespace

int main(int argc, char** argv) {
  const Settings settings = parse(argc, argv);
  if (settings.tcp) {
    settings.sends ? send_by_tcp(settings) : receive_by_tcp(settings);
  } else if (settings.sends) {
    UdpSender(settings).run();
  } else {
    UdpReceiver(settings).run();
  }
  return 0;
}
