// The small machines that a session is made of, each against its table of states.
#include <gtest/gtest.h>

#include <string>

#include "harp/session/delayed_ack.h"
#include "harp/session/flow.h"
#include "harp/session/handshake.h"
#include "harp/session/session_life.h"
#include "support/machine_table.h"

namespace taco::harp {
namespace {

TEST(SessionStates, FollowTheirTables) {
  using Life = SessionLife::State;
  expect_table<Life>({{Life::kActive, {Life::kLeaving, Life::kEnded}},
                      {Life::kLeaving, {Life::kSaidGoodbye, Life::kEnded}},
                      {Life::kSaidGoodbye, {Life::kEnded}},
                      {Life::kEnded, {}}});
  using Hello = Handshake::State;
  expect_table<Hello>({{Hello::kCalling, {Hello::kWaiting, Hello::kEstablished}},
                       {Hello::kWaiting, {Hello::kCalling, Hello::kEstablished}},
                       {Hello::kEstablished, {}}});
  using Ack = DelayedAck::State;
  expect_table<Ack>({{Ack::kNone, {Ack::kDelayed, Ack::kDue}},
                     {Ack::kDelayed, {Ack::kNone, Ack::kDue}},
                     {Ack::kDue, {Ack::kNone}}});
  using Lowering = CreditAccount::Lowering;
  expect_table<Lowering>({{Lowering::kNone, {Lowering::kUntold}},
                          {Lowering::kUntold, {Lowering::kNone, Lowering::kTold}},
                          {Lowering::kTold, {Lowering::kNone, Lowering::kUntold}}});
}

TEST(SessionLife, GoesFromActiveToEndedByWayOfAGoodbye) {
  SessionLife life;
  EXPECT_EQ(life.state(), SessionLife::State::kActive);
  EXPECT_FALSE(life.leaving() || life.owes_goodbye() || life.ended());
  life.leave();
  EXPECT_TRUE(life.leaving() && life.owes_goodbye());
  life.say_goodbye();
  EXPECT_TRUE(life.leaving());
  EXPECT_FALSE(life.owes_goodbye());
  EXPECT_TRUE(life.may_record()) << "goodbye itself is recorded";
  life.end();
  EXPECT_TRUE(life.ended());
  EXPECT_FALSE(life.leaving() || life.owes_goodbye() || life.may_record());
}

TEST(SessionLife, ThePeerMayLeaveAtAnyTime) {
  for (int steps = 0; steps < 3; ++steps) {
    SCOPED_TRACE(steps);
    SessionLife life;
    if (steps > 0) life.leave();
    if (steps > 1) life.say_goodbye();
    const SessionLife::State before = life.state();
    life.on_peer_left();
    EXPECT_EQ(life.state(), before);
    EXPECT_TRUE(life.peer_left());
    EXPECT_FALSE(life.may_record());
  }
}

TEST(DelayedAck, OneThatIsWantedLeavesAfterAWhile) {
  DelayedAck ack;
  ack.on_burst_end(kSecond);
  EXPECT_EQ(ack.state(), DelayedAck::State::kNone) << "nothing asked for it";
  EXPECT_EQ(ack.deadline(), kNever);
  ack.want();
  ack.on_burst_end(kSecond);
  EXPECT_EQ(ack.state(), DelayedAck::State::kDelayed);
  ack.want();
  ack.on_burst_end(kSecond + 1);
  EXPECT_EQ(ack.deadline(), kSecond + DelayedAck::kLongest) << "the first has waited longest";
  EXPECT_FALSE(ack.on_timer(ack.deadline() - 1));
  EXPECT_TRUE(ack.on_timer(ack.deadline()));
  EXPECT_EQ(ack.state(), DelayedAck::State::kDue);
  EXPECT_EQ(ack.deadline(), kNever);
}

TEST(DelayedAck, ManyPacketsOrOneThatIsWaitedForMakeItDue) {
  DelayedAck many, one;
  for (std::uint32_t i = 0; i < DelayedAck::kEvery; ++i) many.want();
  many.on_burst_end(kSecond);
  EXPECT_TRUE(many.due());
  one.want();
  one.on_burst_end(kSecond);
  one.hurry();
  one.on_burst_end(kSecond);
  EXPECT_TRUE(one.due());
}

// In the midst of a message or alone; with twice as many packets nothing is gained by waiting.
TEST(DelayedAck, TheEndOfAMessageIsAcknowledgedWithTheNextTurn) {
  for (const bool delayed : {false, true}) {
    DelayedAck ack;
    ack.want();
    if (delayed) ack.on_burst_end(kSecond);
    ack.hurry_next_turn();
    ack.on_burst_end(2 * kSecond);
    EXPECT_FALSE(ack.due()) << "nothing could take it along";
    const Time next = std::min(kSecond + DelayedAck::kLongest, 2 * kSecond + 1);
    EXPECT_EQ(ack.deadline(), delayed ? next : 2 * kSecond + 1);
    EXPECT_TRUE(ack.on_timer(ack.deadline()));
    ack.on_sent();
    ack.want();
    ack.on_burst_end(3 * kSecond);
    EXPECT_EQ(ack.deadline(), 3 * kSecond + DelayedAck::kLongest) << "that message was another";
  }
  DelayedAck many;
  for (std::uint32_t i = 0; i < 2 * DelayedAck::kEvery; ++i) many.want();
  many.hurry_next_turn();
  many.on_burst_end(kSecond);
  EXPECT_TRUE(many.due());
}

TEST(DelayedAck, FromEveryStateItBeginsAnewOnceItHasLeft) {
  for (int state = 0; state < 3; ++state) {
    SCOPED_TRACE(state);
    DelayedAck ack;
    ack.want();
    if (state == 1) ack.on_burst_end(kSecond);
    if (state == 2) ack.hurry();
    EXPECT_EQ(static_cast<int>(ack.state()), state);
    ack.on_sent();
    EXPECT_EQ(ack.state(), DelayedAck::State::kNone);
    EXPECT_FALSE(ack.wanted());
  }
}

// One side of a handshake, and hellos as its peer would say them.
struct HandshakeTest : ::testing::Test {
  HandshakeTest() : path(by(1)), elsewhere(by(2)), handshake(made({path})) {}
  static AddressPair by(std::uint32_t local) {
    AddressPair pair;
    pair.local = local;
    return pair;
  }
  static Handshake made(std::vector<AddressPair> ways) {
    return {kOurs, nonce(1), 9000, std::move(ways), kSecond};
  }
  static wire::Nonce nonce(int value) {
    wire::Nonce nonce;
    nonce.fill(static_cast<std::byte>(value));
    return nonce;
  }
  static wire::Hello hello(int from, int echo, std::uint64_t connection = kTheirs) {
    wire::Hello hello{};
    hello.sender_connection = connection;
    hello.sender_nonce = nonce(from);
    hello.target_nonce = nonce(echo);
    hello.max_datagram = 1472;
    return hello;
  }
  Handshake::Meaning hear(const wire::Hello& hello) {
    const Handshake::Meaning meaning = handshake.meaning_of(hello);
    if (meaning == Handshake::Meaning::kEstablishes) handshake.establish(hello);
    handshake.note(hello, path, 500);
    return meaning;
  }
  wire::Hello say(Time now) {
    wire::Hello said{};
    handshake.fill(said, handshake.due().pair);
    handshake.on_said(handshake.due(), now);
    return said;
  }
  static constexpr std::uint64_t kOurs = 11, kTheirs = 22;
  AddressPair path, elsewhere;
  Handshake handshake;
};

using Meaning = Handshake::Meaning;
using State = Handshake::State;

TEST_F(HandshakeTest, CallsAtIntervalsThatGrow) {
  EXPECT_EQ(handshake.state(), State::kCalling);
  EXPECT_FALSE(handshake.has_called());
  EXPECT_EQ(handshake.due().bytes, 9000u) << "padded, every second time";
  say(kSecond);
  EXPECT_EQ(handshake.state(), State::kWaiting);
  EXPECT_FALSE(handshake.is_due());
  EXPECT_EQ(handshake.next_call(true), kSecond + Handshake::kFirstInterval);
  EXPECT_FALSE(handshake.on_timer(true, handshake.next_call(true) - 1));
  EXPECT_TRUE(handshake.on_timer(true, handshake.next_call(true)));
  EXPECT_EQ(handshake.state(), State::kCalling);
  EXPECT_EQ(handshake.due().bytes, 0u);
  const auto say_again = [&](int times) {
    for (int i = 0; i < times; ++i) {
      handshake.on_timer(false, 100 * kSecond);
      say(2 * kSecond);
    }
  };
  say_again(5);
  EXPECT_EQ(handshake.next_call(true), 2 * kSecond + Handshake::kQuickInterval);
  say_again(1);
  EXPECT_EQ(handshake.next_call(true), 2 * kSecond + Handshake::kQuickInterval * 5 / 4);
  say_again(50);
  EXPECT_EQ(handshake.next_call(true), 2 * kSecond + Handshake::kLongestInterval);
  EXPECT_EQ(handshake.next_call(false), 2 * kSecond + Handshake::kIdleInterval);
}

TEST_F(HandshakeTest, ACallThatIsPutOffWaitsForItsTurn) {
  say(kSecond);
  handshake.put_off(9 * kSecond);
  EXPECT_EQ(handshake.next_call(true), 9 * kSecond);
  EXPECT_FALSE(handshake.on_timer(true, 9 * kSecond - 1));
  EXPECT_TRUE(handshake.on_timer(true, 9 * kSecond));
  say(9 * kSecond);
  EXPECT_EQ(handshake.next_call(true), 9 * kSecond + Handshake::kFirstInterval * 2);
}

TEST_F(HandshakeTest, IsEstablishedByItsOwnNonceAndByNothingElse) {
  for (const bool calling : {true, false}) {
    handshake = made({path});
    if (!calling) say(kSecond);
    EXPECT_EQ(hear(hello(2, 0)), Meaning::kHello);
    EXPECT_EQ(hear(hello(2, 3)), Meaning::kHello) << "of an older session's";
    wire::Hello challenge = hello(2, 1);
    challenge.flags = wire::kChallenge;
    EXPECT_EQ(hear(challenge), Meaning::kHello) << "of a session that will end";
    EXPECT_FALSE(handshake.established());
    EXPECT_EQ(handshake.peer_connection(), 0u);
    EXPECT_EQ(hear(hello(2, 1)), Meaning::kEstablishes);
    EXPECT_EQ(handshake.state(), State::kEstablished);
    EXPECT_EQ(handshake.peer_connection(), kTheirs);
    EXPECT_EQ(handshake.max_datagram(), 1472u);
  }
}

TEST_F(HandshakeTest, OnceEstablishedItOnlyAnswers) {
  hear(hello(2, 1));
  EXPECT_TRUE(handshake.is_due());
  const wire::Hello answer = say(kSecond);
  EXPECT_EQ(answer.flags, wire::kEstablished);
  EXPECT_EQ(answer.target_nonce, nonce(2));
  EXPECT_EQ(answer.target_connection, kTheirs);
  EXPECT_FALSE(handshake.is_due());
  EXPECT_FALSE(handshake.on_timer(true, 100 * kSecond));
  wire::Hello last = hello(2, 1);
  last.flags = wire::kEstablished;
  EXPECT_EQ(hear(last), Meaning::kHello);
  EXPECT_FALSE(handshake.is_due()) << "it needs none";
}

TEST_F(HandshakeTest, OfAnotherSessionOfThePeersItAsksForAProof) {
  hear(hello(2, 1));
  say(kSecond);
  EXPECT_EQ(hear(hello(5, 0, 55)), Meaning::kHello);
  EXPECT_EQ(say(kSecond).flags, wire::kChallenge);
  wire::Hello stale = hello(5, 1, 55);
  stale.flags = wire::kChallenge;
  EXPECT_EQ(handshake.meaning_of(stale), Meaning::kStale);
  EXPECT_EQ(handshake.meaning_of(hello(5, 1, 55)), Meaning::kBegunAnew);
  EXPECT_EQ(handshake.meaning_of(hello(2, 1, 55)), Meaning::kBegunAnew);
  EXPECT_EQ(handshake.meaning_of(hello(2, 1)), Meaning::kHello);
}

TEST_F(HandshakeTest, AnAnswerElsewhereIsNoCallOfItsOwn) {
  handshake.note(hello(2, 0), elsewhere, 300);
  const Handshake::Due due = handshake.due();
  EXPECT_TRUE(due.answer && due.pair == elsewhere);
  EXPECT_EQ(due.bytes, 300u) << "no longer than the question";
  EXPECT_TRUE(handshake.proved_by(elsewhere) == elsewhere);
  EXPECT_TRUE(handshake.proved_by(by(3)) == path) << "where our nonce has not been";
  handshake.on_said(due, kSecond);
  EXPECT_EQ(handshake.state(), State::kCalling);
  EXPECT_FALSE(handshake.due().answer);
}

TEST_F(HandshakeTest, CallsByAllWaysInTurn) {
  handshake = made({path, by(2), by(3)});
  std::vector<std::uint32_t> locals;
  std::vector<Duration> intervals;
  for (Time now = kSecond; locals.size() < 9;) {
    locals.push_back(handshake.due().pair.local);
    EXPECT_EQ(handshake.due().bytes, locals.size() <= 3 || locals.size() > 6 ? 9000u : 0u);
    say(now);
    intervals.push_back(handshake.next_call(true) - now);
    now = handshake.next_call(true);
    ASSERT_TRUE(handshake.on_timer(true, now));
  }
  EXPECT_EQ(locals, (std::vector<std::uint32_t>{1, 2, 3, 1, 2, 3, 1, 2, 3}));
  for (std::size_t i = 0; i < intervals.size(); ++i) {
    EXPECT_EQ(intervals[i], Handshake::kFirstInterval << (i / 3));
  }
}

TEST_F(HandshakeTest, BeginsByTheWayThatItsNonceHasTaken) {
  handshake = made({path, by(2), by(3)});
  EXPECT_TRUE(handshake.proved_by(by(2)) == path) << "nothing has left by that yet";
  say(kSecond);
  ASSERT_TRUE(handshake.on_timer(true, 2 * kSecond));
  say(2 * kSecond);
  EXPECT_TRUE(handshake.proved_by(by(2)) == by(2));
  EXPECT_TRUE(handshake.proved_by(by(3)) == path);
  for (const std::uint32_t local : {3u, 2u}) {  // where we answer, too
    handshake.note(hello(2, 0), by(local), 500);
    say(2 * kSecond);
  }
  EXPECT_TRUE(handshake.proved_by(by(3)) == by(3));
  AddressPair translated = by(2);
  translated.remote.size = 1;
  EXPECT_TRUE(handshake.proved_by(translated) == by(2));
  hear(hello(2, 1));
  const std::vector<AddressPair> others = handshake.take_other_ways(by(2));
  ASSERT_EQ(others.size(), 2u);
  EXPECT_TRUE(others[0] == path && others[1] == by(3));
  EXPECT_TRUE(handshake.ways().empty());
}

// A packet that arrives by one way says nothing about another one.
TEST_F(HandshakeTest, TellsOfTheSizesThatArriveByThatVeryWay) {
  handshake.note(hello(2, 0), elsewhere, 9000);
  wire::Hello said{};
  handshake.fill(said, elsewhere);
  EXPECT_EQ(said.largest_received, 9000u);
  handshake.fill(said, path);
  EXPECT_EQ(said.largest_received, 0u);
  handshake.note(hello(2, 0), path, 500);
  handshake.fill(said, path);
  EXPECT_EQ(said.largest_received, 500u);
}

// Who is answered is there; a call by another way could arrive before that, where nothing comes
// back.
TEST_F(HandshakeTest, AnAnswerByAnotherWayPutsACallOffOnce) {
  handshake = made({path, by(2)});
  EXPECT_FALSE(handshake.has_called());
  handshake.note(hello(2, 0), by(2), 300);
  say(2 * kSecond);
  EXPECT_TRUE(handshake.has_called());
  EXPECT_EQ(handshake.state(), State::kWaiting);
  EXPECT_EQ(handshake.next_call(true), 2 * kSecond + Handshake::kFirstInterval);
  handshake.note(hello(2, 0), by(2), 300);
  say(2 * kSecond + 4 * kMillisecond);
  EXPECT_EQ(handshake.next_call(true), 2 * kSecond + Handshake::kFirstInterval);
  EXPECT_TRUE(handshake.on_timer(true, handshake.next_call(true)));
  EXPECT_TRUE(handshake.due().pair == path);
}

}  // namespace
}  // namespace taco::harp
