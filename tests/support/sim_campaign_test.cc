// Tests what the protocol campaign is made of: its seeds draw every fault, its invariants notice,
// and the trace of a seed can be read.
#include "support/sim_campaign.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/udp.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>

#include "harp/session/wire.h"
#include "support/campaign_invariants.h"
#include "support/campaign_run.h"
#include "support/sim_pcap.h"
#include "support/sim_transfer.h"

namespace taco::harp {
namespace {

TEST(CampaignPlan, SeedsDrawEveryFault) {
  FaultCounts drawn;
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    SimRandom random(seed);
    drawn.add(CampaignPlan::draw(random).drawn);
  }
  for (std::size_t i = 0; i < kFaults; ++i) {
    const auto fault = static_cast<Fault>(i);
    EXPECT_GE(drawn[fault], 20u) << name_of(fault);
  }
}

TEST(CampaignRun, AFaultThatHardlyFiresIsNamed) {
  CampaignOutcome outcome;
  for (std::size_t i = 0; i < kFaults; ++i) {
    outcome.sum.drawn[static_cast<Fault>(i)] = outcome.sum.fired[static_cast<Fault>(i)] = 100;
  }
  EXPECT_EQ(rare_faults(outcome, 100, 100), "");
  outcome.sum.fired[Fault::kFlapping] = 99;
  outcome.sum.drawn[Fault::kStall] = 99;
  EXPECT_EQ(rare_faults(outcome, 100, 100), "flapping path, engine stall");
}

// Two processes that have exchanged something and want nothing any more.
struct Idle {
  Idle() : cluster(2, 1, {}), invariants(cluster) {
    Transfer transfer(1, 100'000);
    cluster[1].recv(0, transfer.recv);
    cluster[0].send(1, transfer.send);
    EXPECT_TRUE(cluster.run(
        kSecond, [&] { return transfer.done(); }, [&] { invariants.step(); }));
    transfer.check();
    wait(kSecond);
  }
  void wait(Duration time) {
    const Time until = cluster.now() + time;
    cluster.wake_at(until);
    cluster.run(
        until, [] { return false; }, [&] { invariants.step(); });
  }
  SimCluster cluster;
  Invariants invariants;
};

TEST(Invariants, HoldForProcessesThatDoNothing) {
  Idle idle;
  idle.invariants.begin_idle();
  idle.wait(3 * kSecond);
  idle.invariants.end_idle();
  EXPECT_EQ(idle.invariants.failure(), "");
  EXPECT_GT(idle.invariants.max_idle_bytes(), 1000u);
}

TEST(Invariants, NoticeAProcessThatTurnsForNothing) {
  Idle idle;
  Timer timer;
  timer.context = &idle;
  timer.on_expiry = [](Timer& again, Time now) {
    static_cast<Idle*>(again.context)->cluster[0].loop().arm_st(again, now + kMillisecond);
  };
  idle.cluster[0].loop().arm_st(timer, idle.cluster.now());
  idle.invariants.begin_idle();
  idle.wait(600 * kMillisecond);
  idle.invariants.end_idle();
  idle.cluster[0].loop().disarm_st(timer);
  EXPECT_NE(idle.invariants.failure().find("turns"), std::string::npos)
      << idle.invariants.failure();
}

TEST(Invariants, NoticeAPeerThatIsLostAndLives) {
  Idle idle;
  idle.cluster[0].session(1)->declare_lost(Status(Code::kPeerLost, "so the test says"));
  idle.wait(10 * kMillisecond);
  EXPECT_NE(idle.invariants.failure().find("so the test says"), std::string::npos);
}

TEST(Invariants, AllowADeadPeerToBeLost) {
  Idle idle;
  idle.invariants.on_death(1);
  idle.cluster[0].session(1)->declare_lost(Status(Code::kPeerLost, "so the test says"));
  idle.wait(10 * kMillisecond);
  EXPECT_EQ(idle.invariants.failure(), "");
  EXPECT_EQ(idle.invariants.losses(), 1u);
}

TEST(SimCluster, ADeadProcessIsMissedAndItsSuccessorIsMet) {
  Idle idle;
  SimCluster& cluster = idle.cluster;
  Transfer lost(2, 100'000), again(3, 100'000);
  cluster[0].recv(1, lost.recv);
  idle.invariants.on_death(1);
  cluster[1].die();
  EXPECT_TRUE(cluster.run(cluster.now() + 5 * kSecond, [&] { return lost.received.calls > 0; }));
  EXPECT_EQ(lost.received.status.code(), Code::kPeerLost);
  cluster.restart(1, 77);
  idle.invariants.on_restart(1);
  cluster[0].recv(1, again.recv);
  cluster[1].send(0, again.send);
  EXPECT_TRUE(cluster.run(cluster.now() + 5 * kSecond, [&] { return again.done(); }));
  again.check();
  EXPECT_EQ(idle.invariants.failure(), "");
}

// It was hinted once that a peer has ended, and nothing can be asked of it: there is no session
// yet.
TEST(SimCluster, AProcessDoesNotWakeAllTheTimeForAPeerThatMayHaveEnded) {
  SimCluster cluster(2, 1, {});
  cluster[1].die();
  cluster[0].matcher(1);
  cluster.run(kMillisecond, [] { return false; });
  cluster.restart(1, 77);
  const std::uint64_t before = cluster[0].turns();
  cluster.run(3 * kSecond, [] { return false; });
  EXPECT_LE(cluster[0].turns() - before, 400u);  // every 3 ms: 1,000
}

// pcapng, as far as SimPcap writes it.
class Trace {
 public:
  struct Packet {
    std::uint64_t time;
    iphdr ip;
    udphdr udp;
    std::vector<std::byte> payload;
    std::string comment;
  };

  explicit Trace(const std::string& file) {
    std::ifstream stream(file, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(stream), {}};
    bytes_.resize(text.size());
    std::memcpy(bytes_.data(), text.data(), text.size());
    for (std::size_t at = 0; at < bytes_.size();) {
      const auto type = get<std::uint32_t>(at), length = get<std::uint32_t>(at + 4);
      if (length % 4 != 0 || length < 12 || at + length > bytes_.size() ||
          get<std::uint32_t>(at + length - 4) != length) {
        ADD_FAILURE() << "a block of " << length << " bytes at " << at;
        return;
      }
      ++blocks[type];
      if (type == 6) packets.push_back(packet(at + 8, at + length - 4));
      at += length;
    }
  }

  std::map<std::uint32_t, int> blocks;  // by type
  std::vector<Packet> packets;

 private:
  template <class T>
  T get(std::size_t at) const {
    T value;
    std::memcpy(&value, bytes_.data() + at, sizeof value);
    return value;
  }

  Packet packet(std::size_t at, std::size_t end) const {
    Packet packet;
    packet.time = std::uint64_t{get<std::uint32_t>(at + 4)} << 32 | get<std::uint32_t>(at + 8);
    const auto size = get<std::uint32_t>(at + 12);
    EXPECT_EQ(get<std::uint32_t>(at + 16), size);
    at += 20;
    packet.ip = get<iphdr>(at);
    packet.udp = get<udphdr>(at + sizeof(iphdr));
    packet.payload.assign(bytes_.begin() + static_cast<std::ptrdiff_t>(at + 28),
                          bytes_.begin() + static_cast<std::ptrdiff_t>(at + size));
    EXPECT_EQ(ntohs(packet.ip.tot_len), size);
    EXPECT_EQ(ntohs(packet.udp.len), size - sizeof(iphdr));
    check_sums(packet, at, size);
    at += (size + 3) / 4 * 4;
    if (at < end) {
      EXPECT_EQ(get<std::uint16_t>(at), 1);  // a comment
      const auto length = get<std::uint16_t>(at + 2);
      packet.comment.assign(reinterpret_cast<const char*>(bytes_.data()) + at + 4, length);
    }
    return packet;
  }

  // The ones' complement sum over what a checksum covers, itself included, is all ones.
  std::uint16_t sum(std::size_t at, std::size_t size, std::uint32_t sum = 0) const {
    for (std::size_t i = 0; i < size; ++i) {
      const auto byte = static_cast<std::uint32_t>(bytes_[at + i]);
      sum += i % 2 == 0 ? byte << 8 : byte;
    }
    while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
    return static_cast<std::uint16_t>(sum);
  }
  void check_sums(const Packet& packet, std::size_t at, std::size_t size) const {
    EXPECT_EQ(sum(at, sizeof(iphdr)), 0xffff);
    const std::uint32_t pseudo = sum(at + 12, 8) + IPPROTO_UDP + ntohs(packet.udp.len);
    EXPECT_EQ(sum(at + sizeof(iphdr), size - sizeof(iphdr), pseudo), 0xffff);
  }

  std::vector<std::byte> bytes_;
};

std::string file_name(const char* name) {
  return (std::filesystem::path(testing::TempDir()) / name).string();
}

TEST(SimPcap, ATraceHasEveryPacketOfItsSeedWithItsAddressesTimeAndFate) {
  const std::string file = file_name("seed.pcapng");
  std::uint64_t seed = 1;
  ScenarioResult result;
  do {
    result = run_scenario(seed++, file);
  } while (result.network.lost == 0 || result.network.corrupted == 0);
  const Trace trace(file);
  EXPECT_EQ(trace.blocks.at(0x0a0d0d0a), 1);
  EXPECT_EQ(trace.blocks.at(1), 1);
  std::map<std::string, std::uint64_t> fates;
  for (const Trace::Packet& packet : trace.packets) {
    const std::uint32_t from = ntohl(packet.ip.saddr), to = ntohl(packet.ip.daddr);
    EXPECT_EQ(from >> 24, 10u);
    EXPECT_EQ(to >> 24, 10u);
    EXPECT_EQ(packet.ip.protocol, IPPROTO_UDP);
    EXPECT_LE(packet.time, static_cast<std::uint64_t>(60 * kSecond));
    if (packet.comment.starts_with("lost")) ++fates["lost"];
    if (packet.comment.starts_with("corrupted")) ++fates["corrupted"];
    if (packet.comment == "in part") ++fates["in part"];
    if (packet.comment == "forged" || packet.comment == "in part") continue;
    wire::Packet parsed;
    const bool sealed = packet.payload.size() > 1 &&
                        (static_cast<std::uint8_t>(packet.payload[1]) & wire::kSealed) != 0;
    EXPECT_EQ(wire::parse(packet.payload, parsed),
              sealed ? wire::Verdict::kSealed : wire::Verdict::kGood);
  }
  EXPECT_EQ(trace.packets.size() - fates["in part"], result.network.sent + result.network.forged);
  EXPECT_EQ(fates["in part"], result.network.refused);
  EXPECT_EQ(fates["lost"], result.network.lost + result.network.burst_lost);
  EXPECT_EQ(fates["corrupted"], result.network.corrupted);
  std::filesystem::remove(file);
}

TEST(SimPcap, AFileThatCannotBeWrittenIsNamed) {
  try {
    SimPcap pcap("/nowhere/at/all.pcapng");
    FAIL() << "it was written";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("/nowhere/at/all.pcapng"), std::string::npos);
  }
}

}  // namespace
}  // namespace taco::harp
