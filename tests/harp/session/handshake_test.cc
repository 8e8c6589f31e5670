// Hellos: what begins a session, what ends one, and what an observer of the network cannot do.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "harp/session/proof.h"
#include "support/sim_cluster.h"
#include "support/sim_transfer.h"
#include "support/sim_wire.h"

namespace taco::harp {
namespace {

constexpr std::uint32_t kElsewhere = 7;  // an address of the simulated hosts that nobody uses

PairKey key_of(SimCluster& cluster) {
  return pair_key({cluster[0].incarnation(), cluster[0].secret()},
                  {cluster[1].incarnation(), cluster[1].secret()});
}

// From node 0 to node 1, proved.
wire::Hello hello_of(SimCluster& cluster) {
  wire::Hello hello{};
  hello.sender = cluster[0].incarnation();
  hello.target = cluster[1].incarnation();
  hello.sender_connection = 99;
  hello.sender_nonce.fill(std::byte{5});
  hello.max_datagram = 1472;
  hello.credit_limit = 8;
  prove(hello, key_of(cluster));
  return hello;
}

Datagram packet_of(const wire::Hello& hello) {
  return datagram_of(wire::frames_header(wire::Type::kHello, {}, sizeof hello),
                     std::as_bytes(std::span(&hello, 1)));
}

wire::Hello read(const Datagram& packet) {
  wire::Hello hello;
  std::memcpy(&hello, packet.data() + sizeof(wire::Header), sizeof hello);
  return hello;
}

// Both ways, so that each side has heard the other.
void exchange(SimCluster& cluster, std::uint64_t tag) {
  Transfer there(tag, 30'000), back(tag + 1, 30'000);
  cluster[1].matcher(0).recv(there.recv);
  cluster[0].matcher(1).send(there.send);
  cluster[0].matcher(1).recv(back.recv);
  cluster[1].matcher(0).send(back.send);
  ASSERT_TRUE(
      cluster.run(cluster.now() + 5 * kSecond, [&] { return there.done() && back.done(); }));
  there.check();
  back.check();
}

// The node has forgotten its peer, which has not forgotten it, and says hello anew.
void begin_anew(SimCluster& cluster, std::uint32_t node, std::uint32_t peer) {
  cluster[node].drop(peer);
  cluster[node].matcher(peer);
}

TEST(Proof, IsTheSameForBothSidesAndDependsOnEveryByte) {
  Identity a{7, {}}, b{8, {}};
  a.secret.fill(std::byte{1});
  b.secret.fill(std::byte{2});
  const PairKey key = pair_key(a, b);
  EXPECT_EQ(key, pair_key(b, a));
  std::vector<PairKey> others;
  for (Identity* one : {&a, &b}) {
    one->incarnation ^= 16;
    others.push_back(pair_key(a, b));
    one->incarnation ^= 16;
    one->secret[15] ^= std::byte{1};
    others.push_back(pair_key(a, b));
    one->secret[15] ^= std::byte{1};
  }
  for (const PairKey& other : others) EXPECT_NE(other, key);

  wire::Hello hello{};
  prove(hello, key);
  EXPECT_TRUE(proves(hello, key));
  for (const PairKey& other : others) EXPECT_FALSE(proves(hello, other));
  std::array<std::byte, sizeof hello> bytes;
  for (std::size_t bit = 0; bit < 8 * sizeof hello; ++bit) {
    std::memcpy(bytes.data(), &hello, sizeof hello);
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_FALSE(proves(std::bit_cast<wire::Hello>(bytes), key)) << "bit " << bit;
  }
}

// RFC 4231 is about HMAC itself; this pins what is fed to it, which peers must agree on.
TEST(Proof, StaysWhatItIs) {
  Identity a{0x0102030405060708, {}}, b{0x1112131415161718, {}};
  a.secret.fill(std::byte{0xaa});
  b.secret.fill(std::byte{0xbb});
  wire::Hello hello{};
  hello.sender = a.incarnation;
  prove(hello, pair_key(a, b));
  std::string text;
  for (const std::byte byte : hello.proof) {
    static constexpr char kDigits[] = "0123456789abcdef";
    text += kDigits[static_cast<int>(byte) >> 4];
    text += kDigits[static_cast<int>(byte) & 15];
  }
  EXPECT_EQ(text, "481fd04d8c2280d8111a4b44dee59099");
}

// Node 0 is established, node 1 is not: nothing of node 0's has come since its first hello, for so
// long that node 1 asks only once a second. From `kBack` on everything arrives.
class HalfEstablished : public testing::Test {
 protected:
  static constexpr Time kBack = 1300 * kMillisecond;

  void SetUp() override {
    SimObserver observer(cluster);
    cluster[0].matcher(1).send(transfer.send);
    ASSERT_TRUE(cluster.run(kSecond, [&] { return !observer.seen.empty(); }));
    cluster.network().kill_link(0, 1, kBack);
    ASSERT_FALSE(cluster.run(kBack, [] { return false; }));
    ASSERT_TRUE(cluster[0].session(1)->established());
    ASSERT_FALSE(cluster[1].session(0)->established());
  }
  SimCluster cluster{2, 1, {}};
  Transfer transfer{1, 100};
};

TEST_F(HalfEstablished, WhoHearsPacketsOfAPeerAsksAtOnceForItsHello) {
  // Node 0 probes every half second by now.
  EXPECT_TRUE(cluster.run(kBack + 700 * kMillisecond, [&] {
    return cluster[1].session(0)->established() && !cluster[0].session(1)->busy();
  }));
}

TEST_F(HalfEstablished, WhoLeavesAsksUntilItCanSayGoodbye) {
  cluster.network().kill_link(0, 1, kBack + 200 * kMillisecond);
  cluster[1].leave();
  EXPECT_TRUE(cluster.run(kBack + 400 * kMillisecond, [&] { return !cluster[1].busy(); }));
}

TEST(Handshake, AHelloThatProvesNothingCostsNothing) {
  SimCluster cluster(2, 1, {});
  SimObserver observer(cluster);
  wire::Hello hello = hello_of(cluster);
  hello.proof[9] ^= std::byte{1};
  observer.send(0, 1, packet_of(hello));
  hello = hello_of(cluster);
  hello.credit_limit = 1'000'000;
  observer.send(0, 1, packet_of(hello));
  EXPECT_EQ(cluster[1].session(0), nullptr);
  EXPECT_EQ(cluster[1].counters().unproven, 2u);
  hello = hello_of(cluster);
  hello.target ^= 1;
  prove(hello, key_of(cluster));
  observer.send(0, 1, packet_of(hello));
  EXPECT_EQ(cluster[1].session(0), nullptr) << "meant for another process";
  observer.send(0, 1, packet_of(hello_of(cluster)));
  ASSERT_NE(cluster[1].session(0), nullptr);
  EXPECT_FALSE(cluster[1].session(0)->established()) << "it may be a recording";
}

TEST(Handshake, ThatNobodyOwnsUpToEndsAtThePeersTimeout) {
  SimCluster cluster(2, 1, {});
  SimObserver observer(cluster);
  Transfer transfer(1, 100);
  cluster[1].set_peer_timeout(kSecond);
  cluster[1].matcher(0).recv(transfer.recv);
  cluster.network().kill_link(1, 0, 100 * kSecond);
  // The same proved hello again and again is no sign of life.
  Time next = 0;
  EXPECT_TRUE(cluster.run(
      5 * kSecond, [&] { return transfer.received.calls > 0; },
      [&] {
        if (cluster.now() < next) return;
        next = cluster.now() + 50 * kMillisecond;
        cluster.wake_at(next);
        observer.send(0, 1, packet_of(hello_of(cluster)));
      }));
  EXPECT_EQ(transfer.received.status.code(), Code::kPeerLost);
}

TEST(Handshake, WhoHasSeenEverythingCanEndNoSession) {
  SimCluster cluster(2, 1, {});
  SimObserver observer(cluster);
  exchange(cluster, 1);
  const auto recorded = observer.seen_between(0, 1, wire::Type::kHello);
  ASSERT_FALSE(recorded.empty());
  for (const Datagram& packet : recorded) {
    wire::Hello forged = read(packet);
    forged.sender_connection ^= 1;
    observer.send(0, 1, packet_of(forged));
    forged = read(packet);
    forged.sender_nonce[0] ^= std::byte{1};
    observer.send(0, 1, packet_of(forged));
  }
  EXPECT_EQ(cluster[1].counters().unproven, 2 * recorded.size());
  EXPECT_FALSE(cluster[1].session(0)->ended());
  exchange(cluster, 11);
}

TEST(Handshake, NoHelloShowsASecret) {
  SimCluster cluster(2, 1, {});
  SimObserver observer(cluster);
  exchange(cluster, 1);
  for (const SimObserver::Seen& seen : observer.seen) {
    for (const std::uint32_t node : {0u, 1u}) {
      const Secret& secret = cluster[node].secret();
      EXPECT_EQ(std::search(seen.bytes.begin(), seen.bytes.end(), secret.begin(), secret.end()),
                seen.bytes.end());
    }
  }
}

TEST(Handshake, RecordedHellosChangeNothing) {
  SimCluster cluster(2, 1, {});
  SimObserver observer(cluster);
  exchange(cluster, 1);
  auto first = observer.seen_between(0, 1, wire::Type::kHello);
  const auto replay = [&](const std::vector<Datagram>& packets) {
    for (const Datagram& packet : packets) {
      observer.send(0, 1, packet);
      observer.send(0, 1, packet, kElsewhere);
    }
  };
  const Endpoint remote = cluster[1].session(0)->remote();
  const std::uint64_t connection = cluster[1].session(0)->peer_connection_id();
  replay(first);
  exchange(cluster, 11);
  EXPECT_EQ(cluster[1].session(0)->remote(), remote);
  EXPECT_EQ(cluster[1].session(0)->peer_connection_id(), connection);

  // Into a later session of the same pair of processes: before it stands, and after.
  cluster[0].drop(1);
  cluster[1].drop(0);
  replay(first);
  ASSERT_NE(cluster[1].session(0), nullptr);
  EXPECT_FALSE(cluster[1].session(0)->established());
  exchange(cluster, 21);
  replay(first);
  exchange(cluster, 31);
  EXPECT_EQ(cluster[1].session(0)->remote(), remote);
  EXPECT_NE(cluster[1].session(0)->peer_connection_id(), connection);
  EXPECT_FALSE(cluster[1].session(0)->ended());
}

TEST(Handshake, APeerThatBeginsAnewIsNoticed) {
  SimCluster cluster(2, 1, {});
  exchange(cluster, 1);
  Transfer transfer(11, 100);
  cluster[1].matcher(0).recv(transfer.recv);
  begin_anew(cluster, 0, 1);
  ASSERT_TRUE(cluster.run(cluster.now() + kSecond, [&] { return transfer.received.calls > 0; }));
  EXPECT_EQ(transfer.received.status.code(), Code::kPeerLost);
  EXPECT_NE(transfer.received.status.message().find("anew"), std::string::npos);
}

// A process of a later version may have several engines, which say hello to each other. Sessions of
// the only one here are none of theirs.
TEST(Handshake, AHelloOfOrToAnotherEngineEndsNothing) {
  for (const bool to_another : {false, true}) {
    SimCluster cluster(2, 1, {});
    SimObserver observer(cluster);
    exchange(cluster, 1);
    const std::uint64_t before = cluster[1].session(0)->connection_id();
    const wire::Hello theirs = read(observer.seen_between(1, 0, wire::Type::kHello).front());
    observer.seen.clear();
    wire::Hello hello = hello_of(cluster);
    hello.sender_connection = wire::connection_id(1, 99);
    hello.sender_engine = 1;
    hello.target_engine = to_another ? 1 : 0;
    hello.target_nonce = theirs.sender_nonce;
    prove(hello, key_of(cluster));
    observer.send(0, 1, packet_of(hello));
    cluster.run(cluster.now() + 100 * kMillisecond, [] { return false; });
    EXPECT_TRUE(observer.seen_between(1, 0, wire::Type::kHello).empty()) << "it was answered";
    ASSERT_NE(cluster[1].session(0), nullptr);
    EXPECT_EQ(cluster[1].session(0)->connection_id(), before);
    exchange(cluster, 11);
  }
}

// Both are established, each with the session that the other has now.
bool are_one_pair(SimCluster& cluster) {
  const Session *a = cluster[0].session(1), *b = cluster[1].session(0);
  return a != nullptr && b != nullptr && a->established() && b->established() &&
         a->peer_connection_id() == b->connection_id() &&
         b->peer_connection_id() == a->connection_id();
}

// The other side still holds the session that this one has forgotten, and has nothing under way:
// nobody is told of anything, and what is sent first arrives.
TEST(Handshake, APeerThatHasForgottenThisSideIsMetAnew) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SimFaults faults;
    if (seed % 2 == 0) {
      faults.loss = 0.2;
      faults.duplication = 0.3;
      faults.reordering = 0.3;
    }
    SimCluster cluster(2, seed, faults);
    exchange(cluster, 1);
    cluster.run(cluster.now() + kSecond, [] { return false; });
    for (std::uint64_t round = 1; round <= 3; ++round) {
      const std::uint32_t forgetful = (seed + round) % 2;
      const std::uint64_t before = cluster[1 - forgetful].session(forgetful)->connection_id();
      begin_anew(cluster, forgetful, 1 - forgetful);
      ASSERT_TRUE(cluster.run(cluster.now() + 5 * kSecond, [&] { return are_one_pair(cluster); }))
          << "seed " << seed;
      EXPECT_NE(cluster[1 - forgetful].session(forgetful)->connection_id(), before);
      exchange(cluster, 10 * round);
      cluster.run(cluster.now() + kSecond, [] { return false; });
      ASSERT_TRUE(are_one_pair(cluster)) << "seed " << seed;
    }
    if (testing::Test::HasFailure()) return;
  }
}

// An owner of something under way is told, but not before the other has proved that it is no
// recording which speaks; and the new session comes to stand with no dead one.
TEST(Handshake, ANewSessionIsNeverBoundToOneThatIsAboutToEnd) {
  SimCluster cluster(2, 1, {});
  exchange(cluster, 1);
  Transfer doomed(11, 100);
  cluster[1].matcher(0).recv(doomed.recv);
  begin_anew(cluster, 0, 1);
  bool bound = false;
  cluster.run(
      cluster.now() + 2 * kSecond, [] { return false; },
      [&] { bound |= cluster[0].session(1)->established(); });
  EXPECT_EQ(doomed.received.status.code(), Code::kPeerLost);
  EXPECT_FALSE(bound);
  // Once what was lost is forgotten there too, they connect.
  cluster[1].drop(0);
  exchange(cluster, 21);
  EXPECT_TRUE(are_one_pair(cluster));
}

TEST(Handshake, RecordedChallengesEndNoSession) {
  SimCluster cluster(2, 1, {});
  SimObserver observer(cluster);
  exchange(cluster, 1);
  begin_anew(cluster, 0, 1);
  ASSERT_TRUE(cluster.run(cluster.now() + kSecond, [&] { return are_one_pair(cluster); }));
  exchange(cluster, 11);
  const std::uint64_t connection = cluster[0].session(1)->connection_id();
  // Everything that was ever said, to both, also from elsewhere.
  for (const SimObserver::Seen& one : std::vector<SimObserver::Seen>(observer.seen)) {
    if (!is_type(one.bytes, wire::Type::kHello)) continue;
    observer.send(one.from, one.to, one.bytes);
    observer.send(one.from, one.to, one.bytes, kElsewhere);
  }
  exchange(cluster, 21);
  EXPECT_TRUE(are_one_pair(cluster));
  EXPECT_EQ(cluster[0].session(1)->connection_id(), connection);
}

// Somebody repeats the hellos of a session that has ended, so often that in every turn of the
// receiver's some come after whatever the peer says.
TEST(Handshake, StandsSoonAmongOldHellos) {
  constexpr Duration kTurn = kMillisecond, kBetweenOld = kTurn / 8;
  Duration longest = 0;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    SimCluster cluster(2, seed, {});
    SimObserver observer(cluster);
    exchange(cluster, 1);
    const std::vector<Datagram> hellos = observer.seen_between(0, 1, wire::Type::kHello);
    cluster[0].drop(1);
    cluster[1].drop(0);
    Transfer transfer(11, 100);
    cluster[1].matcher(0).recv(transfer.recv);
    cluster[0].matcher(1).send(transfer.send);
    const Time begin = cluster.now();
    Time turn = begin + kTurn * static_cast<Duration>(seed) / 50, old = begin;
    std::size_t sent = 0;
    ASSERT_TRUE(cluster.run(
        begin + 30 * kSecond, [&] { return transfer.done(); },
        [&] {
          for (; old <= cluster.now(); old += kBetweenOld) {
            cluster.network().forge({0, kElsewhere}, {1}, hellos[sent++ % hellos.size()]);
          }
          for (; turn <= cluster.now(); turn += kTurn)
            cluster[1].stall_until(turn + kTurn * 9 / 10);
          cluster.wake_at(std::min(old, turn));
        }))
        << "seed " << seed;
    longest = std::max(longest, cluster.now() - begin);
  }
  std::printf("the longest took %.1f ms\n", static_cast<double>(longest) / kMillisecond);
  EXPECT_LT(longest, kSecond);
}

TEST(Handshake, AReplayedHelloIsNoSignOfLifeAndSaysNothingOfThePath) {
  SimFaults faults;
  faults.max_datagram = 8972;
  faults.receive_buffer = 4 << 20;
  SimCluster cluster(2, 1, faults);
  SimObserver observer(cluster);
  cluster[1].set_peer_timeout(kSecond);
  exchange(cluster, 1);
  Session& session = *cluster[1].session(0);
  ASSERT_EQ(session.path_size(), 8972u);
  // The path narrows, and the sender finds that out.
  cluster.network().set_mtu(0, 1, 1472);
  cluster.network().set_mtu(1, 0, 1472);
  Transfer narrow(11, 1 << 20);
  cluster[0].matcher(1).recv(narrow.recv);
  cluster[1].matcher(0).send(narrow.send);
  ASSERT_TRUE(cluster.run(cluster.now() + 5 * kSecond, [&] { return narrow.done(); }));
  ASSERT_EQ(session.path_size(), 1472u);
  const std::vector<Datagram> hellos = observer.seen_between(0, 1, wire::Type::kHello);
  const auto replay = [&] {
    for (const Datagram& hello : hellos) observer.send(0, 1, hello);
  };
  replay();
  EXPECT_EQ(session.path_size(), 1472u);
  // Nor does it keep a silent peer alive.
  cluster[0].stall_until(kNever);
  Transfer missed(12, 100);
  cluster[1].matcher(0).recv(missed.recv);
  const Time heard = session.last_heard();
  EXPECT_TRUE(cluster.run(
      cluster.now() + 5 * kSecond, [&] { return missed.received.calls > 0; },
      [&] {
        replay();
        cluster.wake_at(cluster.now() + 50 * kMillisecond);
      }));
  EXPECT_EQ(missed.received.status.code(), Code::kPeerLost);
  EXPECT_LT(session.last_heard() - heard, 100 * kMillisecond);
}

TEST(Handshake, SurvivesTheLossOfAnyHello) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SimFaults faults;
    faults.loss = 0.5;
    faults.duplication = 0.3;
    faults.reordering = 0.3;
    SimCluster cluster(2, seed, faults);
    cluster[0].matcher(1);
    if (seed % 2 == 0) cluster[1].matcher(0);
    ASSERT_TRUE(cluster.run(20 * kSecond,
                            [&] {
                              return cluster[0].session(1)->established() &&
                                     cluster[1].session(0) != nullptr &&
                                     cluster[1].session(0)->established();
                            }))
        << "seed " << seed;
  }
}

TEST(Handshake, EachSideKnowsTheOtherAfterOneRoundTripAndAHalf) {
  SimFaults faults;
  faults.latency = kMillisecond;
  SimCluster cluster(2, 1, faults);
  cluster[0].matcher(1);
  const auto both = [&] {
    return cluster[1].session(0) != nullptr && cluster[0].session(1)->established() &&
           cluster[1].session(0)->established();
  };
  ASSERT_TRUE(cluster.run(kSecond, both));
  EXPECT_LT(cluster.now(), 4 * kMillisecond);
  const std::uint64_t sent =
      cluster[0].counters().packets_sent + cluster[1].counters().packets_sent;
  EXPECT_EQ(sent, 3u);
}

}  // namespace
}  // namespace taco::harp
