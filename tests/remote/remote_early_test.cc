// Requests that come before this side has connected, beside those of others who are not the peer:
// each is answered once it has, or told at once that it never will be. None is lost in silence.
#include <gtest/gtest.h>

#include "support/remote_pair.h"

namespace taco::remote {
namespace {

Request from_endpoint(std::uint64_t from, std::uint64_t number) {
  return {.endpoint = RemotePair::id_of(1),
          .from = from,
          .number = number,
          .action = Action::kRead,
          .region = {1, {}},
          .offset = 0,
          .bytes = 8,
          .carried = {}};
}

// `count` requests of that process's endpoint to node 1.
void ask_early(RemotePair& pair, std::uint32_t node, std::uint64_t from, std::uint64_t count) {
  for (std::uint64_t number = 1; number <= count; ++number) {
    pair.ends[1]->hear_st(pair.cluster[1].id_of(node), from_endpoint(from, number),
                          pair.in_turn(1));
  }
}

TEST(RemoteEarly, OthersWhoAskEarlyTakeNoPlaceOfThePeers) {
  RemotePair pair(31, {}, 3);
  ask_early(pair, 2, RemotePair::id_of(2), 10 * kMaxRequests);
  for (std::uint64_t from = 5000; from < 5100; ++from) ask_early(pair, 2, from, 1);
  pair.connect(0, 1);
  Bytes memory = random_bytes(5000, 1);
  const Handle handle = pair.expose(1, memory);
  std::vector<Noted*> asked;
  for (std::size_t i = 0; i < kMaxRequests; ++i)
    asked.push_back(&pair.start(0, Action::kRead, Bytes(5000), handle));
  const auto is_heard = [&] { return asked.back()->calls > 0; };
  EXPECT_FALSE(pair.cluster.run(pair.cluster.now() + kSecond, is_heard));
  pair.connect(1, 0);
  ASSERT_TRUE(pair.run([&] { return pair.all_done(); }));
  for (const Noted* each : asked) {
    EXPECT_TRUE(each->outcome.ok()) << each->outcome.message();
    EXPECT_TRUE(each->local == memory);
  }
}

// All that one can have open, and that it is closed.
TEST(RemoteEarly, AFullPeersEndIsHeardToo) {
  RemotePair pair(32);
  ask_early(pair, 0, RemotePair::id_of(0), kMaxRequests);
  pair.ends[1]->hear_st(pair.cluster[1].id_of(0),
                        Parting{RemotePair::id_of(1), RemotePair::id_of(0), Parting::Why::kClosed},
                        pair.in_turn(1));
  EXPECT_FALSE(pair.ends[1]->is_broken_st());
  pair.connect(1, 0);
  EXPECT_TRUE(pair.ends[1]->is_broken_st());
}

TEST(RemoteEarly, WhomThereIsNoPlaceForIsToldSo) {
  RemotePair pair(33, {}, 12);
  for (std::uint32_t node = 2; node < 12; ++node) {
    ask_early(pair, node, 7000 + node, 1);
    ask_early(pair, node, 8000 + node, 1);
  }
  pair.connect(0, 1);
  Bytes memory(10);
  Noted& one = pair.start(0, Action::kRead, Bytes(10), pair.expose(1, memory));
  const Status end = pair.run_one(one);
  EXPECT_EQ(end.code(), Code::kAborted) << end.message();
  EXPECT_NE(end.message().find("had not connected"), std::string::npos) << end.message();
  EXPECT_NE(end.message().find("node 1"), std::string::npos) << end.message();
}

TEST(RemoteEarly, WhoHasEndedLeavesItsPlace) {
  RemotePair pair(34, {}, 12);
  for (std::uint32_t node = 2; node < 12; ++node) {
    ask_early(pair, node, 7000 + node, 1);
    ask_early(pair, node, 8000 + node, 1);
    pair.directories[1]->on_peer_left_st(pair.cluster[1].id_of(node));
  }
  pair.connect(0, 1);
  Bytes memory = random_bytes(10, 1);
  Noted& one = pair.start(0, Action::kRead, Bytes(10), pair.expose(1, memory));
  EXPECT_FALSE(pair.cluster.run(pair.cluster.now() + kSecond, [&] { return one.calls > 0; }));
  pair.connect(1, 0);
  const Status end = pair.run_one(one);
  EXPECT_TRUE(end.ok()) << end.message();
  EXPECT_TRUE(one.local == memory);
}

TEST(RemoteEarly, AProcessMayTryAsOftenAsItLikes) {
  RemotePair pair(37);
  const harp::PeerId peer = pair.cluster[1].id_of(0);
  for (std::uint64_t from = 5000; from < 5100; ++from) {
    ask_early(pair, 0, from, 1);
    const Parting closed{RemotePair::id_of(1), from, Parting::Why::kClosed};
    pair.ends[1]->hear_st(peer, closed, pair.in_turn(1));
  }
  pair.connect(0, 1);
  Bytes memory = random_bytes(10, 1);
  Noted& one = pair.start(0, Action::kRead, Bytes(10), pair.expose(1, memory));
  const auto is_over = [&] { return one.calls > 0; };
  EXPECT_FALSE(pair.cluster.run(pair.cluster.now() + kSecond, is_over));
  pair.connect(1, 0);
  const Status end = pair.run_one(one);
  EXPECT_TRUE(end.ok()) << end.message();
}

TEST(RemoteEarly, AnEndpointThatClosesWithoutAPeerTellsThoseWhoHaveAsked) {
  RemotePair pair(36);
  pair.connect(0, 1);
  Bytes memory(10);
  Noted& one = pair.start(0, Action::kRead, Bytes(10), pair.expose(1, memory));
  const auto is_over = [&] { return one.calls > 0; };
  EXPECT_FALSE(pair.cluster.run(pair.cluster.now() + kSecond, is_over));
  pair.ends[1]->say_closed_st(pair.in_turn(1));
  pair.directories[1]->remove_st(*pair.ends[1]);
  const Status end = pair.run_one(one);
  EXPECT_EQ(end.code(), Code::kAborted) << end.message();
  EXPECT_NE(end.message().find("closed its endpoint"), std::string::npos) << end.message();
}

// One that asks more than the rules allow is told once, however much it asks.
TEST(RemoteEarly, WhoAsksTooMuchIsTold) {
  RemotePair pair(35);
  pair.connect(0, 1);
  ask_early(pair, 0, RemotePair::id_of(0), 10 * kMaxRequests);
  Noted& one = pair.start(0, Action::kRead, Bytes(10), Handle{});
  EXPECT_EQ(pair.run_one(one).code(), Code::kAborted) << one.outcome.message();
  EXPECT_FALSE(pair.ends[0]->is_broken_st());
}

}  // namespace
}  // namespace taco::remote
