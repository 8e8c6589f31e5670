// Ranks that disagree, come late, die or leave: everybody gets the same reason, and nobody hangs.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <random>
#include <string>
#include <thread>

#include "harp/engine/engine_call.h"
#include "pg/execution/signature.h"
#include "pg/group/notice.h"
#include "support/eventually.h"
#include "support/pg_values.h"
#include "support/rank_threads.h"

namespace taco::pg {
namespace {

using kernels::Dtype;
using kernels::ReduceOp;
using testing::Bytes;
using testing::eventually;
using testing::on_threads;
using testing::piece;
using testing::RankThreads;
using testing::values;

struct Call {
  Bytes in, out;
  std::vector<Bytes> blocks;
  OperationSpec spec;
};

// One operation with memory of its own. `count` elements in, by the kind's own rules.
std::unique_ptr<Call> make_call(Kind kind, Dtype dtype, ReduceOp op, std::size_t count, int root,
                                int rank, int world) {
  auto call = std::make_unique<Call>();
  call->spec = {.kind = kind, .dtype = dtype, .op = op, .root = root};
  call->in = values(dtype, count, rank);
  call->out.resize(call->in.size());
  OperationSpec& spec = call->spec;
  for (int r = 0; r < world; ++r) call->blocks.push_back(values(dtype, count, rank));
  std::vector<Piece> list;
  for (Bytes& block : call->blocks) list.push_back(piece(block));
  const bool is_root = rank == root;
  switch (kind) {
    case Kind::kAllReduce:
    case Kind::kReduce:
      spec.inputs = {piece(call->in)};
      spec.outputs = {piece(call->out)};
      break;
    case Kind::kBroadcast:
      spec.outputs = {piece(call->in)};
      break;
    case Kind::kAllGather:
      spec.inputs = {piece(call->in)};
      spec.outputs = list;
      break;
    case Kind::kReduceScatter:
      spec.inputs = list;
      spec.outputs = {piece(call->out)};
      break;
    case Kind::kGather:
      spec.inputs = {piece(call->in)};
      if (is_root) spec.outputs = list;
      break;
    case Kind::kScatter:
      if (is_root) spec.inputs = list;
      spec.outputs = {piece(call->out)};
      break;
    case Kind::kAllToAll:
      spec.inputs = list;
      for (Bytes& block : call->blocks) block.reserve(block.size());
      call->out.resize(call->in.size() * world);
      for (int r = 0; r < world; ++r)
        spec.outputs.push_back({call->out.data() + r * call->in.size(), call->in.size()});
      break;
    default:
      break;
  }
  return call;
}

Status run_call(Communicator& group, Call& call) {
  Result<OperationPtr> operation = group.start(call.spec);
  return operation.ok() ? (*operation)->wait(0) : operation.status();
}

// Waits until the group knows of its failure, by starting nothing: as long as 10 s.
Status failure_of(Communicator& group) {
  eventually([&] { return !group.error().ok(); });
  return group.error();
}

// Requests of operations that ended are cancelled on the engines' next turns.
bool everything_ends(RankThreads& ranks) {
  return eventually([&] { return ranks.network().open_requests() == 0; });
}

// Operations that are to time out here: by far longer than a busy machine keeps a rank from
// starting.
constexpr Duration kShortTimeout = 3 * kSecond;

// Whether the members' answers came within the moment that the error waits for them, which a busy
// machine may take from them: what was tried says less then, and is to be tried again.
bool lacks_answers(const std::string& text) {
  return text.find("No answer from ranks") != std::string::npos;
}
constexpr int kTries = 5;

struct Disagreement {
  const char* name;
  Kind kinds[2];
  Dtype dtypes[2] = {Dtype::kF32, Dtype::kF32};
  ReduceOp ops[2] = {ReduceOp::kSum, ReduceOp::kSum};
  std::size_t counts[2] = {40, 40};
  int roots[2] = {0, 0};
};

const Disagreement kDisagreements[] = {
    {.name = "shape", .kinds = {Kind::kAllReduce, Kind::kAllReduce}, .counts = {4, 3}},
    {.name = "shape, large",
     .kinds = {Kind::kAllReduce, Kind::kAllReduce},
     .counts = {50'000, 40'000}},
    {.name = "dtype",
     .kinds = {Kind::kAllReduce, Kind::kAllReduce},
     .dtypes = {Dtype::kF32, Dtype::kI32}},
    {.name = "op",
     .kinds = {Kind::kReduceScatter, Kind::kReduceScatter},
     .ops = {ReduceOp::kSum, ReduceOp::kMax}},
    {.name = "kind", .kinds = {Kind::kAllReduce, Kind::kBroadcast}},
    {.name = "kind, barrier", .kinds = {Kind::kBarrier, Kind::kAllGather}},
    {.name = "root", .kinds = {Kind::kBroadcast, Kind::kBroadcast}, .roots = {0, 1}},
    {.name = "broadcast's shape", .kinds = {Kind::kBroadcast, Kind::kBroadcast}, .counts = {4, 5}},
    {.name = "gather's shape", .kinds = {Kind::kGather, Kind::kGather}, .counts = {4, 5}},
    {.name = "gather's dtype",
     .kinds = {Kind::kGather, Kind::kGather},
     .dtypes = {Dtype::kF32, Dtype::kI32}},
    {.name = "all_to_all's shape", .kinds = {Kind::kAllToAll, Kind::kAllToAll}, .counts = {40, 41}},
};

TEST(Mismatch, EveryKindIsCaughtOnEveryRankAndShowsBothSides) {
  for (const Disagreement& d : kDisagreements) {
    for (const std::uint64_t seed : {0, 1, 2}) {
      for (const int odd : {0, 2}) {  // the rank that disagrees
        SCOPED_TRACE(std::string(d.name) + ", seed " + std::to_string(seed) + ", odd rank " +
                     std::to_string(odd));
        RankThreads ranks({.world = 3, .seed = seed});
        ranks.run([&](int rank, Communicator& group) {
          const int i = rank == odd;
          auto call =
              make_call(d.kinds[i], d.dtypes[i], d.ops[i], d.counts[i], d.roots[i], rank, 3);
          Status status = run_call(group, *call);
          // A rank whose part was done already hears of it by the group.
          if (status.ok()) status = failure_of(group);
          EXPECT_EQ(status.code(), Code::kMismatch) << "rank " << rank << ": " << status.message();
          EXPECT_NE(status.message().find("rank " + std::to_string(odd)), std::string::npos)
              << status.message();
        });
        EXPECT_TRUE(everything_ends(ranks));
      }
    }
  }
}

TEST(Mismatch, AnAllToAllWhoseSplitsDisagreeIsCaught) {
  for (const std::uint64_t seed : {0, 1, 2, 3}) {
    RankThreads ranks({.world = 2, .seed = seed});
    ranks.run([&](int rank, Communicator& group) {
      Bytes in(8), out(rank == 0 ? 8 : 4);  // rank 0 sends 4 bytes where rank 1 expects none
      OperationSpec spec{.kind = Kind::kAllToAll, .dtype = Dtype::kU8};
      spec.inputs = {{in.data(), 4}, {in.data() + 4, 4}};
      spec.outputs = rank == 0 ? std::vector<Piece>{{out.data(), 4}, {out.data() + 4, 4}}
                               : std::vector<Piece>{{nullptr, 0}, {out.data(), 4}};
      auto operation = group.start(spec);
      Status status = operation.ok() ? (*operation)->wait(0) : operation.status();
      if (status.ok()) status = failure_of(group);
      EXPECT_EQ(status.code(), Code::kMismatch) << status.message();
    });
  }
}

TEST(Mismatch, TheNextOperationCarriesIt) {
  RankThreads ranks({.world = 2});
  ranks.run([&](int rank, Communicator& group) {
    auto call =
        make_call(Kind::kBroadcast, Dtype::kF32, ReduceOp::kSum, rank == 0 ? 4 : 5, 0, rank, 2);
    const Status first = run_call(group, *call);
    if (rank == 1) {
      EXPECT_EQ(first.code(), Code::kMismatch);
    }
    ASSERT_FALSE(failure_of(group).ok());
    auto next = make_call(Kind::kBarrier, Dtype::kF32, ReduceOp::kSum, 0, 0, rank, 2);
    const Status second = run_call(group, *next);
    EXPECT_EQ(second.code(), Code::kMismatch);
    EXPECT_NE(second.message().find("broadcast float32 x 4"), std::string::npos)
        << second.message();
    EXPECT_NE(second.message().find("broadcast float32 x 5"), std::string::npos);
  });
}

// Ranks 2 and 3 have done their part of operation 1, a gather to rank 0, and disagree about
// operation 2, which rank 0 and rank 1, who is late, come to know while operation 1 is open.
struct SecondDisputed {
  explicit SecondDisputed(RankThreads& ranks) {
    for (int rank = 0; rank < 4; ++rank)
      gathers.push_back(make_call(Kind::kGather, Dtype::kF32, ReduceOp::kSum, 4, 0, rank, 4));
    root = *ranks.group(0).start(gathers[0]->spec);
    for (const int rank : {2, 3}) {
      EXPECT_TRUE(run_call(ranks.group(rank), *gathers[rank]).ok());
      const Dtype dtype = rank == 2 ? Dtype::kF32 : Dtype::kI32;
      second.push_back(make_call(Kind::kAllReduce, dtype, ReduceOp::kSum, 4, 0, rank, 4));
      open.push_back(*ranks.group(rank).start(second.back()->spec));
    }
    for (int rank = 0; rank < 4; ++rank)
      EXPECT_EQ(failure_of(ranks.group(rank)).code(), Code::kMismatch);
    for (const OperationPtr& operation : open)
      EXPECT_EQ(operation->wait(0).code(), Code::kMismatch);
  }
  std::vector<std::unique_ptr<Call>> gathers, second;
  OperationPtr root;
  std::vector<OperationPtr> open;
};

TEST(Mismatch, EarlierOperationsComplete) {
  for (const std::uint64_t seed : {0, 1, 2, 3}) {
    RankThreads ranks({.world = 4, .seed = seed, .algorithm = "gather=direct"});
    SecondDisputed about_two(ranks);
    EXPECT_FALSE(about_two.root->done());
    const Status late = run_call(ranks.group(1), *about_two.gathers[1]);  // not even begun there
    EXPECT_TRUE(late.ok()) << late.message();
    const Status own = about_two.root->wait(0);
    EXPECT_TRUE(own.ok()) << own.message();
    for (int rank = 0; rank < 4; ++rank)
      EXPECT_EQ(about_two.gathers[0]->blocks[rank], values(Dtype::kF32, 4, rank));
    for (int rank = 0; rank < 4; ++rank) {
      auto next = make_call(Kind::kBarrier, Dtype::kF32, ReduceOp::kSum, 0, 0, rank, 4);
      EXPECT_EQ(run_call(ranks.group(rank), *next).code(), Code::kMismatch);
    }
    EXPECT_TRUE(everything_ends(ranks));
  }
}

TEST(Mismatch, AnAbortStillEndsWhatIsEarlier) {
  RankThreads ranks({.world = 4, .algorithm = "gather=direct"});
  SecondDisputed about_two(ranks);
  ranks.group(1).abort(Status(Code::kAborted, "enough"));
  EXPECT_FALSE(about_two.root->wait(0).ok());
  EXPECT_FALSE(run_call(ranks.group(1), *about_two.gathers[1]).ok());
  EXPECT_TRUE(everything_ends(ranks));
}

TEST(Mismatch, ALossStillEndsWhatIsEarlier) {
  RankThreads ranks({.world = 4, .algorithm = "gather=direct"});
  SecondDisputed about_two(ranks);
  ranks.network().kill(1);
  const Status status = about_two.root->wait(0);
  EXPECT_EQ(status.code(), Code::kPeerLost) << status.message();
  EXPECT_TRUE(everything_ends(ranks));
}

TEST(Mismatch, ARankThatLeavesEndsWhatNeedsIt) {
  RankThreads ranks({.world = 4, .algorithm = "gather=direct"});
  SecondDisputed about_two(ranks);
  ranks.network().stack(1)->close();
  const Status status = about_two.root->wait(0);
  EXPECT_EQ(status.code(), Code::kPeerLost) << status.message();
}

TEST(Mismatch, EarlierOperationsKeepTheirTimeout) {
  Status status;
  for (int i = 0; i == 0 || (i < kTries && lacks_answers(status.message())); ++i) {
    RankThreads ranks({.world = 4, .timeout = kShortTimeout, .algorithm = "gather=direct"});
    SecondDisputed about_two(ranks);
    status = about_two.root->wait(0);
  }
  EXPECT_EQ(status.code(), Code::kTimeout) << status.message();
  EXPECT_NE(status.message().find("not arrived: ranks 1"), std::string::npos) << status.message();
}

// A rank that hears of the failure by a send or receive may stop there: nobody waits for it then.
TEST(Mismatch, WhatARankHasNotBegunEndsWhenItHearsOfItOtherwise) {
  RankThreads ranks({.world = 4, .algorithm = "gather=direct"});
  SecondDisputed about_two(ranks);
  float value = 0;
  OperationSpec receive{.kind = Kind::kRecv, .dtype = Dtype::kF32, .root = 0};
  receive.outputs = {{reinterpret_cast<std::byte*>(&value), sizeof value}};
  Result<OperationPtr> started = ranks.group(1).start(receive);
  ASSERT_TRUE(started.ok());
  EXPECT_EQ((*started)->wait(0).code(), Code::kMismatch);
  EXPECT_EQ(about_two.root->wait(0).code(), Code::kMismatch);
}

TEST(Mismatch, AMessageSentBeforeItIsReceived) {
  RankThreads ranks({.world = 4, .algorithm = "gather=direct"});
  float sent = 7, got = 0;
  OperationSpec send{.kind = Kind::kSend, .dtype = Dtype::kF32, .root = 1};
  send.inputs = {{reinterpret_cast<std::byte*>(&sent), sizeof sent}};
  ASSERT_TRUE((*ranks.group(2).start(send))->wait(0).ok());
  SecondDisputed about_two(ranks);
  OperationSpec receive{.kind = Kind::kRecv, .dtype = Dtype::kF32, .root = 2};
  receive.outputs = {{reinterpret_cast<std::byte*>(&got), sizeof got}};
  const Status status = (*ranks.group(1).start(receive))->wait(0);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(got, sent);
  EXPECT_TRUE(run_call(ranks.group(1), *about_two.gathers[1]).ok());
  EXPECT_TRUE(about_two.root->wait(0).ok());
}

// Ranks 0 and 1 start an operation, the others do not: what those two hear.
std::array<Status, 2> statuses_without_two_and_three() {
  std::array<Status, 2> statuses;
  RankThreads ranks({.world = 4, .timeout = kShortTimeout});
  ranks.run([&](int rank, Communicator& group) {
    auto warm_up = make_call(Kind::kBroadcast, Dtype::kF32, ReduceOp::kSum, 10, 0, rank, 4);
    warm_up->spec.timeout = 20 * kSecond;
    ASSERT_TRUE(run_call(group, *warm_up).ok());
    if (rank >= 2) {
      const Status status = failure_of(group);
      EXPECT_EQ(status.code(), Code::kTimeout);
      return;
    }
    auto call = make_call(Kind::kAllReduce, Dtype::kF32, ReduceOp::kSum, 1000, 0, rank, 4);
    statuses[rank] = run_call(group, *call);
  });
  return statuses;
}

TEST(Timeout, NamesWhoHasArrivedAndWhoHasNot) {
  std::array<Status, 2> statuses = statuses_without_two_and_three();
  for (int i = 1; i < kTries && lacks_answers(statuses[0].message()); ++i)
    statuses = statuses_without_two_and_three();
  for (const Status& status : statuses) {
    EXPECT_EQ(status.code(), Code::kTimeout);
    for (const char* part : {"all_reduce SUM float32 x 1000 (sequence 2)", "4000 bytes",
                             " Timed out ", "Arrived: ranks 0, 1; not arrived: ranks 2, 3",
                             "Rank 3 has last started broadcast float32 x 10 root 0 (sequence 1)"})
      EXPECT_NE(status.message().find(part), std::string::npos) << part << "\n" << status.message();
  }
}

// After an outage an answer may arrive that is about an operation long ended, while the same
// question is open about the next.
TEST(Mismatch, ALateAnswerAboutAnEndedOperationAccusesNobody) {
  RankThreads ranks({.world = 2});
  std::uint64_t ended = 0;
  ranks.run([&](int rank, Communicator& group) {
    auto call = make_call(Kind::kBroadcast, Dtype::kI32, ReduceOp::kSum, 10, 0, rank, 2);
    if (rank == 0) ended = signature_of(call->spec);
    EXPECT_TRUE(run_call(group, *call).ok());
  });
  auto call = make_call(Kind::kAllReduce, Dtype::kF32, ReduceOp::kSum, 8, 0, 0, 2);
  const std::uint64_t asked_before = ranks.network().notices(0, 1);
  OperationPtr waiting = *ranks.group(0).start(call->spec);
  ASSERT_TRUE(
      eventually([&] { return ranks.network().notices(0, 1) > asked_before; }, 20 * kSecond))
      << "rank 0 does not ask";
  Notice late;
  late.kind = NoticeKind::kArrivalReport;
  late.group = ranks.group(0).options().id;
  late.asked = late.sequence = 1;
  late.signature = late.asked_signature = ended;
  late.done = true;
  const auto stack = ranks.network().stack(1);
  ASSERT_TRUE(call_on_engine(
      stack->engine(),
      [&](harp::Transport& transport) {
        transport.notify_st(testing::LoopbackNetwork::peer_of(0), encode(late));
      },
      monotonic_now() + 20 * kSecond));
  auto other = make_call(Kind::kAllReduce, Dtype::kF32, ReduceOp::kSum, 8, 0, 1, 2);
  const Status status = run_call(ranks.group(1), *other);
  EXPECT_TRUE(status.ok()) << status.message();
  const Status here = waiting->wait(0);
  EXPECT_TRUE(here.ok()) << here.message();
}

// A question to another rank, and the answer, may overtake the message that is waited for.
TEST(Mismatch, AnAnswerThatOvertakesTheDataAccusesNobody) {
  RankThreads ranks({.world = 2});
  testing::LoopbackNetwork& network = ranks.network();
  auto early = make_call(Kind::kAllReduce, Dtype::kF32, ReduceOp::kSum, 8, 0, 0, 2);
  auto late = make_call(Kind::kAllReduce, Dtype::kF32, ReduceOp::kSum, 8, 0, 1, 2);
  network.hold(1, 0, true);
  OperationPtr waiting = *ranks.group(0).start(early->spec);
  const Status there = run_call(ranks.group(1), *late);
  EXPECT_TRUE(there.ok()) << there.message();
  const std::uint64_t answers = network.notices(1, 0);
  ASSERT_TRUE(eventually(
      [&] { return network.notices(1, 0) > answers && network.unheard(1, 0) == 0; }, 20 * kSecond))
      << "rank 1 is not asked";
  network.hold(1, 0, false);
  const Status here = waiting->wait(0);
  EXPECT_TRUE(here.ok()) << here.message();
}

TEST(Timeout, ASilentRankIsSaidNotToAnswer) {
  RankThreads ranks({.world = 2, .timeout = 100 * kMillisecond});
  ranks.network().silence(1, 0);
  auto call = make_call(Kind::kAllReduce, Dtype::kF32, ReduceOp::kSum, 8, 0, 0, 2);
  const Status status = run_call(ranks.group(0), *call);
  EXPECT_EQ(status.code(), Code::kTimeout);
  EXPECT_NE(status.message().find("No answer from ranks 1"), std::string::npos) << status.message();
}

TEST(Timeout, AFiniteWaitReturnsWhileTheOperationGoesOn) {
  RankThreads ranks({.world = 2});
  auto call = make_call(Kind::kAllReduce, Dtype::kF32, ReduceOp::kSum, 8, 0, 0, 2);
  OperationPtr operation = *ranks.group(0).start(call->spec);
  const Status early = operation->wait(30 * kMillisecond);
  EXPECT_EQ(early.code(), Code::kTimeout);
  EXPECT_NE(early.message().find("Timed out waiting 30ms"), std::string::npos);
  auto other = make_call(Kind::kAllReduce, Dtype::kF32, ReduceOp::kSum, 8, 0, 1, 2);
  EXPECT_TRUE(run_call(ranks.group(1), *other).ok());
  EXPECT_TRUE(operation->wait(0).ok());
}

TEST(PeerLoss, GroupsWithoutTheVictimGoOn) {
  RankThreads ranks({.world = 4});
  auto pair = ranks.make_group({1, 2}, "survivors");
  ranks.network().kill(3);
  ranks.run([&](int rank, Communicator& group) {
    const Status status = failure_of(group);
    ASSERT_EQ(status.code(), Code::kPeerLost);
    if (rank == 1 || rank == 2) {
      ASSERT_NE(status.peer_loss(), nullptr);
      EXPECT_EQ(status.peer_loss()->rank, 3);
      auto call = make_call(Kind::kAllReduce, Dtype::kF32, ReduceOp::kSum, 1000, 0, rank - 1, 2);
      const Status other = run_call(*pair[rank - 1], *call);
      EXPECT_TRUE(other.ok()) << other.message();
    }
  });
}

TEST(PeerLoss, AnAccusationReachesThoseWhoHeardNothingAndTheAccused) {
  RankThreads ranks({.world = 4});
  ranks.network().cut(0, 3);  // 1 and 2 still hear both
  for (const int rank : {1, 2}) {
    const Status status = failure_of(ranks.group(rank));
    ASSERT_EQ(status.code(), Code::kPeerLost);
    EXPECT_NE(status.message().find("reported by rank"), std::string::npos) << status.message();
  }
  // Whichever end notices first accuses the other, who either has found out by itself or hears it.
  for (const int rank : {0, 3}) {
    const Status status = failure_of(ranks.group(rank));
    ASSERT_EQ(status.code(), Code::kPeerLost);
    const bool accused = status.message().find("reported by rank") != std::string::npos;
    EXPECT_EQ(status.peer_loss()->rank, accused ? rank : 3 - rank) << status.message();
  }
}

TEST(PeerLoss, AGroupMadeWithALostMemberFailsAtOnce) {
  RankThreads ranks({.world = 3});
  ranks.network().kill(2);
  ASSERT_FALSE(failure_of(ranks.group(0)).ok());
  auto late = ranks.make_group({2, 0}, "late");
  EXPECT_EQ(late[1]->error().code(), Code::kPeerLost);
  EXPECT_EQ(late[1]->error().peer_loss()->rank, 0);
}

TEST(PeerLoss, GoodbyeFailsOnlyWhatNeedsTheLeaver) {
  RankThreads ranks({.world = 3});
  auto pair = ranks.make_group({0, 1}, "pair");
  ranks.network().stack(2)->close();
  on_threads(2, [&](int rank) {
    auto fine = make_call(Kind::kAllReduce, Dtype::kF32, ReduceOp::kSum, 1000, 0, rank, 2);
    EXPECT_TRUE(run_call(*pair[rank], *fine).ok());
    auto call = make_call(Kind::kAllReduce, Dtype::kF32, ReduceOp::kSum, 1000, 0, rank, 3);
    const Status status = run_call(ranks.group(rank), *call);
    EXPECT_EQ(status.code(), Code::kPeerLost) << status.message();
    ASSERT_NE(status.peer_loss(), nullptr);
    EXPECT_EQ(status.peer_loss()->rank, 2);
  });
}

// Everyone works at random; one rank goes dark at a random moment.
void run_campaign(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const int world = 2 + static_cast<int>(random() % 5);
  const int victim = static_cast<int>(random() % world);
  const bool hosts = random() % 2 == 0;
  const auto delay = std::chrono::microseconds(random() % 4000);
  const std::uint64_t plan = random();
  RankThreads ranks(
      {.world = world, .seed = seed % 3 == 0 ? 0 : seed, .ranks_per_host = hosts ? 2 : 0});
  std::thread killer([&] {
    std::this_thread::sleep_for(delay);
    ranks.network().kill(victim);
  });
  ranks.run([&](int rank, Communicator& group) {
    std::mt19937_64 moves(plan);  // the same on every rank
    Status status;
    std::vector<std::unique_ptr<Call>> calls;
    const Time limit = monotonic_now() + 15 * kSecond;
    while (status.ok() && monotonic_now() < limit) {
      std::vector<OperationPtr> open;
      for (std::uint64_t n = 1 + moves() % 3; n > 0; --n) {
        const Kind kind = static_cast<Kind>(moves() % 9);
        const std::size_t count = moves() % 2 == 0 ? moves() % 50 : moves() % 20'000;
        const int root = static_cast<int>(moves() % world);
        calls.push_back(make_call(kind, Dtype::kF32, ReduceOp::kSum, count, root, rank, world));
        auto operation = group.start(calls.back()->spec);
        if (operation.ok()) {
          open.push_back(*operation);
        } else {
          status = operation.status();
        }
      }
      for (const OperationPtr& operation : open)
        if (Status own = operation->wait(15 * kSecond); !own.ok()) status = own;
      calls.clear();
    }
    EXPECT_EQ(status.code(), Code::kPeerLost) << "rank " << rank << ": " << status.message();
    if (rank != victim && status.peer_loss() != nullptr) {
      EXPECT_EQ(status.peer_loss()->rank, victim) << status.message();
    }
  });
  killer.join();
  EXPECT_TRUE(everything_ends(ranks));
}

// Groups that are still there let each process remember what it was told.
struct WithoutZeroAndOne {
  WithoutZeroAndOne() {
    for (int rank = 0; rank < 3; ++rank) ranks.close(rank, 0);
    others.push_back(ranks.make_group({0, 2}, "of 0"));
    others.push_back(ranks.make_group({1, 2}, "of 1"));
  }
  void cut() {
    ranks.network().cut(0, 1);
    for (int turn = 0; turn < 20; ++turn) {  // the engines are told in one of their next turns
      for (const int process : {0, 1})
        call_on_engine(ranks.network().stack(process)->engine(), [](harp::Transport&) {});
    }
  }
  Status sum_of_both() {
    const auto both = ranks.make_group({0, 1}, "of both");
    Status statuses[2];
    on_threads(2, [&](int rank) {
      const auto call = make_call(Kind::kAllReduce, Dtype::kF32, ReduceOp::kSum, 100, 0, rank, 2);
      auto operation = both[rank]->start(call->spec);
      statuses[rank] = operation.ok() ? (*operation)->wait(0) : operation.status();
    });
    EXPECT_EQ(statuses[0].code(), statuses[1].code());
    return statuses[0];
  }

  RankThreads ranks{{.world = 3, .timeout = 60 * kSecond}};
  std::vector<std::vector<std::shared_ptr<Communicator>>> others;
};

TEST(PeerLoss, OfOneThatNobodyNeededDoesNotKeepItFromBeingMetAnew) {
  WithoutZeroAndOne processes;
  processes.cut();
  processes.ranks.network().mend(0, 1);
  const Status status = processes.sum_of_both();
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(PeerLoss, OfOneThatNobodyNeededIsFoundOutByWhoComesToNeedIt) {
  WithoutZeroAndOne processes;
  processes.cut();
  EXPECT_EQ(processes.sum_of_both().code(), Code::kPeerLost);
}

TEST(PeerLoss, EverySurvivorNamesTheVictimWheneverItDies) {
  constexpr std::uint64_t kSeeds = 300;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    run_campaign(seed);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace taco::pg
