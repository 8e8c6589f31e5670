// Sent packets and arrivals, compared with plain sets.
#include "harp/session/sent_packets.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "harp/session/received_packets.h"
#include "harp/session/small_packets.h"
#include "support/sim_random.h"

namespace taco::harp {
namespace {

struct Recorder final : SentPackets::Listener {
  std::multiset<std::uint64_t> acked, lost;
  void on_run_acked(const SentRun& run, std::uint64_t mask) override { note(acked, run, mask); }
  void on_run_lost(const SentRun& run, std::uint64_t mask) override { note(lost, run, mask); }
  static void note(std::multiset<std::uint64_t>& set, const SentRun& run, std::uint64_t mask) {
    for (int i = 0; i < 64; ++i) {
      if (mask >> i & 1) set.insert(run.first + static_cast<std::uint64_t>(i));
    }
  }
};

SentRun run_of(std::uint64_t first, std::uint8_t count, Time sent) {
  SentRun run;
  run.first = first;
  run.count = count;
  run.pending = count == 64 ? ~0ull : (1ull << count) - 1;
  run.sent = sent;
  return run;
}

wire::Ack ack_of(std::initializer_list<wire::AckRange> ranges) {
  wire::Ack ack;
  for (const wire::AckRange& range : ranges) ack.ranges[ack.count++] = range;
  return ack;
}

TEST(SentPackets, AHoleIsLostOnlyAfterItHasPersisted) {
  SentPackets sent;
  Recorder recorder;
  SentPackets::AckOutcome outcome;
  sent.add(run_of(1, 10, 0));
  ASSERT_TRUE(sent.on_ack(ack_of({{5, 6}}), 11, 1000, recorder, outcome));
  EXPECT_EQ(outcome.newly_acked, 2u);
  EXPECT_EQ(sent.detect_lost(1500, 600, 0, recorder).packets, 0u);
  EXPECT_EQ(sent.next_loss(600, 0), 1600);
  EXPECT_EQ(sent.detect_lost(1600, 600, 0, recorder).packets, 4u);
  EXPECT_EQ(recorder.lost, (std::multiset<std::uint64_t>{1, 2, 3, 4}));
  EXPECT_EQ(sent.in_flight(), 4u) << "what comes after the acknowledged ones is not suspect";
  EXPECT_EQ(sent.next_loss(600, 0), kNever);
}

TEST(SentPackets, AHoleIsAsOldAsTheAcknowledgementThatShowedItNotAsItsRun) {
  SentPackets sent;
  Recorder recorder;
  sent.add(run_of(1, 44, 0));
  Time now = 0;
  // A slow interface: one packet every 100.
  for (std::uint64_t number = 1; number <= 29; ++number) {
    SentPackets::AckOutcome outcome;
    now += 100;
    ASSERT_TRUE(sent.on_ack(ack_of({{1, number}}), 45, now, recorder, outcome));
    ASSERT_EQ(sent.detect_lost(now, 600, 0, recorder).packets, 0u);
  }
  SentPackets::AckOutcome outcome;
  ASSERT_TRUE(sent.on_ack(ack_of({{31, 31}, {1, 29}}), 45, now, recorder, outcome));
  EXPECT_EQ(sent.detect_lost(now, 600, 0, recorder).packets, 0u) << "number 30 may be right behind";
  EXPECT_EQ(sent.next_loss(600, 0), now + 600);
  EXPECT_EQ(sent.detect_lost(now + 600, 600, 0, recorder).packets, 1u);
}

TEST(SentPackets, ALossKeepsNothingOfWhatLeftAfterIt) {
  SentPackets sent;
  Recorder recorder;
  std::uint64_t next = 1;
  Time now = 0;
  for (int i = 0; i < 20'000; ++i, next += 44) {
    sent.add(run_of(next, 44, ++now));
    SentPackets::AckOutcome outcome;
    const std::uint64_t last = next + 43;
    ASSERT_TRUE(sent.on_ack(ack_of({{11, last}, {1, 9}}), next + 44, now, recorder, outcome));
    sent.detect_lost(now, 20, 0, recorder);
  }
  EXPECT_EQ(recorder.lost, std::multiset<std::uint64_t>{10});
  EXPECT_LT(sent.memory_bytes(), 50'000u);
  SentPackets::AckOutcome late;
  ASSERT_TRUE(sent.on_ack(ack_of({{1, next - 1}}), next, now, recorder, late));
  EXPECT_EQ(late.spurious, 1u) << "it is remembered all the same";
}

TEST(SentPackets, HoweverMuchIsLostABoundedPartIsRemembered) {
  SentPackets sent;
  Recorder recorder;
  std::uint64_t next = 1;
  Time now = 0;
  for (int i = 0; i < 10'000; ++i, next += 4) {
    sent.add(run_of(next, 4, ++now));
    SentPackets::AckOutcome outcome;
    ASSERT_TRUE(sent.on_ack(ack_of({{next + 3, next + 3}}), next + 4, now, recorder, outcome));
    sent.detect_lost(now, 3, 0, recorder);
  }
  EXPECT_LE(sent.runs(), SentPackets::kMaxLost + 8);
  EXPECT_EQ(sent.in_flight(), 3u * 3u);
}

TEST(SentPackets, ALateAcknowledgementShowsTheLossToHaveBeenSpurious) {
  SentPackets sent;
  Recorder recorder;
  SentPackets::AckOutcome first, second;
  sent.add(run_of(1, 3, 0));
  ASSERT_TRUE(sent.on_ack(ack_of({{3, 3}}), 4, 10, recorder, first));
  ASSERT_EQ(sent.detect_lost(1000, 10, 0, recorder).packets, 2u);
  ASSERT_TRUE(sent.on_ack(ack_of({{1, 3}}), 4, 20, recorder, second));
  EXPECT_EQ(second.spurious, 2u);
  EXPECT_EQ(second.newly_acked, 0u);
  EXPECT_TRUE(sent.empty());
}

// Or one number that nobody has sent would make all that follows unheard.
TEST(SentPackets, OfAnAcknowledgementOfWhatWasNeverSentTheRestCounts) {
  SentPackets sent;
  Recorder recorder;
  SentPackets::AckOutcome none, some;
  sent.add(run_of(1, 6, 0));
  EXPECT_FALSE(sent.on_ack(ack_of({{7, 5000}}), 7, 10, recorder, none));
  EXPECT_EQ(none.newly_acked, 0u);
  EXPECT_TRUE(sent.on_ack(ack_of({{5000, 5000}, {5, 80}, {1, 2}}), 7, 10, recorder, some));
  EXPECT_EQ(some.newly_acked, 4u);
  EXPECT_EQ(sent.largest_acked(), 6u);
  EXPECT_EQ(sent.detect_lost(kSecond, kMillisecond, 0, recorder).packets, 2u);
}

TEST(SentPackets, EveryPacketIsAcknowledgedOnceWhateverTheRanges) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SimRandom random(seed);
    SentPackets sent;
    Recorder recorder;
    ReceivedPackets received;
    std::uint64_t next = 1;
    std::set<std::uint64_t> arrived;
    Time now = 0;
    for (int step = 0; step < 100; ++step) {
      now += 10;
      const auto count = static_cast<std::uint8_t>(1 + random.below(64));
      sent.add(run_of(next, count, now));
      for (std::uint64_t n = next; n < next + count; ++n) {
        if (random.chance(0.9) && received.add(n, now)) arrived.insert(n);
        EXPECT_FALSE(arrived.contains(n) && received.add(n, now)) << "a duplicate passed";
      }
      next += count;
      next += random.below(2);  // a number that needs no acknowledgement
      wire::Ack ack;
      received.fill(ack, now);
      SentPackets::AckOutcome outcome;
      if (ack.count > 0) {
        ASSERT_TRUE(sent.on_ack(ack, next, now, recorder, outcome));
      }
      sent.detect_lost(now, 40, 0, recorder);
    }
    for (const std::uint64_t n : recorder.acked) {
      EXPECT_TRUE(arrived.contains(n));
      EXPECT_EQ(recorder.acked.count(n), 1u);
    }
    EXPECT_GT(recorder.acked.size(), arrived.size() * 8 / 10);
  }
}

TEST(ReceivedPackets, RemembersABoundedNumberOfGapsAndRefusesWhatItForgot) {
  ReceivedPackets received;
  for (std::uint64_t n = 1; n <= 200; n += 2) EXPECT_TRUE(received.add(n, 0));
  EXPECT_FALSE(received.add(2, 0)) << "too old to tell from a duplicate";
  EXPECT_TRUE(received.add(198, 0));
  wire::Ack ack;
  received.fill(ack, 0);
  EXPECT_LE(ack.count, wire::kMaxAckRanges);
  EXPECT_EQ(ack.ranges[0].last, 199u);
}

TEST(ReceivedPackets, ARangeAddedAtOnceIsThatOfItsNumbers) {
  ReceivedPackets at_once, singly;
  std::uint64_t next = 1;
  for (Time now = 1; now < 50; ++now) {
    next += now % 3;
    for (std::uint64_t n = next; n <= next + 40; ++n) EXPECT_TRUE(singly.add(n, now));
    EXPECT_TRUE(at_once.add(next, now));
    at_once.extend(40);
    next += 41;
    wire::Ack by_ranges, by_numbers;
    at_once.fill(by_ranges, 60);
    singly.fill(by_numbers, 60);
    ASSERT_EQ(by_ranges.count, by_numbers.count);
    EXPECT_EQ(by_ranges.delay_us, by_numbers.delay_us);
    for (std::uint32_t i = 0; i < by_ranges.count; ++i) {
      EXPECT_EQ(by_ranges.ranges[i].first, by_numbers.ranges[i].first);
      EXPECT_EQ(by_ranges.ranges[i].last, by_numbers.ranges[i].last);
    }
    EXPECT_TRUE(at_once.has(next - 1));
    EXPECT_FALSE(at_once.has(next));
  }
}

TEST(SerialFilter, EverySerialPassesOnceInAnyOrder) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SimRandom random(seed);
    SerialFilter filter;
    std::set<std::uint32_t> seen;
    std::uint32_t base = 0;
    for (int i = 0; i < 20'000; ++i) {
      const auto serial = base + static_cast<std::uint32_t>(random.below(kEagerWindow + 50));
      const auto verdict = filter.add(serial);
      if (seen.contains(serial)) {
        EXPECT_EQ(verdict, SerialFilter::Verdict::kDuplicate);
      } else if (serial >= base + kEagerWindow) {
        EXPECT_EQ(verdict, SerialFilter::Verdict::kBeyondWindow);
      } else {
        EXPECT_EQ(verdict, SerialFilter::Verdict::kNew);
        seen.insert(serial);
      }
      while (seen.contains(base)) ++base;
    }
    EXPECT_GT(base, 1000u);
  }
}

}  // namespace
}  // namespace taco::harp
