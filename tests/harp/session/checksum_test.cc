// The bytes that are checked of packets that are not sealed: every byte, or all but the payload of
// segments.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "support/sim_cluster.h"
#include "support/sim_transfer.h"
#include "support/sim_wire.h"

namespace taco::harp {
namespace {

using wire::Checksum;

void set(SimCluster& cluster, Checksum checksum, Security level = Security::kNone) {
  for (std::uint32_t i = 0; i < cluster.size(); ++i) {
    cluster[i].set_checksum(checksum);
    cluster[i].set_security(level);
  }
}

void carry(SimCluster& cluster, Transfer& transfer) {
  cluster[1].matcher(0).recv(transfer.recv);
  cluster[0].matcher(1).send(transfer.send);
  ASSERT_TRUE(cluster.run(cluster.now() + 60 * kSecond, [&] { return transfer.done(); }));
}

bool is_segment(const Datagram& packet) {
  return is_type(packet, wire::Type::kData) || is_type(packet, wire::Type::kFragment);
}

std::size_t differing(const Transfer& transfer) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < transfer.target.size(); ++i) {
    count += transfer.target[i] != transfer.expected[i];
  }
  return count;
}

TEST(Checksums, MessagesOfEverySizeArriveUnderEitherAtEachLevel) {
  for (const Security level : {Security::kNone, Security::kAuth, Security::kEncrypt}) {
    for (const Checksum checksum : {Checksum::kCrc32c, Checksum::kKernel}) {
      SCOPED_TRACE(std::string(name_of(level)) + ", " + name_of(checksum));
      SimCluster cluster(2, 1, {});
      set(cluster, checksum, level);
      SimObserver observer(cluster);
      std::uint64_t tag = 0;
      for (const std::size_t bytes : {0ul, 100ul, 1144ul, 1441ul, 200'000ul}) {
        Transfer transfer(++tag, bytes);
        transfer.reduce();
        carry(cluster, transfer);
        transfer.check();
      }
      std::size_t trusted = 0;
      for (const SimObserver::Seen& one : observer.seen) {
        const bool marked = (header_of(one.bytes).flags & wire::kTrusted) != 0;
        EXPECT_EQ(marked, checksum == Checksum::kKernel && level != Security::kEncrypt &&
                              is_segment(one.bytes));
        trusted += marked;
      }
      EXPECT_EQ(trusted > 0, checksum == Checksum::kKernel && level != Security::kEncrypt);
      for (const std::uint32_t node : {0u, 1u}) {
        EXPECT_EQ(cluster[node].counters().checksum_failures, 0u);
        EXPECT_EQ(cluster[node].counters().malformed, 0u);
        EXPECT_EQ(cluster[node].counters().unsealed, 0u);
      }
    }
  }
}

// A message that fits one segment, whose packet node 1 has not had.
struct Caught {
  explicit Caught(Checksum checksum) {
    set(cluster, checksum);
    Transfer before(1, 10'000);
    carry(cluster, before);
    before.check();
    transfer.reduce();
    SimObserver observer(cluster);
    cluster[1].matcher(0).recv(transfer.recv);
    cluster.run(cluster.now() + 10 * kMillisecond, [] { return false; });  // the want is there
    cluster.network().kill_link(0, 1, cluster.now() + 100 * kMillisecond);
    observer.seen.clear();
    cluster[0].matcher(1).send(transfer.send);
    cluster.run(cluster.now() + 50 * kMillisecond, [] { return false; });
    const auto packets = observer.seen_between(0, 1, wire::Type::kData);
    EXPECT_FALSE(packets.empty());
    if (!packets.empty()) packet = packets.front();
  }
  void arrive(const Datagram& bytes) { SimObserver(cluster).send(0, 1, bytes); }

  SimCluster cluster{2, 1, {}};
  Transfer transfer{2, 1'400};
  Datagram packet;
};

TEST(Checksums, ADamagedHeaderHarmsNobodyUnderEither) {
  for (const Checksum checksum : {Checksum::kCrc32c, Checksum::kKernel}) {
    SCOPED_TRACE(name_of(checksum));
    Caught caught(checksum);
    const ProtocolCounters& counters = caught.cluster[1].counters();
    const std::uint64_t received = counters.packets_received;
    for (std::size_t bit = 0; bit < 8 * sizeof(wire::Header); ++bit) {
      Datagram touched = caught.packet;
      touched[bit / 8] ^= std::byte{1} << (bit % 8);
      caught.arrive(touched);
    }
    for (std::size_t bytes = 0; bytes <= caught.packet.size() + 64; bytes += wire::kGranule) {
      Datagram cut = caught.packet;
      cut.resize(bytes);
      if (bytes != caught.packet.size()) caught.arrive(cut);
    }
    EXPECT_EQ(counters.packets_received, received) << "one acted";
    EXPECT_GT(counters.checksum_failures, 100u);
    EXPECT_EQ(caught.transfer.received.calls, 0);
    caught.arrive(caught.packet);
    EXPECT_EQ(counters.packets_received, received + 1);
    EXPECT_TRUE(caught.cluster.run(caught.cluster.now() + 5 * kSecond,
                                   [&] { return caught.transfer.done(); }));
    caught.transfer.check();
  }
}

TEST(Checksums, DamageToAPayloadIsFoundUnlessTheKernelIsTrustedWithIt) {
  for (const Checksum checksum : {Checksum::kCrc32c, Checksum::kKernel}) {
    SCOPED_TRACE(name_of(checksum));
    Caught caught(checksum);
    Datagram touched = caught.packet;
    touched[sizeof(wire::Header) + 700] ^= std::byte{8};
    caught.arrive(touched);
    EXPECT_TRUE(caught.cluster.run(caught.cluster.now() + 5 * kSecond,
                                   [&] { return caught.transfer.done(); }));
    EXPECT_TRUE(caught.transfer.received.status.ok());
    const bool trusts = checksum == Checksum::kKernel;
    EXPECT_EQ(differing(caught.transfer), trusts ? 1u : 0u);
    EXPECT_EQ(caught.transfer.target[700] == caught.transfer.expected[700], !trusts);
    EXPECT_EQ(caught.cluster[1].counters().checksum_failures, trusts ? 0u : 1u);
  }
}

// Bits flip in packets of every kind. Whatever happens to payloads, each message ends once, with
// all of its segments, and small messages and records are as they were sent.
TEST(Checksums, UnderRandomDamageATrustedPayloadIsAllThatSuffers) {
  std::uint64_t damaged = 0, refused = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    for (const Checksum checksum : {Checksum::kCrc32c, Checksum::kKernel}) {
      SCOPED_TRACE(std::string(name_of(checksum)) + ", seed " + std::to_string(seed));
      SimFaults faults;
      faults.corruption = 0.03;
      faults.loss = faults.duplication = 0.02;
      faults.reordering = 0.1;
      SimCluster cluster(2, seed, faults);
      set(cluster, checksum, seed % 2 == 0 ? Security::kAuth : Security::kNone);
      for (std::uint64_t tag = 1; tag <= 10; ++tag) {
        Transfer small(2 * tag, 1'000), large(2 * tag + 1, 150'000);
        carry(cluster, small);
        small.check();
        carry(cluster, large);
        EXPECT_EQ(large.received.calls, 1);
        EXPECT_TRUE(large.received.status.ok()) << large.received.status.message();
        EXPECT_EQ(large.recv.bytes, 150'000u);
        // One bit a packet.
        EXPECT_LE(differing(large), cluster.network().counts().corrupted);
        if (checksum == Checksum::kCrc32c) large.check();
        damaged += differing(large);
      }
      if (checksum == Checksum::kKernel) refused += cluster[1].counters().checksum_failures;
    }
  }
  EXPECT_GT(damaged, 100u) << "the payloads of packets were damaged and arrived";
  EXPECT_GT(refused, 10u) << "headers were damaged, and did not";
}

TEST(Checksums, FragmentsAreCheckedInTheSameWay) {
  for (const Checksum checksum : {Checksum::kCrc32c, Checksum::kKernel}) {
    SCOPED_TRACE(name_of(checksum));
    SimCluster cluster(2, 3, {});
    set(cluster, checksum);
    SimObserver observer(cluster);
    Transfer transfer(1, 600'000);
    transfer.reduce();
    cluster[1].matcher(0).recv(transfer.recv);
    cluster[0].matcher(1).send(transfer.send);
    ASSERT_TRUE(cluster.run(
        20 * kSecond, [&] { return !observer.seen_between(0, 1, wire::Type::kData).empty(); }));
    cluster.network().set_mtu(0, 1, 1'250);
    ASSERT_TRUE(cluster.run(20 * kSecond, [&] { return transfer.done(); }));
    transfer.check();
    const auto pieces = observer.seen_between(0, 1, wire::Type::kFragment);
    EXPECT_FALSE(pieces.empty());
    for (const Datagram& piece : pieces) {
      EXPECT_EQ((header_of(piece).flags & wire::kTrusted) != 0, checksum == Checksum::kKernel);
    }
    EXPECT_EQ(cluster[1].counters().checksum_failures, 0u);
  }
}

TEST(Checksums, ThatDifferAreAnErrorOnBothSidesThatNamesBoth) {
  SimCluster cluster(2, 1, {});
  cluster[0].set_checksum(Checksum::kCrc32c);
  cluster[1].set_checksum(Checksum::kKernel);
  Transfer there(1, 100), back(2, 100'000);
  cluster[1].recv(0, there.recv);
  cluster[0].recv(1, back.recv);
  ASSERT_TRUE(
      cluster.run(kSecond, [&] { return there.received.calls > 0 && back.received.calls > 0; }));
  EXPECT_EQ(there.received.status.code(), Code::kPeerLost);
  EXPECT_EQ(back.received.status.code(), Code::kPeerLost);
  const std::string ours = back.received.status.message(), theirs = there.received.status.message();
  EXPECT_NE(ours.find("its TACO_HARP_CHECKSUM is kernel, this process's is crc32c"),
            std::string::npos)
      << ours;
  EXPECT_NE(theirs.find("its TACO_HARP_CHECKSUM is crc32c, this process's is kernel"),
            std::string::npos)
      << theirs;
}

// So that nobody can choose for the receiver what it checks.
TEST(Checksums, APacketThatIsCheckedOtherwiseThanAgreedIsRefused) {
  for (const Checksum checksum : {Checksum::kCrc32c, Checksum::kKernel}) {
    SCOPED_TRACE(name_of(checksum));
    Caught caught(checksum);
    wire::Header header = header_of(caught.packet);
    header.flags ^= wire::kTrusted;
    const std::span<const std::byte> body =
        std::span<const std::byte>(caught.packet).subspan(sizeof header);
    const std::uint64_t received = caught.cluster[1].counters().packets_received;
    caught.arrive(datagram_of(header, body));
    EXPECT_EQ(caught.cluster[1].counters().unsealed, 1u);
    EXPECT_EQ(caught.cluster[1].counters().packets_received, received);
    EXPECT_EQ(caught.transfer.received.calls, 0);
  }
}

}  // namespace
}  // namespace taco::harp
