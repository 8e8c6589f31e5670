// Requests that an owner refuses, and reads and writes under way when a handle is revoked, an
// endpoint closed, or a process dies: each ends by an error that says why, and no byte is written
// where none belongs.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/remote_pair.h"

namespace taco::remote {
namespace {

constexpr std::size_t kBig = 4'000'000;

void expect_refused(const Status& status, Code code, const std::string& word) {
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("node 1"), std::string::npos) << status.message();
}

// Whether bytes of one that writes sevens into zeroes, or reads zeroes into sevens, have come.
bool has_moved_a_part(const Noted& one, const Bytes& memory) {
  if (one.action == Action::kWrite) return memory[kBig / 4] == std::byte{7};
  return one.local[kBig / 4] == std::byte{0};
}

struct Case {
  Action action;
  std::size_t bytes;
};
const Case kCases[] = {{Action::kWrite, 20}, {Action::kWrite, 50'000}, {Action::kRead, 50'000}};

TEST(RemoteFailure, NothingBeyondARegionIsReadOrWritten) {
  for (const Case& each : kCases) {
    RemotePair pair(1);
    pair.connect_both();
    Bytes memory = random_bytes(3 * each.bytes, 1);
    const Bytes before = memory;
    const Handle handle = pair.ends[1]->owner.add_st(memory.data() + each.bytes, each.bytes, {});
    for (const std::uint64_t offset : {std::uint64_t{1}, std::uint64_t{each.bytes},
                                       std::uint64_t{0} - 1, std::uint64_t{0} - each.bytes}) {
      Handle beyond = handle;  // as a peer may forge it
      beyond.offset = offset;
      Noted& one = pair.start(0, each.action, Bytes(each.bytes), beyond);
      expect_refused(pair.run_one(one), Code::kInvalidArgument, "exceed");
      EXPECT_TRUE(one.local == Bytes(each.bytes));
    }
    EXPECT_TRUE(memory == before);
  }
}

TEST(RemoteFailure, AHandleWithAnotherTokenOrOfNoRegionOpensNothing) {
  for (const Case& each : kCases) {
    RemotePair pair(2);
    pair.connect_both();
    Bytes memory = random_bytes(each.bytes, 1);
    const Bytes before = memory;
    Handle forged = pair.expose(1, memory);
    forged.region.token[15] ^= std::byte{1};
    expect_refused(pair.run_one(pair.start(0, each.action, Bytes(each.bytes), forged)),
                   Code::kInvalidArgument, "forged");
    forged.region.number += 1;
    expect_refused(pair.run_one(pair.start(0, each.action, Bytes(each.bytes), forged)),
                   Code::kInvalidArgument, "never was");
    EXPECT_TRUE(memory == before);
  }
}

TEST(RemoteFailure, ARevokedHandleIsRefusedByName) {
  for (const Case& each : kCases) {
    RemotePair pair(3);
    pair.connect_both();
    Bytes memory = random_bytes(each.bytes, 1), other = memory;
    const Bytes before = memory;
    const Handle handle = pair.expose(1, memory);
    const Handle kept = pair.expose(1, other);
    bool freed = false;
    pair.ends[1]->owner.revoke_st(handle.region.number, [&] { freed = true; });
    EXPECT_TRUE(freed);
    expect_refused(pair.run_one(pair.start(0, each.action, Bytes(each.bytes), handle)),
                   Code::kAborted, "memory 1 was revoked");
    EXPECT_TRUE(memory == before);
    EXPECT_TRUE(pair.run_one(pair.start(0, each.action, Bytes(each.bytes), kept)).ok());
  }
}

// From the moment that the owner is told that the region is free, it writes there itself. A request
// that comes before that, though after the end, is refused.
TEST(RemoteFailure, NothingTouchesARegionThatWasRevokedInTheMiddle) {
  for (const Action action : {Action::kWrite, Action::kRead}) {
    RemotePair pair(4);
    pair.connect_both();
    Bytes memory(kBig);
    const Handle handle = pair.expose(1, memory);
    Noted& one = pair.start(0, action, Bytes(kBig, std::byte{7}), handle);
    const Bytes late(8, std::byte{5});
    bool is_revoked = false;
    int freed = 0;
    ASSERT_TRUE(pair.run([&] { return freed > 0 && one.calls > 0; },
                         [&] {
                           if (is_revoked || !has_moved_a_part(one, memory)) return;
                           is_revoked = true;
                           harp::Transport& transport = pair.in_turn(1);
                           pair.ends[1]->owner.revoke_st(handle.region.number, [&] {
                             ++freed;
                             std::fill(memory.begin(), memory.end(), std::byte{9});
                           });
                           const Request request{.endpoint = pair.id_of(1),
                                                 .from = pair.id_of(0),
                                                 .number = 100,
                                                 .action = Action::kWrite,
                                                 .region = handle.region,
                                                 .offset = kBig - 8,
                                                 .bytes = 8,
                                                 .carried = late};
                           pair.ends[1]->hear_st(pair.cluster[1].id_of(0), request, transport);
                           EXPECT_FALSE(std::equal(late.begin(), late.end(), memory.end() - 8));
                         }));
    ASSERT_TRUE(is_revoked);
    expect_refused(one.outcome, Code::kAborted, "revoked");
    EXPECT_FALSE(pair.cluster.run(pair.cluster.now() + kSecond, [] { return false; }));
    EXPECT_EQ(freed, 1);
    EXPECT_TRUE(memory == Bytes(kBig, std::byte{9}));
    EXPECT_TRUE(pair.ends[0]->requester.is_idle_st());
  }
}

// More than may be on their way: the requests wait for them.
TEST(RemoteFailure, AnswersThatAreFetchedLateHoldRequestsBackAndLoseNone) {
  constexpr std::size_t kCount = 3 * kMaxRequests - 4;
  RemotePair pair(12);
  pair.connect_both();
  Bytes memory(kCount);
  const Handle handle = pair.expose(1, memory);
  const Bytes byte(1, std::byte{1});
  for (std::size_t i = 0; i < kCount; ++i) {
    const Request request{.endpoint = pair.id_of(1),
                          .from = pair.id_of(0),
                          .number = i + 1,
                          .action = Action::kWrite,
                          .region = handle.region,
                          .offset = i,
                          .bytes = 1,
                          .carried = byte};
    pair.ends[1]->hear_st(pair.cluster[1].id_of(0), request, pair.in_turn(1));
  }
  const auto written = std::count(memory.begin(), memory.end(), std::byte{1});
  EXPECT_EQ(written, static_cast<std::ptrdiff_t>(2 * kMaxRequests));
  std::vector<harp::RecvRequest> answers(kCount);
  std::vector<AnswerBytes> texts(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    answers[i].key = key_of_answer(pair.id_of(0), i + 1);
    answers[i].signature = signature_of_answer();
    answers[i].sink = harp::Sink::place(texts[i].data());
    answers[i].max_bytes = texts[i].size();
    answers[i].on_done = [](harp::RecvRequest&, const Status& status) { EXPECT_TRUE(status.ok()); };
    pair.in_turn(0).recv_st(pair.cluster[0].id_of(1), answers[i]);
  }
  EXPECT_TRUE(pair.run([&] { return pair.ends[1]->owner.is_idle_st(); }));
  EXPECT_TRUE(memory == Bytes(kCount, std::byte{1}));
}

TEST(RemoteFailure, ARequestThatIsRepeatedDoesNothing) {
  RemotePair pair(5);
  pair.connect_both();
  Bytes memory(8);
  const Handle handle = pair.expose(1, memory);
  const Bytes first(8, std::byte{1}), second(8, std::byte{2});
  Request request{.endpoint = pair.id_of(1),
                  .from = pair.id_of(0),
                  .number = 5,
                  .action = Action::kWrite,
                  .region = handle.region,
                  .offset = 0,
                  .bytes = 8,
                  .carried = first};
  pair.ends[1]->hear_st(pair.cluster[1].id_of(0), request, pair.in_turn(1));
  EXPECT_TRUE(memory == first);
  request.carried = second;
  for (const std::uint64_t number : {std::uint64_t{5}, std::uint64_t{4}}) {
    request.number = number;
    pair.ends[1]->hear_st(pair.cluster[1].id_of(0), request, pair.in_turn(1));
    EXPECT_TRUE(memory == first);
  }
}

TEST(RemoteFailure, AProcessThatIsNotThePeerGetsNothingWhateverItKnows) {
  RemotePair pair(6, {}, 3);
  pair.connect_both();
  Bytes memory = random_bytes(5000, 1);
  const Bytes before = memory;
  const Handle handle = pair.expose(1, memory);
  pair.connect(2, 1);  // which does not connect to it
  for (const Case& each : {Case{Action::kWrite, 20}, Case{Action::kRead, 5000}}) {
    Noted& stolen = pair.start(2, each.action, Bytes(each.bytes), handle);
    expect_refused(pair.run_one(stolen), Code::kAborted, "connected its endpoint to another one");
    EXPECT_TRUE(stolen.local == Bytes(each.bytes));
  }
  EXPECT_TRUE(memory == before);
  EXPECT_TRUE(pair.run_one(pair.start(0, Action::kRead, Bytes(5000), handle)).ok());
}

TEST(RemoteFailure, AClosedEndpointIsNamed) {
  RemotePair pair(7);
  pair.connect_both();
  Bytes memory(kBig);
  const Handle handle = pair.expose(1, memory);
  Noted& cut = pair.start(0, Action::kWrite, Bytes(kBig, std::byte{7}), handle);
  bool stopped = false, freed = false;
  ASSERT_TRUE(pair.run([&] { return freed && cut.calls > 0; },
                       [&] {
                         if (stopped || memory[kBig / 4] == std::byte{0}) return;
                         stopped = true;
                         pair.in_turn(1);
                         pair.ends[1]->owner.stop_st(Status(Code::kAborted, "closed"),
                                                     [&] { freed = true; });
                       }));
  EXPECT_EQ(cut.outcome.code(), Code::kAborted) << cut.outcome.message();
  pair.ends[1]->say_closed_st(pair.in_turn(1));
  pair.directories[1]->remove_st(*pair.ends[1]);
  ASSERT_TRUE(pair.run([&] { return pair.ends[0]->is_broken_st(); }));
  expect_refused(pair.run_one(pair.start(0, Action::kRead, Bytes(10), handle)), Code::kAborted,
                 "closed its endpoint");
}

TEST(RemoteFailure, AnEndpointThatIsNotThereIsNoReasonToWait) {
  RemotePair pair(8);
  pair.connect(0, 1);
  pair.directories[1]->remove_st(*pair.ends[1]);
  Bytes memory(10);
  const Handle handle = pair.expose(1, memory);
  expect_refused(pair.run_one(pair.start(0, Action::kRead, Bytes(10), handle)), Code::kAborted,
                 "closed its endpoint");
}

TEST(RemoteFailure, ADeadOwnerIsNamed) {
  for (const Action action : {Action::kWrite, Action::kRead}) {
    RemotePair pair(9);
    pair.connect_both();
    Bytes memory(kBig);
    const Handle handle = pair.expose(1, memory);
    Noted& one = pair.start(0, action, Bytes(kBig, std::byte{7}), handle);
    for (int i = 0; i < 100; ++i) pair.start(0, Action::kRead, Bytes(10), handle);  // some queue
    bool is_dead = false;
    ASSERT_TRUE(pair.run([&] { return pair.all_done(); },
                         [&] {
                           if (is_dead || !has_moved_a_part(one, memory)) return;
                           is_dead = true;
                           pair.cluster[1].die();
                         }));
    ASSERT_TRUE(is_dead);
    expect_refused(one.outcome, Code::kPeerLost, "node 1");
    ASSERT_NE(one.outcome.peer_loss(), nullptr);
    EXPECT_FALSE(one.outcome.peer_loss()->address.empty());
    EXPECT_TRUE(pair.ends[0]->is_broken_st());
    EXPECT_TRUE(pair.ends[0]->requester.is_idle_st());
  }
}

TEST(RemoteFailure, ADeadRequesterLeavesNothingBehind) {
  for (const Action action : {Action::kWrite, Action::kRead}) {
    RemotePair pair(10);
    pair.connect_both();
    Bytes memory(kBig);
    const Handle handle = pair.expose(1, memory);
    Noted& one = pair.start(0, action, Bytes(kBig, std::byte{7}), handle);
    bool is_dead = false;
    ASSERT_TRUE(pair.run([&] { return is_dead && pair.ends[1]->owner.is_idle_st(); },
                         [&] {
                           if (is_dead || !has_moved_a_part(one, memory)) return;
                           is_dead = true;
                           pair.cluster[0].die();
                         }));
    bool freed = false;
    pair.ends[1]->owner.revoke_st(handle.region.number, [&] { freed = true; });
    EXPECT_TRUE(freed);
    EXPECT_TRUE(pair.ends[1]->is_broken_st());
  }
}

TEST(RemoteFailure, WhatIsStartedAfterTheEndFailsAtOnce) {
  RemotePair pair(11);
  pair.connect_both();
  pair.ends[0]->requester.fail_st(Status(Code::kAborted, "over"));
  Noted& one = pair.start(0, Action::kRead, Bytes(10), Handle{});
  EXPECT_EQ(one.calls, 1);
  EXPECT_EQ(one.outcome.code(), Code::kAborted);
}

}  // namespace
}  // namespace taco::remote
