// An owner of memory that ends, whatever its peer goes on to ask, and however much it leaves
// unfetched: nothing is open once it says so, and nothing opens after that.
#include <gtest/gtest.h>

#include <utility>

#include "support/remote_pair.h"
#include "support/still_transport.h"

namespace taco::remote {
namespace {

// Node 0 asks node 1 for one byte more, as often as it likes.
struct Asking {
  explicit Asking(RemotePair& which) : pair(which), memory(64), handle(pair.expose(1, memory)) {}
  void ask() {
    const Request request{.endpoint = RemotePair::id_of(1),
                          .from = RemotePair::id_of(0),
                          .number = ++number,
                          .action = Action::kRead,
                          .region = handle.region,
                          .offset = 0,
                          .bytes = 1,
                          .carried = {}};
    pair.ends[1]->hear_st(pair.cluster[1].id_of(0), request, pair.in_turn(1));
  }
  void stop() {
    pair.in_turn(1);
    pair.ends[1]->owner.stop_st(Status(Code::kAborted, "closed"), [this] { ++ended; });
  }
  MemoryOwner& owner() { return pair.ends[1]->owner; }

  RemotePair& pair;
  Bytes memory;
  Handle handle;
  std::uint64_t number = 0;
  int ended = 0;
};

// An owner over a transport that completes what the test completes.
struct StillOwner {
  void ask(std::uint64_t bytes) {
    const Request request{.endpoint = 100,
                          .from = 200,
                          .number = ++number,
                          .action = Action::kRead,
                          .region = handle.region,
                          .offset = 0,
                          .bytes = bytes,
                          .carried = {}};
    owner.take_st(request, transport);
  }
  void give_up() {
    const Status why(Code::kAborted, "closed");
    owner.stop_st(why, [this] { has_ended = true; });
    owner.abandon_st(why);
  }
  void complete(const std::vector<harp::SendRequest*>& sends) {
    for (harp::SendRequest* each : sends) each->on_done(*each, Status(Code::kAborted, "cut off"));
  }

  StillTransport transport;
  MemoryOwner owner{100};
  std::byte memory[64] = {};
  const Handle handle = owner.add_st(memory, sizeof memory, {});
  std::uint64_t number = 0;
  bool has_ended = false;
};

// In each turn one request more comes, before what was given up is over.
TEST(RemoteEnd, APeerThatKeepsAskingCannotKeepAnOwnerFromEnding) {
  StillOwner still;
  for (int i = 0; i < 10; ++i) still.ask(sizeof still.memory + 1);  // refused: answers are open
  EXPECT_EQ(still.transport.sends.size(), 10u);
  still.give_up();
  for (int turn = 0; turn < 1000 && !still.has_ended; ++turn) {
    const auto given_up = std::exchange(still.transport.sends, {});
    still.ask(1);
    still.complete(given_up);
  }
  EXPECT_TRUE(still.has_ended);
  EXPECT_TRUE(still.owner.is_idle_st());
}

// Bytes that move at that moment are cut off, and nobody is told of it.
TEST(RemoteEnd, WhatMovesWhenAnOwnerGivesUpIsNotAnsweredAfterIt) {
  StillOwner still;
  still.ask(sizeof still.memory);
  ASSERT_EQ(still.transport.sends.size(), 1u);
  still.give_up();
  EXPECT_FALSE(still.has_ended);
  still.complete(std::exchange(still.transport.sends, {}));
  EXPECT_TRUE(still.has_ended);
  EXPECT_TRUE(still.owner.is_idle_st());
  EXPECT_TRUE(still.transport.sends.empty());
}

// Between an owner's end and the moment that its caller takes it away.
TEST(RemoteEnd, ARequestThatComesAfterTheEndOpensNothing) {
  RemotePair pair(23);
  pair.connect_both();
  Asking asking(pair);
  asking.stop();
  EXPECT_EQ(asking.ended, 1);
  asking.ask();
  EXPECT_TRUE(asking.owner().is_idle_st());
}

// The peer that asked meanwhile learns of the end by the Parting.
TEST(RemoteEnd, WhatAnOwnerDroppedFailsAtItsPeerByTheParting) {
  RemotePair pair(24);
  pair.connect_both();
  Asking asking(pair);
  asking.stop();
  Noted& one = pair.start(0, Action::kRead, Bytes(10), asking.handle);
  EXPECT_FALSE(pair.cluster.run(pair.cluster.now() + kSecond, [&] { return one.calls > 0; }));
  pair.ends[1]->say_closed_st(pair.in_turn(1));
  pair.directories[1]->remove_st(*pair.ends[1]);
  const Status end = pair.run_one(one);
  EXPECT_EQ(end.code(), Code::kAborted) << end.message();
  EXPECT_NE(end.message().find("closed its endpoint"), std::string::npos) << end.message();
}

}  // namespace
}  // namespace taco::remote
