// Two paths of one session, without the session: what each keeps to itself, and the credit that
// they share.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <set>
#include <vector>

#include "harp/session/path.h"

namespace taco::harp {
namespace {

// Takes everything, and keeps the headers.
class TapeNic final : public Nic {
 public:
  struct Taken {
    wire::Header header;
    std::uint32_t local;
  };
  const NicCapabilities& capabilities() const override { return capabilities_; }
  std::size_t send_st(std::span<const TxPacket> packets) override {
    for (const TxPacket& packet : packets) {
      std::memcpy(&taken.emplace_back().header, packet.slices[0].data, sizeof(wire::Header));
      taken.back().local = packet.local_path;
    }
    return packets.size();
  }
  std::span<const NicAddress> addresses() const override { return addresses_; }
  std::span<const NicDescriptor> descriptors() const override { return {}; }
  bool is_full_st(std::uint32_t) const override { return false; }
  std::size_t receive_st(std::span<RxPacket>) override { return 0; }
  void close_st() override {}

  std::vector<Taken> taken;

 private:
  NicCapabilities capabilities_;
  const std::array<NicAddress, 2> addresses_{{{{}, 1472}, {{}, 1472}}};
};

class Host final : public SessionHost {
 public:
  Host(Nic& nic, BytePool& buffers) : SessionHost(nic, buffers) { set_now(kSecond); }
  void arm(Timer&, Time) override {}
  void disarm(Timer&) override {}
  std::uint64_t random() override { return 7; }
  std::vector<std::uint32_t> ways_to(const Endpoint&) override { return {}; }
  std::vector<Endpoint> published_by(std::uint64_t) override { return {}; }
};

struct Fates final : SentPackets::Listener {
  std::set<std::uint64_t> lost;
  void on_run_acked(const SentRun&, std::uint64_t) override {}
  void on_run_lost(const SentRun& run, std::uint64_t) override { lost.insert(run.first); }
};

constexpr wire::PathId kSecondPath{1};

struct TwoPaths : ::testing::Test {
  TwoPaths() {
    credit.on_granted(1000, 1);
    first.open(pair(0), {kConnection, 1200}, 1200);
    second.open(pair(1), {kConnection, 1200}, 1200);
  }
  static AddressPair pair(std::uint32_t local) {
    AddressPair pair;
    pair.local = local;
    return pair;
  }
  void ping(Path& path) {
    std::array<std::byte, wire::kPingBytes> frames;
    wire::Writer writer(frames);
    writer.ping();
    ASSERT_TRUE(path.send_frames(writer.bytes(), /*counted=*/true));
    path.commit({});
  }
  static wire::Ack ack_of(wire::PathId path, std::uint64_t from, std::uint64_t to) {
    wire::Ack ack;
    ack.path = path;
    ack.count = 1;
    ack.ranges[0] = {from, to};
    return ack;
  }
  void wait(Duration time) { host.set_now(host.now() + time); }

  static constexpr std::uint64_t kConnection = 99;
  TapeNic nic;
  BytePool buffers;
  Host host{nic, buffers};
  SendCredit credit;
  Path first{wire::kFirstPath, pair(0), true, kSwift, host, credit};
  Path second{kSecondPath, pair(1), true, kSwift, host, credit};
  Fates fates;
};

TEST_F(TwoPaths, EachNumbersItsPacketsAndSendsThemByItsOwnPair) {
  ping(first);
  ping(second);
  ping(second);
  ASSERT_EQ(nic.taken.size(), 3u);
  const auto expect = [&](std::size_t i, wire::PathId path, std::uint32_t number) {
    const TapeNic::Taken& taken = nic.taken[i];
    EXPECT_EQ(taken.header.path, path) << i;
    EXPECT_EQ(taken.header.number, number) << i;
    EXPECT_EQ(taken.header.connection, kConnection) << i;
    EXPECT_EQ(taken.local, path == kSecondPath ? 1u : 0u) << i;
  };
  expect(0, wire::kFirstPath, 1);
  expect(1, kSecondPath, 1);
  expect(2, kSecondPath, 2);
  EXPECT_TRUE(second.sent_lately(nic.taken[2].header));
  EXPECT_FALSE(first.sent_lately(nic.taken[2].header));
}

TEST_F(TwoPaths, TheyUseUpOneCredit) {
  credit.on_granted(3, 2);
  ping(first);
  ping(second);
  EXPECT_TRUE(first.within_credit() && second.within_credit());
  ping(second);
  EXPECT_FALSE(first.within_credit() || second.within_credit());
}

TEST_F(TwoPaths, AnAcknowledgementIsOfOnePathsNumbers) {
  ping(first);
  ping(second);
  ping(second);
  EXPECT_EQ(first.on_ack(ack_of(wire::kFirstPath, 2, 2), {}, fates), Path::News::kMalformed);
  EXPECT_EQ(first.on_ack(ack_of(wire::kFirstPath, 1, 2), {}, fates), Path::News::kSomething);
  EXPECT_EQ(second.on_ack(ack_of(kSecondPath, 1, 2), {}, fates), Path::News::kSomething);
  EXPECT_EQ(second.on_ack(ack_of(kSecondPath, 1, 2), {}, fates), Path::News::kNothing);
}

TEST_F(TwoPaths, OneIsFastAndTheOtherLosesPackets) {
  ping(first);
  for (int i = 0; i < 3; ++i) ping(second);
  wait(100 * kMicrosecond);
  first.on_ack(ack_of(wire::kFirstPath, 1, 1), {}, fates);
  ping(first);
  EXPECT_EQ(first.next_deadline(), host.now() + RoundTrip::kFloor);
  wait(30 * kMillisecond);
  second.on_ack(ack_of(kSecondPath, 3, 3), {}, fates);
  wait(ReorderWindow::kCeiling);
  first.on_timer(fates);
  EXPECT_TRUE(fates.lost.empty());
  second.on_timer(fates);
  EXPECT_EQ(fates.lost, (std::set<std::uint64_t>{1, 2}));
}

TEST_F(TwoPaths, EachAcknowledgesWhatHasComeByIt) {
  std::array<std::byte, 1> bytes;
  const Endpoint source;
  EXPECT_FALSE(second.has_received(1));
  EXPECT_FALSE(first.on_packet(1, 1, {bytes, 0, &source, 0}));
  EXPECT_FALSE(second.has_received(1)) << "numbers belong to a path";
  EXPECT_FALSE(second.on_packet(1, 1, {bytes, 0, &source, 1}));
  EXPECT_FALSE(second.on_packet(2, 1, {bytes, 0, &source, 1}));
  EXPECT_TRUE(second.has_received(2));
  second.on_copy();
  EXPECT_TRUE(second.ack().due());
  EXPECT_FALSE(first.ack().due());
  wire::Ack ack;
  second.fill(ack);
  EXPECT_EQ(ack.path, kSecondPath);
  EXPECT_EQ(ack.ranges[0].last, 2u);
  first.fill(ack);
  EXPECT_EQ(ack.path, wire::kFirstPath);
  EXPECT_EQ(ack.ranges[0].last, 1u);
}

}  // namespace
}  // namespace taco::harp
