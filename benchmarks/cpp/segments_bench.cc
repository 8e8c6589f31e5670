// HARP's work on each packet of a run beside moving its bytes: headers composed and checked, singly
// and as a run of segments that follow each other. Times are of packets in the caches, the
// fastest of many turns. Where the kernel checks the payload (TACO_HARP_CHECKSUM=kernel), headers
// are all that is left.
//
//   segments_bench [--turns N]
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "base/clock.h"
#include "harp/session/wire.h"

namespace {

using namespace taco;        // a program, not a library
using namespace taco::harp;  // NOLINT(google-build-using-namespace)

constexpr std::size_t kSegmentBytes = 1440;
constexpr std::uint32_t kRun = 44;
constexpr std::size_t kDatagram = sizeof(wire::Header) + kSegmentBytes;
constexpr wire::PacketId kId{7, 1000, wire::kFirstPath};
constexpr SlotId kSlot{3, 4};
constexpr std::uint64_t kMessage = 1 << 20;

class Run {
 public:
  Run(const HeaderKey& key, std::uint8_t flags)
      : key_(key), flags_(flags), datagrams_(kRun * kDatagram) {}

  void compose_singly() {
    wire::PacketId id = kId;
    for (std::uint32_t i = 0; i < kRun; ++i, ++id.number) {
      wire::Header header = wire::data_header(id, kSlot, i, kMessage, flags_);
      wire::seal(header, payload(i), {}, {&key_, id.number});
      headers_[i] = header;
    }
  }
  void compose_as_run() {
    wire::SegmentHeaders headers(kId, kSlot, 0, kMessage, &key_);
    for (std::uint32_t i = 0; i < kRun; ++i) headers_[i] = headers.next(flags_, payload(i));
  }
  void put_headers() {
    for (std::uint32_t i = 0; i < kRun; ++i) {
      std::memcpy(datagram(i).data(), &headers_[i], sizeof(wire::Header));
    }
  }
  void check_singly() {
    for (std::uint32_t i = 0; i < kRun; ++i) {
      wire::Packet packet;
      if (!is_good(i, packet, kId.number + i)) std::abort();
    }
  }
  void check_as_run() {
    wire::Packet packet;
    if (!is_good(0, packet, kId.number)) std::abort();
    wire::FollowingSegments following(datagram(0), packet, {&key_, kId.number});
    for (std::uint32_t i = 1; i < kRun; ++i) {
      if (!following.take(datagram(i), packet)) std::abort();
    }
  }

 private:
  std::span<std::byte> datagram(std::uint32_t i) {
    return std::span(datagrams_).subspan(i * kDatagram, kDatagram);
  }
  std::span<const std::byte> payload(std::uint32_t i) {
    return datagram(i).subspan(sizeof(wire::Header));
  }
  bool is_good(std::uint32_t i, wire::Packet& packet, std::uint64_t number) {
    return wire::parse(datagram(i), packet, true, {&key_, number}) == wire::Verdict::kGood;
  }

  const HeaderKey key_;
  const std::uint8_t flags_;
  std::vector<std::byte> datagrams_;
  std::array<wire::Header, kRun> headers_{};
};

double nanoseconds_a_packet(Run& run, void (Run::*work)(), int turns) {
  Duration least = std::numeric_limits<Duration>::max();
  for (int turn = 0; turn < turns; ++turn) {
    const Time start = monotonic_now();
    (run.*work)();
    least = std::min(least, monotonic_now() - start);
  }
  return static_cast<double>(least) / kRun;
}

}  // namespace

int main(int argc, char** argv) {
  const int turns = argc == 3 && std::strcmp(argv[1], "--turns") == 0 ? std::atoi(argv[2]) : 20'000;
  std::array<std::byte, HeaderKey::kBytes> key{};
  key[3] = std::byte{9};
  std::printf("ns a packet        singly    as a run\n");
  for (const std::uint8_t flags : {std::uint8_t{0}, std::uint8_t{wire::kTrusted}}) {
    Run run((HeaderKey(key)), flags);
    const char* const checked = flags == 0 ? "all bytes" : "headers";
    const double composed = nanoseconds_a_packet(run, &Run::compose_singly, turns);
    const double as_run = nanoseconds_a_packet(run, &Run::compose_as_run, turns);
    std::printf("%-9s composed %7.1f     %7.1f\n", checked, composed, as_run);
    run.put_headers();
    const double singly = nanoseconds_a_packet(run, &Run::check_singly, turns);
    const double following = nanoseconds_a_packet(run, &Run::check_as_run, turns);
    std::printf("%-9s checked  %7.1f     %7.1f\n", checked, singly, following);
  }
  return 0;
}
