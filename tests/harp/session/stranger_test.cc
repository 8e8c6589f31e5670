// Somebody who is no peer: what he costs, what he gets, and what he cannot do.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "harp/session/stray_packets.h"
#include "support/sim_cluster.h"
#include "support/sim_random.h"
#include "support/sim_transfer.h"
#include "support/sim_wire.h"

namespace taco::harp {
namespace {

constexpr std::uint32_t kElsewhere = 7;  // addresses of both nodes that nobody uses

void deliver(SimCluster& cluster, std::uint32_t from, std::uint32_t to, std::uint64_t tag,
             std::size_t bytes = 100'000) {
  Transfer transfer(tag, bytes);
  transfer.reduce();
  cluster[to].matcher(from).recv(transfer.recv);
  cluster[from].matcher(to).send(transfer.send);
  ASSERT_TRUE(cluster.run(cluster.now() + 20 * kSecond, [&] { return transfer.done(); }));
  transfer.check();
}

class Stranger : public testing::TestWithParam<Security> {
 protected:
  Stranger() {
    for (const std::uint32_t node : {0u, 1u}) cluster[node].set_security(GetParam());
  }
  // Bytes that have gone to where he sends from.
  std::size_t gained() const {
    std::size_t bytes = 0;
    for (const auto& one : observer.seen) {
      if (one.to == 0 && one.address == kElsewhere) bytes += one.bytes.size();
    }
    return bytes;
  }
  // Sends to node 1, which then has its turns.
  void send(Datagram packet) {
    const std::size_t before = gained();
    const Endpoint source = SimNetwork::endpoint(0, kElsewhere);
    cluster[1].inject({packet, 0, &source, kElsewhere});
    cluster.run(cluster.now() + 3 * kSecond, [] { return false; });
    EXPECT_LE(gained() - before, packet.size()) << packet.size() << " bytes";
  }
  SimCluster cluster{2, 1, {}};
  SimObserver observer{cluster};
};
INSTANTIATE_TEST_SUITE_P(Levels, Stranger,
                         testing::Values(Security::kNone, Security::kAuth, Security::kEncrypt),
                         [](const auto& level) { return std::string(name_of(level.param)); });

Datagram frames(std::uint64_t connection, std::size_t bytes, std::uint64_t number = 1) {
  Datagram body(bytes);
  wire::Writer writer(body);
  writer.ping();
  if (writer.room() >= wire::kPrefixBytes) writer.padding(writer.room());
  return datagram_of(wire::frames_header(wire::Type::kControl, {connection, number}, bytes), body);
}

TEST_P(Stranger, GetsNoMoreBytesForPacketsThatAreNobodysThanHeSent) {
  for (std::size_t bytes = wire::kPingBytes; bytes < 100; ++bytes) {
    send(frames(0x1234, bytes));
    Datagram sealed = frames(0x1234, bytes);
    wire::Header header = header_of(sealed);
    wire::mark_sealed(header, 0);
    std::memcpy(sealed.data(), &header, sizeof header);
    send(sealed);
  }
  EXPECT_GT(gained(), 0u) << "nothing is answered, so nothing was tested";
}

// He repeats, from elsewhere, what he has seen: all of it, and what has not arrived yet.
TEST_P(Stranger, GetsNoMoreBytesForWhatHeHasCaught) {
  deliver(cluster, 0, 1, 1);
  deliver(cluster, 1, 0, 2);
  deliver(cluster, 0, 1, 3, 60);
  const std::vector<SimObserver::Seen> old = observer.seen;
  for (const auto& one : old) {
    if (one.to == 1) send(one.bytes);
  }
  // Newer than anything that node 1 has had, and short.
  for (std::size_t bytes = 0; bytes < 64; bytes += 4) {
    Transfer transfer(100 + bytes, bytes);
    cluster.network().kill_link(0, 1, cluster.now() + 10 * kMillisecond);
    const std::size_t from = observer.seen.size();
    cluster[0].matcher(1).send(transfer.send);
    cluster.run(cluster.now() + kMillisecond, [] { return false; });
    ASSERT_GT(observer.seen.size(), from);
    send(Datagram(observer.seen[from].bytes));
    cluster[1].matcher(0).recv(transfer.recv);
    ASSERT_TRUE(cluster.run(cluster.now() + 5 * kSecond, [&] { return transfer.done(); }));
  }
  // A question where the path leads, which node 1 answers, and asks in turn: in one packet.
  Path& path = **cluster[0].session(1)->paths().begin();
  cluster.network().kill_link(0, 1, cluster.now() + 10 * kMillisecond);
  const std::size_t from = observer.seen.size(), before = gained();
  path.challenge(path.pair());
  cluster[0].session(1)->probe();
  cluster.run(cluster.now() + kMillisecond, [] { return false; });
  ASSERT_GT(observer.seen.size(), from);
  send(Datagram(observer.seen[from].bytes));
  EXPECT_GT(gained(), before) << "nothing is answered, so nothing was tested";
  EXPECT_EQ(cluster[1].session(0)->remote(), SimNetwork::endpoint(0, 0)) << "redirected";
}

// Whatever he sends, of any form, from his own address or as if from the peer's, to somebody with
// sessions: they go on, and nothing grows.
TEST_P(Stranger, CostsNothingAndEndsNothing) {
  deliver(cluster, 0, 1, 1);
  deliver(cluster, 1, 0, 2);
  cluster.run(cluster.now() + 10 * kSecond, [] { return false; });
  const std::size_t memory = cluster[1].session(0)->memory_bytes();
  const std::uint64_t connection = cluster[1].session(0)->connection_id();
  SimRandom random(5);
  for (int i = 0; i < 100'000; ++i) {
    Datagram packet(32 + random.below(100));
    random.fill(packet);
    packet[0] = static_cast<std::byte>(wire::kVersion << 4 | random.below(8));
    wire::Header header = header_of(packet);
    // He cannot guess a connection; nor can he a tag, should he know one.
    if (GetParam() != Security::kNone && random.chance(0.5)) {
      header.connection = connection;
      header.flags |= wire::kSealed;
      header.crc = 0;
      std::memcpy(packet.data(), &header, sizeof header);
    } else if (random.chance(0.5)) {
      packet = datagram_of(header, std::span(packet).subspan(sizeof header));
    }
    observer.send(0, 1, packet, random.chance(0.5) ? 0 : kElsewhere);
  }
  EXPECT_EQ(cluster[1].session(0)->connection_id(), connection);
  EXPECT_FALSE(cluster[1].session(0)->ended());
  // A key that a forged phase has asked for is made once.
  EXPECT_LE(cluster[1].session(0)->memory_bytes(), memory + 2048);
  EXPECT_LE(cluster[1].counters().resets_sent, 2 * StrayPackets::kResetsPerSecond);
  deliver(cluster, 0, 1, 3);
  deliver(cluster, 1, 0, 4);
  EXPECT_EQ(cluster[1].session(0)->remote(), SimNetwork::endpoint(0, 0));
}

// A peer that does not answer must not be declared dead because of resets that he makes up.
TEST_P(Stranger, EndsNoSessionByResetsOfWhatHeHasNotSeen) {
  deliver(cluster, 0, 1, 1);
  const std::vector<Datagram> sent = observer.seen_between(1, 0, wire::Type::kControl);
  ASSERT_FALSE(sent.empty());
  for (std::uint32_t i = 0; i < 1'000; ++i) {
    wire::Header quoted = header_of(sent.back());
    quoted.connection ^= std::uint64_t{1} << (i % 56);
    observer.send(0, 1,
                  datagram_of(wire::frames_header(wire::Type::kReset, {}, sizeof quoted),
                              std::as_bytes(std::span(&quoted, 1))),
                  i % 2 == 0 ? 0 : kElsewhere);
  }
  EXPECT_EQ(cluster[1].peer(0).suspicion.resets, 0u);
  deliver(cluster, 0, 1, 2);
}

}  // namespace
}  // namespace taco::harp
