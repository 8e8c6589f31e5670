// Sessions that seal what they send: what an observer of the network sees, and what he can do.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "support/sim_cluster.h"
#include "support/sim_transfer.h"
#include "support/sim_wire.h"

namespace taco::harp {
namespace {

constexpr std::array<Security, 3> kLevels{Security::kNone, Security::kAuth, Security::kEncrypt};

void set_level(SimCluster& cluster, Security level, std::uint64_t packets = kPacketsPerKey) {
  for (std::uint32_t i = 0; i < cluster.size(); ++i) cluster[i].set_security(level, packets);
}

void deliver(SimCluster& cluster, std::uint32_t from, std::uint32_t to, std::uint64_t tag,
             std::size_t bytes, Duration limit = 20 * kSecond) {
  Transfer transfer(tag, bytes);
  transfer.reduce();
  cluster[to].matcher(from).recv(transfer.recv);
  cluster[from].matcher(to).send(transfer.send);
  ASSERT_TRUE(cluster.run(cluster.now() + limit, [&] { return transfer.done(); })) << tag;
  transfer.check();
}

void exchange(SimCluster& cluster, std::uint64_t tag) {
  for (const std::size_t bytes : {0ul, 100ul, 1128ul, 1129ul, 1144ul, 1424ul, 1441ul, 200'000ul}) {
    deliver(cluster, 0, 1, ++tag, bytes);
    deliver(cluster, 1, 0, ++tag, bytes);
  }
}

void pass_time(SimCluster& cluster, Duration time) {
  cluster.run(cluster.now() + time, [] { return false; });
}

bool is_sealed(const Datagram& bytes) { return (header_of(bytes).flags & wire::kSealed) != 0; }

std::uint64_t refused(const ProtocolCounters& counters) {
  return counters.checksum_failures + counters.malformed + counters.forged + counters.unsealed +
         counters.early;
}

TEST(SecurityLevels, MessagesOfEverySizeArriveAtEachLevel) {
  for (const Security level : kLevels) {
    SCOPED_TRACE(name_of(level));
    SimCluster cluster(2, 1, {});
    set_level(cluster, level);
    SimObserver observer(cluster);
    exchange(cluster, 1);
    for (const SimObserver::Seen& one : observer.seen) {
      const auto type = static_cast<wire::Type>(header_of(one.bytes).version_and_type & 15);
      EXPECT_EQ(is_sealed(one.bytes), seals(level, type));
      EXPECT_LE(one.bytes.size(), type == wire::Type::kEager ? wire::kMinDatagram : 1472u);
    }
    for (const std::uint32_t node : {0u, 1u}) EXPECT_EQ(refused(cluster[node].counters()), 0u);
  }
}

// Sixteen bytes of the message, somewhere in a packet.
bool shows(const SimObserver& observer, const std::vector<std::byte>& message) {
  return std::any_of(observer.seen.begin(), observer.seen.end(), [&](const auto& one) {
    return std::search(one.bytes.begin(), one.bytes.end(), message.begin(), message.begin() + 16) !=
           one.bytes.end();
  });
}

TEST(SecurityLevels, WhatIsSealedCannotBeRead) {
  for (const Security level : kLevels) {
    SCOPED_TRACE(name_of(level));
    for (const std::size_t bytes : {1'000ul, 100'000ul}) {
      SimCluster cluster(2, 1, {});
      set_level(cluster, level);
      SimObserver observer(cluster);
      Transfer transfer(1, bytes);
      const std::vector<std::byte> message = transfer.source;
      cluster[1].matcher(0).recv(transfer.recv);
      cluster[0].matcher(1).send(transfer.send);
      ASSERT_TRUE(cluster.run(kSecond, [&] { return transfer.done(); }));
      const bool eager = bytes < 1'100;
      EXPECT_EQ(shows(observer, message),
                level == Security::kNone || (level == Security::kAuth && !eager));
    }
  }
}

TEST(SecurityLevels, ThatDifferAreAnErrorOnBothSidesThatNamesBoth) {
  for (const Security theirs : {Security::kNone, Security::kEncrypt}) {
    SimCluster cluster(2, 1, {});
    cluster[0].set_security(Security::kAuth);
    cluster[1].set_security(theirs);
    Transfer there(1, 100), back(2, 100'000);
    cluster[1].recv(0, there.recv);
    cluster[0].recv(1, back.recv);
    ASSERT_TRUE(
        cluster.run(kSecond, [&] { return there.received.calls > 0 && back.received.calls > 0; }));
    for (const auto& [transfer, own, other] : {std::tuple{&there, theirs, Security::kAuth},
                                               std::tuple{&back, Security::kAuth, theirs}}) {
      const std::string text = transfer->received.status.message();
      EXPECT_EQ(transfer->received.status.code(), Code::kPeerLost);
      EXPECT_NE(text.find(std::string("its TACO_HARP_SECURITY is ") + name_of(other) +
                          ", this process's is " + name_of(own)),
                std::string::npos)
          << text;
    }
  }
}

TEST(SecurityLevels, ThatDifferAreToldToWhoCallsFirst) {
  SimCluster cluster(2, 1, {});
  cluster[0].set_security(Security::kAuth);
  Transfer transfer(1, 100);
  cluster[0].recv(1, transfer.recv);  // and node 1 has not called
  ASSERT_TRUE(cluster.run(kSecond, [&] { return transfer.received.calls > 0; }));
  EXPECT_NE(transfer.received.status.message().find("its TACO_HARP_SECURITY is none"),
            std::string::npos)
      << transfer.received.status.message();
}

TEST(JobKeys, ThatDifferKeepProcessesApart) {
  const JobKey one = sha256(std::as_bytes(std::span("one"))),
               other = sha256(std::as_bytes(std::span("other")));
  for (const Security level : kLevels) {
    for (const JobKey& theirs : {one, other, JobKey()}) {
      SimCluster cluster(2, 1, {});
      set_level(cluster, level);
      cluster[0].set_job_key(one);
      cluster[1].set_job_key(theirs);
      cluster[0].set_peer_timeout(kSecond);
      Transfer transfer(1, 100);
      cluster[0].recv(1, transfer.recv);
      cluster[1].send(0, transfer.send);
      ASSERT_TRUE(cluster.run(5 * kSecond, [&] { return transfer.received.calls > 0; }));
      EXPECT_EQ(transfer.received.status.ok(), theirs == one);
      EXPECT_EQ(cluster[0].counters().unproven > 0, theirs != one);
      if (theirs != one) {
        EXPECT_EQ(cluster[0].counters().packets_received, 0u);
      }
    }
  }
}

// Packets that node 0 has sent and node 1 has not had, of every sealed kind: small ones, segments,
// pieces of segments and acknowledgements.
class Intercepted : public testing::TestWithParam<Security> {
 protected:
  Intercepted() {
    set_level(cluster, GetParam());
    deliver(cluster, 0, 1, 1, 50'000);
    deliver(cluster, 1, 0, 2, 50'000);
    pass_time(cluster, 100 * kMillisecond);
  }
  // Node 0 sends a message, of which nothing arrives. What it sends first of that type, or all.
  std::vector<Datagram> intercept(Transfer& transfer) {
    SimObserver observer(cluster);
    cluster[1].matcher(0).recv(transfer.recv);
    pass_time(cluster, 10 * kMillisecond);  // the want is there
    cluster.network().kill_link(0, 1, cluster.now() + 100 * kMillisecond);
    observer.seen.clear();
    cluster[0].matcher(1).send(transfer.send);
    pass_time(cluster, 50 * kMillisecond);
    std::vector<Datagram> caught;
    for (const auto& one : observer.seen) {
      if (one.from == 0 && !is_type(one.bytes, wire::Type::kHello)) caught.push_back(one.bytes);
    }
    EXPECT_FALSE(caught.empty());
    return caught;
  }
  void arrive(const Datagram& packet, std::uint32_t address = 0) {
    SimObserver observer(cluster);
    observer.send(0, 1, packet, address);
  }
  SimCluster cluster{2, 1, {}};
};
INSTANTIATE_TEST_SUITE_P(Levels, Intercepted, testing::Values(Security::kAuth, Security::kEncrypt),
                         [](const auto& level) { return std::string(name_of(level.param)); });

TEST_P(Intercepted, EveryByteOfASealedPacketIsChecked) {
  const ProtocolCounters& counters = cluster[1].counters();
  std::size_t sealed = 0;
  for (const std::size_t bytes : {100ul, 1'500ul}) {
    Transfer transfer(10 + bytes, bytes);
    transfer.reduce();
    for (const Datagram& packet : intercept(transfer)) {
      if (!is_sealed(packet)) continue;
      ++sealed;
      const std::uint64_t received = counters.packets_received;
      for (std::size_t at = 0; at < packet.size(); ++at) {
        Datagram touched = packet;
        touched[at] ^= static_cast<std::byte>(1 + at % 255);
        const std::uint64_t before = refused(counters),
                            strays = counters.resets_sent + counters.other_versions;
        arrive(touched);
        // One whose connection was touched is nobody's.
        EXPECT_TRUE(refused(counters) > before ||
                    counters.resets_sent + counters.other_versions > strays || at >= 8)
            << "byte " << at;
      }
      EXPECT_EQ(counters.packets_received, received) << "one acted";
      EXPECT_EQ(transfer.received.calls, 0);
    }
    ASSERT_TRUE(cluster.run(cluster.now() + 5 * kSecond, [&] { return transfer.done(); }));
    transfer.check();
  }
  EXPECT_GE(sealed, 3u);
  EXPECT_GT(counters.forged, 100u);
}

TEST_P(Intercepted, APacketActsOnceHoweverOftenItComesAndFromWhereEver) {
  Transfer transfer(10, 100);
  transfer.reduce();
  const std::vector<Datagram> caught = intercept(transfer);
  const ProtocolCounters& counters = cluster[1].counters();
  std::uint64_t received = counters.packets_received, copies = counters.duplicates;
  for (const Datagram& packet : caught) arrive(packet);
  EXPECT_EQ(counters.packets_received - received, caught.size());
  EXPECT_EQ(counters.duplicates, copies);
  const Time heard = cluster[1].session(0)->last_heard();
  cluster[1].set_now(cluster.now() + kMillisecond);
  for (int i = 0; i < 10; ++i) {
    for (const Datagram& packet : caught) arrive(packet, i % 3);
  }
  EXPECT_EQ(counters.duplicates - copies, 10 * caught.size());
  EXPECT_EQ(cluster[1].session(0)->last_heard(), heard) << "a copy is no sign of life";
  ASSERT_TRUE(cluster.run(cluster.now() + 5 * kSecond, [&] { return transfer.done(); }));
  transfer.check();
  EXPECT_EQ(cluster[1].session(0)->remote(), SimNetwork::endpoint(0, 0));
}

// Acknowledgements, which have numbers of their own, keep no dead peer alive either.
TEST_P(Intercepted, ReplayedAcknowledgementsAreNoSignOfLife) {
  SimObserver observer(cluster);
  deliver(cluster, 1, 0, 20, 500'000);
  std::vector<Datagram> acks;
  for (const Datagram& packet : observer.seen_between(0, 1, wire::Type::kControl)) {
    if ((header_of(packet).flags & wire::kUncounted) != 0) acks.push_back(packet);
  }
  ASSERT_GE(acks.size(), 3u);
  pass_time(cluster, kSecond);
  const Time heard = cluster[1].session(0)->last_heard();
  for (const Datagram& packet : acks) observer.send(0, 1, packet);
  EXPECT_EQ(cluster[1].session(0)->last_heard(), heard);
}

TEST_P(Intercepted, WhatTheLevelSealsIsRefusedUnsealed) {
  const std::uint64_t connection = cluster[1].session(0)->connection_id();
  std::array<std::byte, wire::kPingBytes> ping;
  wire::Writer(ping).ping();
  const std::uint64_t received = cluster[1].counters().packets_received;
  arrive(
      datagram_of(wire::frames_header(wire::Type::kControl, {connection, 500}, ping.size()), ping));
  const wire::EagerDescriptor eager{1, 99, 7};
  arrive(datagram_of(wire::eager_header({connection, 501}, 0, 0),
                     std::as_bytes(std::span(&eager, 1))));
  EXPECT_EQ(cluster[1].counters().unsealed, 2u);
  EXPECT_EQ(cluster[1].counters().packets_received, received);
  deliver(cluster, 0, 1, 30, 100'000);
  const Datagram segment(64, std::byte{1});
  arrive(datagram_of(wire::data_header({connection, 5000}, {9, 9}, 0, 64, wire::kLastSegment),
                     segment));
  StackStats stats;
  cluster[1].loop().add_to_st(stats);
  EXPECT_GE(stats.refused_packets, 2u);
  const bool sealed = GetParam() == Security::kEncrypt;
  EXPECT_EQ(cluster[1].counters().unsealed, sealed ? 3u : 2u);
  if (sealed) deliver(cluster, 0, 1, 31, 100'000);
}

// The checksum is not what protects: whoever forges it gets nowhere.
TEST_P(Intercepted, AForgedFlagOpensNothing) {
  const std::uint64_t connection = cluster[1].session(0)->connection_id();
  for (std::uint32_t number = 0; number < 2'000; ++number) {
    for (const std::uint8_t phase : {0, 1}) {
      wire::Header header = wire::frames_header(wire::Type::kControl, {connection, number}, 3);
      wire::mark_sealed(header, phase);
      Datagram packet(sizeof header + 3 + wire::kTagBytes, static_cast<std::byte>(number));
      std::memcpy(packet.data(), &header, sizeof header);
      arrive(packet);
    }
  }
  EXPECT_EQ(cluster[1].counters().forged, 4'000u);
  deliver(cluster, 0, 1, 30, 100'000);
}

// At kAuth segments are not sealed; what an observer who knows how checksums are made can do with
// their headers.
class Segments : public testing::TestWithParam<wire::Checksum> {
 protected:
  Segments() {
    set_level(cluster, Security::kAuth);
    for (const std::uint32_t node : {0u, 1u}) cluster[node].set_checksum(GetParam());
    SimObserver observer(cluster);
    deliver(cluster, 0, 1, 1, 50'000);
    deliver(cluster, 1, 0, 2, 50'000);
    genuine = observer.seen_between(0, 1, wire::Type::kData).back();
    pass_time(cluster, 100 * kMillisecond);
  }
  // The datagram with another header and body, by all that its checksum tells.
  Datagram altered(const wire::Header& header, std::span<const std::byte> body) const {
    const wire::Header old = header_of(genuine);
    const Datagram plain = datagram_of(old, std::span(genuine).subspan(sizeof old));
    Datagram forged = datagram_of(header, body);
    wire::Header sum = header_of(forged);
    sum.crc ^= old.crc ^ header_of(plain).crc;
    std::memcpy(forged.data(), &sum, sizeof sum);
    return forged;
  }
  // A segment for a receive that has ended, under that number.
  Datagram numbered(std::uint32_t number) const {
    wire::Header header = header_of(genuine);
    header.number = number;
    return altered(header, std::span(genuine).subspan(sizeof header));
  }
  std::uint32_t newest() {
    return static_cast<std::uint32_t>(cluster[1].session(0)->paths().first().largest_received());
  }
  void arrive(const Datagram& packet) {
    SimObserver observer(cluster);
    observer.send(0, 1, packet);
  }
  void exchange_both_ways() {
    for (std::uint64_t tag = 10; tag < 20; tag += 2) {
      deliver(cluster, 0, 1, tag, tag % 4 == 0 ? 100 : 200'000);
      deliver(cluster, 1, 0, tag + 1, tag % 4 == 0 ? 100 : 200'000);
    }
  }
  SimCluster cluster{2, 1, {}};
  Datagram genuine;
};
INSTANTIATE_TEST_SUITE_P(Checksums, Segments,
                         testing::Values(wire::Checksum::kCrc32c, wire::Checksum::kKernel),
                         [](const auto& way) { return std::string(name_of(way.param)); });

TEST_P(Segments, OfANumberThatIsFarAheadStopNoAcknowledgement) {
  for (const std::uint32_t ahead : {5'000u, 100'000u, 0x7fff'fff0u}) {
    const std::uint64_t received = cluster[1].counters().packets_received;
    arrive(numbered(newest() + ahead));
    EXPECT_EQ(cluster[1].counters().packets_received, received);
    exchange_both_ways();
  }
}

TEST_P(Segments, OfANumberToComeKeepNoSealedPacketFromActing) {
  for (std::uint32_t ahead = 1; ahead <= 30; ++ahead) arrive(numbered(newest() + ahead));
  const std::uint64_t copies = cluster[1].counters().duplicates;
  exchange_both_ways();
  EXPECT_EQ(cluster[1].counters().duplicates, copies);
}

TEST_P(Segments, ThatSomebodyElseSendsAreNoSignOfLife) {
  Transfer transfer(10, 100);
  cluster[1].set_peer_timeout(10 * kSecond);
  cluster[1].recv(0, transfer.recv);
  cluster.network().kill_link(0, 1, kNever);
  const Time dead = cluster.now();
  Time next = dead;
  EXPECT_TRUE(cluster.run(
      dead + 15 * kSecond, [&] { return transfer.received.calls > 0; },
      [&] {
        if (cluster.now() >= next) {
          arrive(numbered(newest() + 1));
          next += kSecond;
        }
        cluster.wake_at(next);
      }));
  EXPECT_EQ(transfer.received.status.code(), Code::kPeerLost);
}

// Nothing but the payload of a packet can be changed without notice.
TEST_P(Segments, KeepTheirShape) {
  wire::Header header = header_of(genuine);
  const std::span<const std::byte> body =
      std::span<const std::byte>(genuine).subspan(sizeof header);
  const std::uint64_t received = cluster[1].counters().packets_received,
                      copies = cluster[1].counters().duplicates;
  arrive(altered(header, body));
  EXPECT_EQ(cluster[1].counters().duplicates, copies + 1) << "nothing was altered";
  arrive(altered(header, body.first(body.size() - 16)));
  header.flags ^= wire::kAckSoon;
  arrive(altered(header, body));
  header = header_of(genuine);
  ++header.slot_low;
  arrive(altered(header, body));
  header = header_of(genuine);
  header.extent += std::uint64_t{1} << 31;
  arrive(altered(header, body));
  EXPECT_EQ(cluster[1].counters().packets_received, received + 1);
  EXPECT_EQ(cluster[1].counters().duplicates, copies + 1);
  EXPECT_EQ(cluster[1].counters().checksum_failures, 4u);
}

TEST_P(Segments, ThatCameInPiecesAreNotPutTogetherOtherwise) {
  SimObserver observer(cluster);
  cluster.network().set_mtu(0, 1, 1200);
  deliver(cluster, 0, 1, 30, 2 << 20);
  const std::vector<Datagram> pieces = observer.seen_between(0, 1, wire::Type::kFragment);
  ASSERT_FALSE(pieces.empty());
  genuine = pieces.back();
  Datagram body(genuine.begin() + sizeof(wire::Header), genuine.end());
  const std::uint64_t failures = cluster[1].counters().checksum_failures;
  arrive(altered(header_of(genuine), body));
  EXPECT_EQ(cluster[1].counters().checksum_failures, failures) << "nothing was altered";
  wire::FragmentDescriptor piece;
  std::memcpy(&piece, body.data(), sizeof piece);
  ++piece.offset_granules;
  std::memcpy(body.data(), &piece, sizeof piece);
  arrive(altered(header_of(genuine), body));
  EXPECT_EQ(cluster[1].counters().checksum_failures, failures + 1);
}

// Without keys anybody on the way can make up a segment; but none that he could tell from far
// ahead.
TEST(SecurityLevels, SegmentsBeyondWhatWasGrantedAreRefusedAtEachLevel) {
  SimCluster cluster(2, 1, {});
  SimObserver observer(cluster);
  deliver(cluster, 0, 1, 1, 50'000);
  const Session& session = *cluster[1].session(0);
  const auto limit = static_cast<std::uint32_t>(session.grants().promised());
  const Datagram segment(64, std::byte{1});
  for (const std::uint32_t ahead : {1u, 5'000u, 0x7fff'0000u}) {
    const std::uint64_t malformed = cluster[1].counters().malformed;
    observer.send(0, 1,
                  datagram_of(wire::data_header({session.connection_id(), limit + ahead}, {9, 9}, 0,
                                                64, wire::kLastSegment),
                              segment));
    EXPECT_EQ(cluster[1].counters().malformed, malformed + 1);
  }
  exchange(cluster, 10);
}

TEST(SecurityLevels, KeysChangeWhilePacketsAreLostAndReordered) {
  for (const Security level : {Security::kAuth, Security::kEncrypt}) {
    std::uint64_t rotations = 0;
    for (std::uint64_t seed = 1; seed <= 30; ++seed) {
      SimFaults faults;
      faults.loss = 0.05;
      faults.duplication = 0.05;
      faults.reordering = 0.2;
      faults.corruption = 0.01;
      SimCluster cluster(2, seed, faults);
      for (const std::uint32_t node : {0u, 1u}) cluster[node].set_paths(1 + seed % 3);
      set_level(cluster, level, 10 + seed);
      for (std::uint64_t tag = 1; tag <= 10; ++tag) {
        deliver(cluster, tag % 2, (tag + 1) % 2, tag, 30'000 * tag);
      }
      for (const std::uint32_t node : {0u, 1u}) {
        rotations += cluster[node].session(1 - node)->sealing()->rotations();
      }
      if (testing::Test::HasFailure()) FAIL() << name_of(level) << ", seed " << seed;
    }
    EXPECT_GT(rotations, 600u) << name_of(level);
  }
}

TEST(SecurityLevels, ASessionBeginsWhateverIsLost) {
  for (const Security level : {Security::kAuth, Security::kEncrypt}) {
    for (std::uint64_t seed = 1; seed <= 100; ++seed) {
      SimFaults faults;
      faults.loss = 0.3;
      faults.duplication = 0.3;
      faults.reordering = 0.3;
      SimCluster cluster(2, seed, faults);
      set_level(cluster, level);
      deliver(cluster, 0, 1, 1, 100);
      deliver(cluster, 1, 0, 2, 10'000);
      if (testing::Test::HasFailure()) FAIL() << name_of(level) << ", seed " << seed;
    }
  }
}

// Nothing of node 0's but its first hello has come, so node 1 cannot read what does come now; but
// it asks at once for the hello that it lacks.
TEST(SecurityLevels, WhoHearsWhatItCannotReadYetAsksForAHello) {
  constexpr Time kBack = 1300 * kMillisecond;
  SimCluster cluster(2, 1, {});
  set_level(cluster, Security::kAuth);
  SimObserver observer(cluster);
  Transfer transfer(1, 100);
  cluster[0].matcher(1).send(transfer.send);
  ASSERT_TRUE(cluster.run(kSecond, [&] { return !observer.seen.empty(); }));
  cluster.network().kill_link(0, 1, kBack);
  ASSERT_FALSE(cluster.run(kBack, [] { return false; }));
  ASSERT_FALSE(cluster[1].session(0)->established());
  EXPECT_TRUE(cluster.run(kBack + 700 * kMillisecond,
                          [&] { return cluster[1].session(0)->established(); }));
  EXPECT_TRUE(
      cluster.run(kBack + 1500 * kMillisecond, [&] { return !cluster[0].session(1)->busy(); }));
  EXPECT_GT(cluster[1].counters().early, 0u);
}

// Segments shrink by the tag, and messages under way go on in pieces, when the path narrows.
TEST(SecurityLevels, PathsMayNarrowInMidMessage) {
  for (const Security level : kLevels) {
    SimFaults faults;
    faults.max_datagram = 8972;
    faults.receive_buffer = 4 << 20;
    SimCluster cluster(2, 1, faults);
    set_level(cluster, level);
    deliver(cluster, 0, 1, 1, 100'000);
    EXPECT_EQ(cluster[0].session(1)->path_size(), 8972u);
    SimObserver observer(cluster);
    Transfer transfer(2, 4 << 20);
    transfer.reduce();
    cluster[1].matcher(0).recv(transfer.recv);
    cluster[0].matcher(1).send(transfer.send);
    ASSERT_FALSE(cluster.run(cluster.now() + kMillisecond, [&] { return transfer.done(); }));
    cluster.network().set_mtu(0, 1, 1200);
    ASSERT_TRUE(cluster.run(cluster.now() + 20 * kSecond, [&] { return transfer.done(); }));
    transfer.check();
    const auto pieces = observer.seen_between(0, 1, wire::Type::kFragment);
    EXPECT_GT(pieces.size(), 100u) << name_of(level);
    for (const Datagram& piece : pieces) EXPECT_LE(piece.size(), 1200u);
  }
}

TEST(SecurityLevels, AfterAResetAPeerIsSuspectedAtEachLevel) {
  for (const Security level : kLevels) {
    SimCluster cluster(2, 1, {});
    set_level(cluster, level);
    deliver(cluster, 0, 1, 1, 10'000);
    cluster[1].drop(0);
    Transfer transfer(2, 100);
    cluster[0].matcher(1).send(transfer.send);
    cluster[0].matcher(1).recv(transfer.recv);
    EXPECT_TRUE(cluster.run(cluster.now() + kSecond, [&] {
      return cluster[0].peer(1).suspicion.resets >= 3;
    })) << name_of(level);
  }
}

}  // namespace
}  // namespace taco::harp
