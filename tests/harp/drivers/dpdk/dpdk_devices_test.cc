// Devices of DPDK's as Networks, Nics and links, without a Stack above: what they copy, what is
// left of the process as it was, and how it is said that one cannot be had.
#include "harp/drivers/dpdk/dpdk_devices.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "harp/drivers/dpdk/dpdk_network.h"
#include "support/dpdk_world.h"
#include "support/processes.h"

namespace taco::harp {
namespace {

using ::taco::testing::counters_of;
using ::taco::testing::Fellowship;
using ::taco::testing::kDpdkDeadline;
using ::taco::testing::pattern;
using ::taco::testing::run_processes;

constexpr const char* kRing = "net_ring0 10.5.0.1/24 10.5.0.2/24";

// A Nic whose device brings what it sends, from its first address to its last.
struct Loop {
  explicit Loop(const char* device = kRing) : network(parse_dpdk_devices(device).value(), "") {
    NicOptions options;
    const auto interfaces = network.interfaces();
    EXPECT_TRUE(interfaces.ok()) << interfaces.status().message();
    for (const Interface& each : interfaces.value()) {
      options.locals.push_back({each.address, 1500});
    }
    nic = network.open(options).value();
    at = nic->addresses().back().endpoint;
  }
  bool send(const std::vector<std::byte>& payload, TxReference* reference) {
    const IoSlice slices[] = {{header.data(), header.size()}, {payload.data(), payload.size()}};
    TxPacket packet;
    packet.destination = &at;
    packet.slices = slices;
    packet.bytes = header.size() + payload.size();
    packet.alternating = true;
    packet.reference = reference;
    return nic->send_st({&packet, 1}) == 1;
  }
  // The next datagram's payload.
  std::vector<std::byte> receive() {
    const Time deadline = monotonic_now() + 10 * kSecond;
    std::array<RxPacket, 1> packet;
    while (nic->receive_st(packet) == 0) {
      if (monotonic_now() > deadline) return {};
    }
    const std::span<std::byte> data = packet[0].data.subspan(header.size());
    return {data.begin(), data.end()};
  }

  DpdkNetwork network;
  std::unique_ptr<Nic> nic;
  Endpoint at;
  std::array<std::byte, 32> header{};
};

TEST(DpdkDevicesTest, a_ring_takes_payload_where_it_lies_and_it_is_copied_once_when_it_arrives) {
  DPDK_OR_SKIP();
  const auto statuses = run_processes({1, kDpdkDeadline, {}}, [&](Fellowship&) {
    Loop loop;
    ASSERT_TRUE(loop.nic->capabilities().asynchronous_return);
    const auto first = pattern(300, 1);
    ASSERT_TRUE(loop.send(first, nullptr)) << "it waits for the neighbour's address";
    ASSERT_EQ(loop.receive(), first);
    const FramePortCounters before = counters_of(kRing);

    const auto payload = pattern(1400, 2);
    std::array<TxReference, 20> references;
    for (TxReference& reference : references) {
      ASSERT_TRUE(loop.send(payload, &reference));
      EXPECT_EQ(reference.count, 1u) << "the device refers to it";
    }
    for (std::size_t i = 0; i < references.size(); ++i) ASSERT_EQ(loop.receive(), payload);
    std::array<RxPacket, 1> none;
    EXPECT_EQ(loop.nic->receive_st(none), 0u);
    for (const TxReference& reference : references) EXPECT_EQ(reference.count, 0u);
    const FramePortCounters after = counters_of(kRing);
    EXPECT_EQ(after.send_copied - before.send_copied, 0u);
    EXPECT_EQ(after.receive_copied - before.receive_copied, payload.size() * references.size());
  });
  EXPECT_EQ(statuses, std::vector<int>{0});
}

// The driver is asked for 32 frames at once, and none of them divides that.
TEST(DpdkDevicesTest, a_burst_is_filled_as_long_as_the_device_has_more) {
  DPDK_OR_SKIP();
  const auto statuses = run_processes({1, kDpdkDeadline, {}}, [&](Fellowship&) {
    Loop loop;
    ASSERT_TRUE(loop.send(pattern(300, 1), nullptr));
    ASSERT_EQ(loop.receive(), pattern(300, 1));
    constexpr std::size_t kSent = 41;
    for (std::size_t i = 0; i < kSent; ++i) ASSERT_TRUE(loop.send(pattern(100, i), nullptr));
    std::array<RxPacket, Nic::kReceiveBurst> packets;
    std::size_t heard = loop.nic->receive_st(std::span(packets).first(1));
    while (heard < kSent) {
      const std::size_t got = loop.nic->receive_st(packets);
      ASSERT_EQ(got, std::min(packets.size(), kSent - heard)) << "behind " << heard;
      heard += got;
    }
  });
  EXPECT_EQ(statuses, std::vector<int>{0});
}

TEST(DpdkDevicesTest, payload_that_is_recalled_may_change_and_arrives_as_it_was) {
  DPDK_OR_SKIP();
  const auto statuses = run_processes({1, kDpdkDeadline, {}}, [&](Fellowship&) {
    Loop loop;
    ASSERT_TRUE(loop.send(pattern(300, 1), nullptr));
    ASSERT_EQ(loop.receive(), pattern(300, 1));
    std::vector<std::byte> kept = pattern(1400, 2), recalled = pattern(1200, 3);
    TxReference keeps, gives_back;
    ASSERT_TRUE(loop.send(kept, &keeps) && loop.send(recalled, &gives_back) &&
                loop.send(recalled, &gives_back) && loop.send(kept, &keeps));
    EXPECT_EQ(gives_back.count, 2u);
    loop.nic->recall_st(gives_back);
    EXPECT_EQ(gives_back.count, 0u);
    EXPECT_EQ(keeps.count, 2u);
    recalled.assign(recalled.size(), std::byte{0xee});
    EXPECT_EQ(loop.receive(), kept);
    EXPECT_EQ(loop.receive(), pattern(1200, 3));
    EXPECT_EQ(loop.receive(), pattern(1200, 3));
    EXPECT_EQ(loop.receive(), kept);
    EXPECT_EQ(keeps.count, 0u);

    ASSERT_TRUE(loop.send(kept, &keeps));
    EXPECT_EQ(keeps.count, 1u);
    loop.nic->close_st();
    EXPECT_EQ(keeps.count, 0u) << "one that is closed refers to nothing";
  });
  EXPECT_EQ(statuses, std::vector<int>{0});
}

TEST(DpdkDevicesTest, payload_without_a_reference_has_been_read_when_send_returns) {
  DPDK_OR_SKIP();
  const auto statuses = run_processes({1, kDpdkDeadline, {}}, [&](Fellowship&) {
    Loop loop;
    ASSERT_TRUE(loop.send(pattern(300, 1), nullptr));
    ASSERT_EQ(loop.receive(), pattern(300, 1));
    std::vector<std::byte> payload = pattern(1400, 2);
    ASSERT_TRUE(loop.send(payload, nullptr));
    payload.assign(payload.size(), std::byte{0xee});
    EXPECT_EQ(loop.receive(), pattern(1400, 2));
  });
  EXPECT_EQ(statuses, std::vector<int>{0});
}

// The environment is as it was: the program's threads may run wherever they could, and the devices
// are there for whoever comes next, one at a time; a child that is forked has none of them.
TEST(DpdkDevicesTest,
     dpdk_changes_nothing_for_the_program_and_its_devices_serve_one_after_another) {
  DPDK_OR_SKIP();
  const auto statuses = run_processes({1, kDpdkDeadline, {}}, [&](Fellowship&) {
    cpu_set_t before, after;
    ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
    const auto devices = parse_dpdk_devices("net_ring0 10.5.0.1/24").value();
    const DpdkNetwork network(devices, "");
    const auto all = network.interfaces();
    ASSERT_TRUE(all.ok()) << all.status().message();
    ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
    EXPECT_TRUE(CPU_EQUAL(&before, &after));
    NicOptions options;
    options.locals = {{all.value().front().address, 1500}};
    for (int i = 0; i < 2; ++i) {
      auto nic = network.open(options);
      ASSERT_TRUE(nic.ok()) << nic.status().message();
      EXPECT_EQ(network.open(options).status().code(), Code::kResource) << "it is in use";
    }
    const DpdkNetwork other(parse_dpdk_devices("net_ring1 10.5.0.1/24").value(), "");
    EXPECT_NE(other.interfaces().status().message().find("TACO_HARP_DPDK"), std::string::npos);
    const pid_t child = fork();
    if (child == 0) {
      const Status status = network.interfaces().status();
      _exit(status.code() == Code::kUnsupported ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  });
  EXPECT_EQ(statuses, std::vector<int>{0});
}

// Status of the first thing that is asked of devices, in a process of its own.
void expect_refusal(const std::string& device, const std::string& eal, const std::string& why) {
  const auto statuses = run_processes({1, kDpdkDeadline, {}}, [&](Fellowship&) {
    const DpdkNetwork network(parse_dpdk_devices(device).value(), eal);
    const Status status = network.interfaces().status();
    EXPECT_EQ(status.code(), Code::kResource);
    EXPECT_NE(status.message().find(why), std::string::npos) << status.message();
    const Status again = network.interfaces().status();
    EXPECT_NE(again.message().find(why), std::string::npos) << again.message();
  });
  EXPECT_EQ(statuses, std::vector<int>{0}) << device << " " << eal;
}

TEST(DpdkDevicesTest, a_device_that_cannot_be_had_is_an_error_that_names_it) {
  DPDK_OR_SKIP();
  const struct {
    const char* device;
    const char* why;
  } cases[] = {
      {"net_nothing0 10.5.0.1/24", "net_nothing0"},
      {"net_af_packet0,iface=nothing7 10.5.0.1/24", "No such device"},
      {"0000:99:00.0 10.5.0.1/24", "vfio-pci"},
      {"net_memif0,role=server,socket-abstract=no,socket=/nowhere/s 10.5.0.1/24", "directory"},
      {"net_ring0 10.5.0.1/24 mtu=9000 slots=16384", "slots"},
  };
  for (const auto& each : cases) expect_refusal(each.device, "", each.why);
}

// One of several devices cannot be had at first; then what it lacks has come.
TEST(DpdkDevicesTest, devices_that_could_not_be_opened_are_opened_when_they_are_asked_for_again) {
  DPDK_OR_SKIP();
  const ::taco::testing::TemporaryDirectory folder;
  const std::string sockets = folder / "sockets";
  const std::string devices =
      "net_ring0 10.5.0.1/24; net_memif0,role=server,socket-abstract=no,socket=" + sockets +
      "/0 10.6.0.1/24";
  const auto statuses = run_processes({1, kDpdkDeadline, {}}, [&](Fellowship&) {
    const DpdkNetwork network(parse_dpdk_devices(devices).value(), "");
    for (int i = 0; i < 2; ++i) {
      const Status status = network.interfaces().status();
      EXPECT_NE(status.message().find("net_memif0"), std::string::npos) << status.message();
      EXPECT_NE(status.message().find("directory"), std::string::npos) << status.message();
    }
    ASSERT_EQ(mkdir(sockets.c_str(), 0700), 0);
    const auto all = network.interfaces();
    ASSERT_TRUE(all.ok()) << all.status().message();
    EXPECT_EQ(all.value().size(), 2u);
    NicOptions options;
    options.locals = {{all.value()[0].address, 1500}, {all.value()[1].address, 1500}};
    const auto nic = network.open(options);
    EXPECT_TRUE(nic.ok()) << nic.status().message();
  });
  EXPECT_EQ(statuses, std::vector<int>{0});
}

TEST(DpdkDevicesTest, eal_that_does_not_start_is_an_error_that_says_what_it_was_told) {
  DPDK_OR_SKIP();
  for (const char* const arguments :
       {"--no-such-argument", "--lcores=99999", "-m 1000000000", "--vdev=net_nothing7"}) {
    expect_refusal(kRing, arguments, "TACO_HARP_DPDK_EAL");
  }
}

TEST(DpdkDevicesTest, a_device_that_another_process_has_is_an_error_that_names_it) {
  DPDK_OR_SKIP();
  const ::taco::testing::TemporaryDirectory folder;
  const std::string server = ::taco::testing::memif(folder, 0, 0, "10.5.0.1/24");
  const auto statuses = run_processes({2, kDpdkDeadline, {}}, [&](Fellowship& fellowship) {
    const DpdkNetwork network(parse_dpdk_devices(server).value(), "");
    if (fellowship.rank() == 1) fellowship.barrier();
    const Status status = network.interfaces().status();
    if (fellowship.rank() == 0) fellowship.barrier();
    EXPECT_EQ(status.ok(), fellowship.rank() == 0) << status.message();
    if (fellowship.rank() == 1) {
      EXPECT_NE(status.message().find("net_memif0"), std::string::npos) << status.message();
      EXPECT_NE(status.message().find("in use"), std::string::npos) << status.message();
    }
    fellowship.barrier();
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

// Frames that are not taken out again fill the ring, or use up the buffers, whichever there are
// fewer of. Each that was taken arrives.
TEST(DpdkDevicesTest, a_full_ring_and_a_lack_of_buffers_take_no_more_until_there_is_room) {
  DPDK_OR_SKIP();
  for (const char* const device : {kRing, "net_ring0 10.5.0.1/24 10.5.0.2/24 slots=64"}) {
    const auto statuses = run_processes({1, kDpdkDeadline, {}}, [&](Fellowship&) {
      Loop loop(device);
      ASSERT_TRUE(loop.send(pattern(300, 1), nullptr));
      ASSERT_EQ(loop.receive(), pattern(300, 1));
      const auto payload = pattern(1400, 2);
      for (int round = 0; round < 2; ++round) {
        TxReference reference;
        int taken = 0;
        while (taken < 5'000 && loop.send(payload, &reference)) ++taken;
        ASSERT_LT(taken, 5'000);
        ASSERT_GT(taken, 100);
        EXPECT_TRUE(loop.nic->is_full_st(0));
        EXPECT_EQ(reference.count, static_cast<std::uint32_t>(taken));
        for (int i = 0; i < taken; ++i) ASSERT_EQ(loop.receive(), payload) << i;
        std::array<RxPacket, 1> none;
        EXPECT_EQ(loop.nic->receive_st(none), 0u);
        EXPECT_EQ(reference.count, 0u);
      }
      const bool has_few = std::string(device).find("slots") != std::string::npos;
      EXPECT_EQ(counters_of(device).no_memory > 0, has_few);
    });
    EXPECT_EQ(statuses, std::vector<int>{0}) << device;
  }
}

}  // namespace
}  // namespace taco::harp
