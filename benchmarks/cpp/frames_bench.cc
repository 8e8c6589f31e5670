// Frames over a device of DPDK without a protocol above: what the device and a checksum leave for
// any. Rank 1 sends frames of 1,472 bytes of UDP as fast as they are taken, each with a header that
// holds its payload's CRC32C; rank 0 verifies that and copies the payload to its place, for as long
// as
// --seconds says. benchmarks/dpdk.py runs it beside harp-perf.
//
//   frames_bench --rank R --device "DEVICE,ARGUMENTS ADDRESS/PREFIX" [--seconds S]
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "bare_sockets.h"
#include "base/clock.h"
#include "harp/drivers/dpdk/dpdk_devices.h"
#include "kernels/kernels.h"

namespace {

using namespace taco;         // a program, not a library
using namespace taco::bench;  // NOLINT(google-build-using-namespace)
using harp::FramePort;

constexpr std::size_t kHeaders = 14 + 20 + 8;  // of Ethernet, IPv4 and UDP
constexpr std::size_t kOwnHeader = 32;
constexpr std::size_t kPayload = 1472 - kOwnHeader;
constexpr std::size_t kBurst = 16;
constexpr std::size_t kMemory = (8 << 20) / kPayload * kPayload;  // of the messages, used anew

void wait_until_up(FramePort& port) {
  const Time limit = monotonic_now() + Duration{kPatienceMs} * kMillisecond;
  while (!port.is_up_st()) {
    if (monotonic_now() > limit) fail("the other end does not come");
  }
}

// The port looks after its connection when it is asked for it.
class LinkWatch {
 public:
  explicit LinkWatch(FramePort& port) : port_(port) {}
  bool is_up(Time now) {
    if (now - last_ < kMillisecond) return is_up_;
    last_ = now;
    return is_up_ = port_.is_up_st();
  }

 private:
  FramePort& port_;
  Time last_ = 0;
  bool is_up_ = true;
};

void send_frames(FramePort& port) {
  const std::vector<std::byte> memory(kMemory, std::byte{'x'});
  std::array<std::array<std::byte, kOwnHeader>, kBurst> headers{};
  std::array<std::array<harp::IoSlice, 2>, kBurst> slices;
  std::array<harp::TxFrame, kBurst> frames;
  LinkWatch link(port);
  std::size_t at = 0;
  while (link.is_up(monotonic_now())) {
    for (std::size_t i = 0; i < kBurst; ++i, at = (at + kPayload) % kMemory) {
      const std::uint32_t sum = kernels::crc32c(0, &memory[at], kPayload);
      std::memcpy(headers[i].data(), &sum, sizeof sum);
      slices[i] = {{{headers[i].data(), kOwnHeader}, {&memory[at], kPayload}}};
      frames[i].header_bytes = kHeaders;
      frames[i].slices = slices[i];
      frames[i].bytes = kOwnHeader + kPayload;
    }
    for (std::size_t sent = 0; sent < kBurst && link.is_up(monotonic_now());) {
      const std::size_t taken = port.send_st(std::span(frames).subspan(sent));
      if (taken == 0) std::this_thread::yield();  // the core may be shared, as HARP expects
      sent += taken;
    }
  }
}

std::uint64_t receive_frames(FramePort& port, Duration time) {
  std::vector<std::byte> memory(kMemory);
  std::array<harp::RxFrame, harp::Nic::kReceiveBurst> frames;
  LinkWatch link(port);
  std::uint64_t bytes = 0;
  std::size_t at = 0;
  for (Time now = monotonic_now(), end = now + time; now < end; now = monotonic_now()) {
    if (!link.is_up(now)) fail("the other end has gone");
    const std::size_t count = port.receive_st(frames);
    if (count == 0) std::this_thread::yield();
    for (const harp::RxFrame& frame : std::span(frames).first(count)) {
      if (frame.bytes.size() != kHeaders + kOwnHeader + kPayload) continue;
      const std::byte* const payload = &frame.bytes[kHeaders + kOwnHeader];
      std::uint32_t sum = 0;
      std::memcpy(&sum, &frame.bytes[kHeaders], sizeof sum);
      if (kernels::crc32c(0, payload, kPayload) != sum) fail("a frame is damaged");
      std::memcpy(&memory[at], payload, kPayload);
      at = (at + kPayload) % kMemory;
      bytes += kPayload;
    }
  }
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  Options options(argc, argv, "frames_bench --rank R --device DEVICE [--seconds S]");
  const bool sends = options.choice("--rank", "1", "0", false);
  const std::string device = options.text("--device");
  const double seconds = options.seconds("--seconds", 1);
  options.finish();
  const auto devices = harp::parse_dpdk_devices(device);
  if (!devices.ok()) fail(devices.status().message());
  const auto links = harp::dpdk_links(devices.value(), "");
  if (!links.ok()) fail(links.status().message());
  FramePort& port = *links.value().front().port;
  wait_until_up(port);
  if (sends) {
    send_frames(port);
    return 0;
  }
  const std::uint64_t bytes = receive_frames(port, static_cast<Duration>(seconds * kSecond));
  std::printf("received %llu B: %.3f Gbit/s\n", static_cast<unsigned long long>(bytes),
              static_cast<double>(bytes) * 8e-9 / seconds);
  return 0;
}
