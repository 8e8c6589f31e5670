#include "harp/session/flow.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include "base/clock.h"
#include "support/sim_random.h"

namespace taco::harp {
namespace {

constexpr std::uint64_t kPacketBytes = 2304;
constexpr std::uint64_t kDefaultHalf = 212'992;  // of what Linux gives by default

// The account of a peer that has been heard.
struct OpenAccount : CreditAccount {
  OpenAccount(CreditPool& pool, std::uint64_t packet_bytes) : CreditAccount(pool, packet_bytes) {
    open();
  }
};

// A peer that sends as much as it is told it may, and believes the newest limit it has heard.
struct Peer {
  Peer(CreditPool& pool, std::uint64_t packet_bytes) : account(pool, packet_bytes) {}
  OpenAccount account;
  std::uint64_t sent = 0, received = 0, believed = account.limit();
  struct Told {
    std::uint64_t limit;
    std::uint32_t epoch;
  };
  std::deque<Told> on_the_way;
  std::uint32_t heard = 0;
};

TEST(Credit, WhatIsInFlightNeverExceedsThePoolAndNobodyStarves) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SimRandom random(seed);
    const std::uint64_t capacity = 64 + random.below(2000);
    const std::uint64_t peers = 1 + random.below(8);
    CreditPool pool(capacity * kPacketBytes);
    std::deque<Peer> all;
    for (std::uint64_t i = 0; i < peers; ++i) all.emplace_back(pool, kPacketBytes);
    for (int step = 0; step < 5000; ++step) {
      Peer& peer = all[random.below(peers)];
      switch (random.below(6)) {
        case 0:
          peer.account.set_active(random.chance(0.7));
          break;
        case 1:  // it sends, some of it is lost, the last arrives
        case 2:
          if (peer.sent < peer.believed) {
            peer.sent += 1 + random.below(peer.believed - peer.sent);
            if (random.chance(0.9)) peer.received = peer.sent;
            peer.account.on_received(peer.received);
          }
          break;
        case 3:  // what it was told arrives, or is lost and told again
          if (!peer.on_the_way.empty()) {
            const Peer::Told told = peer.on_the_way.front();
            peer.on_the_way.pop_front();
            if (random.chance(0.8) && told.epoch >= peer.heard) {
              peer.heard = told.epoch;
              peer.believed = std::max(told.limit, peer.sent);
              peer.sent = std::max(peer.sent, peer.received) + 1;  // its acknowledgement
              peer.received = peer.sent;
              peer.account.on_received(peer.received);
              peer.account.on_confirmed(told.epoch);
            }
          }
          break;
        default:
          peer.account.refresh();
          peer.on_the_way.push_back({peer.account.limit(), peer.account.epoch()});
      }
      std::uint64_t possible = 0;
      for (const Peer& each : all) {
        if (each.believed > each.received) possible += each.believed - each.received;
      }
      // The least allowance may go beyond a pool that is given away.
      ASSERT_LE(possible, capacity + 2 * peers);
      ASSERT_LE(pool.outstanding(), pool.most());
    }
    for (int round = 0; round < 20; ++round) {  // everybody is told and sends everything
      for (Peer& each : all) {
        each.account.set_active(true);
        each.account.refresh();
        each.believed = each.account.limit();
        each.account.on_confirmed(each.account.epoch());
        each.sent = std::max(each.sent, each.believed);
        each.received = each.sent;
        each.account.on_received(each.received);
      }
    }
    for (Peer& each : all) {
      each.account.refresh();
      EXPECT_GE(each.account.limit() - each.received,
                std::min<std::uint64_t>(pool.share() / kPacketBytes / 2, 2));
    }
  }
}

// The first grants, before anything has come; the pool knows of `known` when the first begins.
std::deque<CreditAccount> begun(CreditPool& pool, std::size_t peers, std::uint64_t packet_bytes,
                                bool known) {
  std::deque<CreditAccount> all;
  for (std::size_t i = 0; i < peers; ++i) {
    all.emplace_back(pool, packet_bytes);
    if (!known) all.back().open();
  }
  for (CreditAccount& each : all) each.open();
  return all;
}

TEST(Credit, PeersThatBeginAtOnceHaveNoMoreTogetherThanThePool) {
  for (const std::uint64_t capacity : {kDefaultHalf, std::uint64_t{4} << 20}) {
    for (const std::uint64_t packet : {std::uint64_t{2304}, std::uint64_t{9804}}) {
      for (const std::size_t peers : {8u, 16u, 64u, 512u, 10'000u}) {
        for (const bool known : {true, false}) {
          SCOPED_TRACE(std::to_string(peers) + " peers of " + std::to_string(packet) + " bytes");
          CreditPool pool(capacity);
          const std::deque<CreditAccount> all = begun(pool, peers, packet, known);
          EXPECT_LE(pool.outstanding(), pool.capacity());
          EXPECT_GE(pool.outstanding(), std::min(pool.capacity() / 2, peers * packet));
        }
      }
    }
  }
}

TEST(Credit, AFewPeersBeginWithEightPacketsAndSixteenWithSome) {
  for (const bool known : {true, false}) {
    CreditPool few(kDefaultHalf), more(kDefaultHalf), large(std::uint64_t{4} << 20);
    for (const CreditAccount& each : begun(few, 8, kPacketBytes, known)) {
      EXPECT_EQ(each.limit(), 8u);
    }
    for (const CreditAccount& each : begun(more, 16, kPacketBytes, known)) {
      EXPECT_GE(each.limit(), known ? 5u : 1u);
    }
    for (const CreditAccount& each : begun(large, 64, kPacketBytes, known)) {
      EXPECT_EQ(each.limit(), 8u);
    }
  }
}

// How often a peer is told of new credit while so many packets of its come, one by one.
int grants_for(CreditAccount& account, int packets) {
  int grants = 0;
  while (account.refresh()) {
  }
  const std::uint64_t before = account.received();
  for (int i = 1; i <= packets; ++i) {
    account.on_received(before + static_cast<std::uint64_t>(i));
    EXPECT_GT(account.limit(), account.received()) << "its peer would have to wait";
    grants += account.refresh() ? 1 : 0;
  }
  return grants;
}

TEST(Credit, SmallMessagesAreToldOfHalfOfTheirsAtOnceBulkDataOfAQuarter) {
  CreditPool pool(4096 * kPacketBytes);
  OpenAccount account(pool, kPacketBytes);
  EXPECT_EQ(grants_for(account, 320), 320 / 16);
  account.set_active(true);
  const std::uint64_t target = pool.share() / kPacketBytes;
  EXPECT_NEAR(grants_for(account, 10'000), static_cast<double>(10'000 * 4) / target, 1);
}

TEST(Credit, WhoeverHasNotBeenHeardHoldsNothing) {
  CreditPool pool(1000);
  std::deque<CreditAccount> silent;
  for (int i = 0; i < 100; ++i) {
    silent.emplace_back(pool, 1).set_active(true);
    EXPECT_FALSE(silent.back().refresh());
  }
  EXPECT_EQ(pool.outstanding(), 0u);
}

TEST(Credit, WhatIsTakenBackIsTheOthersUntilThePeerIsHeardAgain) {
  CreditPool pool(8);
  OpenAccount silent(pool, 1);
  EXPECT_EQ(pool.outstanding(), 2u);
  silent.take_back();
  EXPECT_FALSE(silent.is_open());
  EXPECT_EQ(pool.outstanding(), 0u);
  EXPECT_FALSE(silent.refresh());
  OpenAccount other(pool, 1);
  EXPECT_EQ(other.limit(), 2u);
  silent.open();
  EXPECT_EQ(silent.promised(), 2u) << "the peer may have heard it";
  EXPECT_EQ(pool.outstanding(), 4u);
}

TEST(Credit, OneOfAFewMayBeginWhateverTheOthersHold) {
  CreditPool pool(100);
  OpenAccount holder(pool, 1);
  holder.set_active(true);
  ASSERT_TRUE(holder.refresh());
  std::deque<OpenAccount> others;
  for (int i = 0; i < 7; ++i) {
    OpenAccount& other = others.emplace_back(pool, 1);
    EXPECT_GE(other.limit(), 2u);
    other.set_active(true);
    other.refresh();
  }
  EXPECT_GT(pool.outstanding(), pool.capacity());
  EXPECT_LE(pool.outstanding(), pool.most());
}

// Most of them have nothing to send and keep what they have, until others have nothing.
TEST(Credit, OfMorePeersThanThereArePacketsEachThatAsksGetsItsTurn) {
  constexpr std::size_t kPeers = 1000, kStep = 7;
  CreditPool pool(10);
  std::deque<CreditAccount> all = begun(pool, kPeers, 1, /*known=*/true);
  EXPECT_EQ(pool.outstanding(), 10u);
  std::vector<int> sent(kPeers);
  std::size_t asked = 0;
  for (std::size_t i = 0; i < kPeers; i += kStep, ++asked) all[i].refresh();
  const auto served = [&] {
    return std::ranges::count_if(sent, [](int times) { return times >= 3; });
  };
  int rounds = 0;
  for (; rounds < 1000 && served() < static_cast<std::ptrdiff_t>(asked); ++rounds) {
    pool.set_now(rounds * kMillisecond);
    for (std::size_t i = 0; i < kPeers; i += kStep) {
      if (all[i].limit() <= all[i].received()) continue;
      all[i].on_received(all[i].limit());
      ++sent[i];
      all[i].refresh();
    }
    if (!pool.starving()) continue;
    pool.ask_everybody();
    for (CreditAccount& each : all) {
      if (!each.is_concerned() || !each.refresh()) continue;
      each.on_told();
      each.on_confirmed(each.epoch());
    }
    ASSERT_LE(pool.outstanding(), pool.capacity());
  }
  EXPECT_LE(rounds, 150) << "of 43 in which ten have their turn";
  EXPECT_LE(*std::ranges::max_element(sent), 5) << "in the order in which they asked";
}

TEST(Credit, APoolThatHoldsLessThanAPacketLetsOnePeerSendOne) {
  CreditPool pool(1000);
  OpenAccount first(pool, 2304), second(pool, 2304);
  EXPECT_EQ(first.limit(), 1u);
  EXPECT_EQ(second.limit(), 0u);
  EXPECT_FALSE(second.refresh());
  first.on_received(1);
  pool.ask_everybody();
  EXPECT_TRUE(second.refresh());
  EXPECT_EQ(second.limit(), 1u);
}

TEST(Credit, AnIdleHolderGivesUpItsShareWhenAnotherWaits) {
  CreditPool pool(1000);
  OpenAccount idle(pool, 1), waiting(pool, 1);
  idle.set_active(true);
  ASSERT_TRUE(idle.refresh());
  EXPECT_GT(pool.outstanding(), 900u);
  idle.set_active(false);
  waiting.set_active(true);
  waiting.refresh();
  EXPECT_TRUE(pool.starving());
  ASSERT_TRUE(idle.refresh());
  EXPECT_EQ(idle.lowering(), CreditAccount::Lowering::kUntold);
  waiting.refresh();
  EXPECT_LT(waiting.limit(), 200u) << "not before the other has agreed";
  idle.on_confirmed(idle.epoch());
  ASSERT_TRUE(waiting.refresh());
  EXPECT_GT(waiting.limit(), 800u);
  EXPECT_LE(pool.outstanding(), pool.capacity());
}

TEST(Credit, APathOfJumboFramesLeavesTheOthersTheirShare) {
  CreditPool pool(1'000'000);
  OpenAccount jumbo(pool, 10'000), plain(pool, 2'000);
  jumbo.set_active(true);
  plain.set_active(true);
  ASSERT_TRUE(jumbo.refresh());
  ASSERT_TRUE(plain.refresh());
  EXPECT_NEAR(static_cast<double>(jumbo.limit()), 40, 12);
  EXPECT_NEAR(static_cast<double>(plain.limit()), 200, 50);
  EXPECT_LE(pool.outstanding(), pool.capacity());
}

TEST(Credit, WhatPeersHeldThatAreGoneGoesBackToTheOthers) {
  constexpr std::size_t kPeers = 10;
  CreditPool alone(1000), pool(1000);
  OpenAccount undisturbed(alone, 1);
  undisturbed.set_active(true);
  undisturbed.refresh();
  OpenAccount survivor(pool, 1);
  survivor.set_active(true);
  std::deque<OpenAccount> mortals;
  for (std::size_t i = 1; i < kPeers; ++i) mortals.emplace_back(pool, 1).set_active(true);
  for (OpenAccount& mortal : mortals) mortal.refresh();
  survivor.refresh();
  EXPECT_LT(survivor.limit(), 200u);
  for (OpenAccount& mortal : mortals) {
    mortal.close();
    survivor.refresh();
    EXPECT_FALSE(mortal.refresh()) << "the dead ask for nothing";
    mortal.set_active(true);
    mortal.on_received(1'000'000);
  }
  EXPECT_EQ(pool.share(), alone.share());
  EXPECT_GE(survivor.limit(), undisturbed.limit() * 3 / 4);
  EXPECT_EQ(pool.outstanding(), survivor.limit());
}

TEST(Credit, NobodyIsAskedAgainWhileNothingChanges) {
  CreditPool pool(1000);
  OpenAccount holder(pool, 1), waiting(pool, 1);
  holder.set_active(true);
  ASSERT_TRUE(holder.refresh());
  holder.set_active(false);
  waiting.set_active(true);
  waiting.refresh();
  const auto ask = [&] {
    pool.ask_everybody();
    holder.refresh();
    waiting.refresh();
  };
  int rounds = 0;
  for (; pool.starving() && rounds < 100; ++rounds) ask();
  EXPECT_LT(rounds, 5);
  EXPECT_LT(waiting.limit(), 200u) << "it waits for the holder's word";
  holder.on_confirmed(holder.epoch());
  EXPECT_TRUE(pool.starving()) << "there is room";
  ask();
  EXPECT_GT(waiting.limit(), 800u);
  EXPECT_FALSE(pool.starving());
}

using Lowering = CreditAccount::Lowering;

struct LoweredTest : ::testing::Test {
  LoweredTest() : pool(1000), holder(pool, 1), waiting(pool, 1) {
    holder.set_active(true);
    holder.refresh();
    before = holder.epoch();
    holder.set_active(false);
    waiting.set_active(true);
    waiting.refresh();
    EXPECT_EQ(holder.lowering(), Lowering::kNone);
    EXPECT_TRUE(holder.refresh());
  }
  CreditPool pool;
  OpenAccount holder, waiting;
  std::uint32_t before = 0;  // the epoch of the higher limit
};

TEST_F(LoweredTest, IsToldUntilThatIsConfirmed) {
  EXPECT_EQ(holder.lowering(), Lowering::kUntold);
  holder.on_told();
  EXPECT_EQ(holder.lowering(), Lowering::kTold);
  holder.on_lost();
  EXPECT_EQ(holder.lowering(), Lowering::kUntold);
  holder.on_told();
  holder.on_confirmed(holder.epoch());
  EXPECT_EQ(holder.lowering(), Lowering::kNone);
}

TEST_F(LoweredTest, AConfirmationOfAnOlderLimitConfirmsNothing) {
  holder.on_told();
  holder.on_confirmed(before);
  EXPECT_EQ(holder.lowering(), Lowering::kUntold);
}

TEST_F(LoweredTest, WhatWasTakenForLostMayConfirmItAfterAll) {
  holder.on_told();
  holder.on_lost();
  holder.on_confirmed(holder.epoch());
  EXPECT_EQ(holder.lowering(), Lowering::kNone);
}

TEST_F(LoweredTest, NothingIsToldOnceThePeerIsGone) {
  holder.on_told();
  holder.close();
  EXPECT_EQ(holder.lowering(), Lowering::kNone);
  holder.on_lost();
  EXPECT_EQ(holder.lowering(), Lowering::kNone);
}

TEST(SendCredit, TheNewestWordIsValidAndMayTakeSomeBack) {
  SendCredit credit;
  EXPECT_EQ(credit.left(), 0u) << "nothing was granted";
  EXPECT_TRUE(credit.on_granted(100, 2));
  EXPECT_FALSE(credit.on_granted(200, 1)) << "overtaken on the way";
  EXPECT_FALSE(credit.on_granted(100, 2));
  credit.use(30);
  EXPECT_EQ(credit.left(), 70u);
  EXPECT_TRUE(credit.on_granted(20, 3));
  EXPECT_EQ(credit.left(), 0u);
}

TEST(SendCredit, TheFirstWordIsTakenUnlessALaterOneHasOvertakenIt) {
  SendCredit credit, late;
  credit.begin(8, 0);
  EXPECT_EQ(credit.left(), 8u);
  late.on_granted(20, 3);
  late.begin(8, 1);
  EXPECT_EQ(late.left(), 20u);
}

TEST(SendCredit, IsAskedForUntilSomethingLeaves) {
  SendCredit credit;
  EXPECT_FALSE(credit.is_to_be_asked_for()) << "nothing waits";
  credit.set_blocked();
  EXPECT_TRUE(credit.is_to_be_asked_for());
  credit.on_asked();
  EXPECT_FALSE(credit.is_to_be_asked_for()) << "time decides when to ask again";
  EXPECT_EQ(credit.asked(), 1u);
  credit.on_granted(100, 1);
  EXPECT_EQ(credit.asked(), 0u);
  EXPECT_TRUE(credit.blocked());
  credit.use(1);
  EXPECT_FALSE(credit.blocked());
  credit.use(99);
  credit.set_blocked();
  EXPECT_FALSE(credit.is_to_be_asked_for()) << "what has used it up has asked";
  credit.on_granted(200, 2);
  credit.on_granted(100, 3);
  credit.set_blocked();
  EXPECT_TRUE(credit.is_to_be_asked_for()) << "it was taken away";
}

}  // namespace
}  // namespace taco::harp
