// A peer withdraws a request and does not say why: the reason is given a moment to come.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "harp/engine/engine_call.h"
#include "pg/group/notice.h"
#include "pg/group/point_to_point.h"
#include "support/pg_values.h"
#include "support/rank_threads.h"

namespace taco::pg {
namespace {

using kernels::Dtype;
using testing::Bytes;
using testing::LoopbackNetwork;
using testing::piece;
using testing::RankThreads;
using testing::same;
using testing::values;

constexpr Duration kLimit = 20 * kSecond;
constexpr Duration kWellPastTheGrace = 500 * kMillisecond;
// A reason that was told by then has come within the grace; a busy machine may take longer, and the
// case is tried again.
constexpr Duration kWellInTime = 150 * kMillisecond;
constexpr int kTries = 20;

void on_engine(RankThreads& ranks, int rank, std::function<void(harp::Transport&)> function) {
  const auto stack = ranks.network().stack(rank);
  ASSERT_TRUE(call_on_engine(stack->engine(), std::move(function), monotonic_now() + kLimit));
}

// Returns when all that was submitted to the rank's engine before is done, completions too.
void drain_engine(RankThreads& ranks, int rank) {
  for (int turn = 0; turn < 2; ++turn) on_engine(ranks, rank, [](harp::Transport&) {});
}

// A receive of rank 0 whose message rank 1 withdraws; nothing else from rank 1 reaches rank 0.
struct Withdrawn {
  explicit Withdrawn(RankThreads& ranks) : into(1000) {
    OperationSpec spec{.kind = Kind::kRecv, .dtype = Dtype::kU8, .root = 1};
    spec.outputs = {piece(into)};
    receive = *ranks.group(0).start(spec);
    drain_engine(ranks, 0);
    ranks.network().silence(1, 0);
    harp::SendRequest request;
    request.key = {ranks.group(0).options().id, PointToPoint::wire_tag(0, 0)};
    request.data = into.data();
    request.bytes = into.size();
    request.on_done = [](harp::SendRequest&, const Status&) {};
    since = monotonic_now();
    on_engine(ranks, 1, [&](harp::Transport& transport) {
      transport.send_st(LoopbackNetwork::peer_of(0), request);
      transport.cancel_st(request, Status(Code::kAborted, "no more"));
    });
    drain_engine(ranks, 1);
    drain_engine(ranks, 0);
  }
  Bytes into;
  OperationPtr receive;
  Time since = 0;  // not later than the withdrawal
};

// Timers expire in their order: when this one has, those of the rank's group are over.
void wait_past_the_grace(RankThreads& ranks, int rank) {
  struct Past : harp::Timer {
    harp::Event over;
    harp::Engine* engine = nullptr;
  } past;
  const auto stack = ranks.network().stack(rank);
  past.engine = &stack->engine();
  past.on_expiry = [](harp::Timer& timer, Time) {
    Past& self = static_cast<Past&>(timer);
    self.over.set();
    self.engine->wake_waiters();
  };
  on_engine(ranks, rank, [&](harp::Transport& transport) {
    transport.arm_st(past, transport.now_st() + kWellPastTheGrace);
  });
  ASSERT_TRUE(stack->engine().wait(past.over, monotonic_now() + kLimit));
  drain_engine(ranks, rank);
}

Result<OperationPtr> start_broadcast(Communicator& group, Bytes& data, int root) {
  OperationSpec spec{.kind = Kind::kBroadcast, .dtype = Dtype::kF32, .root = root};
  spec.outputs = {piece(data)};
  return group.start(spec);
}

TEST(Withdrawal, WhoNeverHearsWhyFailsAllTheSame) {
  RankThreads ranks({.world = 3, .timeout = 60 * kSecond});
  const Withdrawn about(ranks);
  const Status status = about.receive->wait(kLimit);
  EXPECT_EQ(status.code(), Code::kAborted) << status.message();
  EXPECT_NE(status.message().find("rank 1 withdrew from it"), std::string::npos)
      << status.message();
  // The others hear of it from rank 0: they need not find out for themselves.
  Bytes data = values(Dtype::kF32, 4, 0);
  Result<OperationPtr> next = start_broadcast(ranks.group(2), data, 0);
  const Status elsewhere = next.ok() ? (*next)->wait(kLimit) : next.status();
  EXPECT_EQ(elsewhere.code(), Code::kAborted) << elsewhere.message();
}

// Rank 2 tells rank 0 that operation 2 is disputed; returns when it has heard.
void tell_reason(RankThreads& ranks) {
  Notice reason;
  reason.kind = NoticeKind::kGroupFailed;
  reason.group = ranks.group(0).options().id;
  reason.code = Code::kMismatch;
  reason.text = "operation 2 is disputed";
  reason.sequence = 2;
  on_engine(ranks, 2, [&](harp::Transport& transport) {
    transport.notify_st(LoopbackNetwork::peer_of(0), encode(reason));
  });
  drain_engine(ranks, 0);
}

// Whether the reason came in time, and with it the verdict; the last try is judged all the same.
// The reason is about operation 2, and comes while operation 1, begun since, is open.
bool a_reason_fails_what_it_is_about(bool is_last_try) {
  RankThreads ranks({.world = 3, .timeout = 60 * kSecond});
  const Withdrawn about(ranks);
  Bytes got(values(Dtype::kF32, 4, 0).size());
  const OperationPtr open = *start_broadcast(ranks.group(0), got, 2);
  drain_engine(ranks, 0);
  tell_reason(ranks);
  if (monotonic_now() - about.since > kWellInTime && !is_last_try) return false;
  const Status status = about.receive->wait(kLimit);
  EXPECT_EQ(status.code(), Code::kMismatch) << status.message();
  EXPECT_NE(status.message().find("operation 2 is disputed"), std::string::npos)
      << status.message();
  wait_past_the_grace(ranks, 0);
  EXPECT_FALSE(open->done());
  Bytes sent = values(Dtype::kF32, 4, 2);
  Result<OperationPtr> root = start_broadcast(ranks.group(2), sent, 2);
  EXPECT_TRUE(root.ok()) << root.status().message();
  if (!root.ok()) return true;
  const Status end = open->wait(kLimit);
  EXPECT_TRUE(end.ok()) << end.message();
  EXPECT_TRUE(same(got, sent));
  EXPECT_TRUE((*root)->wait(kLimit).ok());
  return true;
}

TEST(Withdrawal, AReasonThatComesInTimeIsWhatFailsAndEndsNothingEarlier) {
  for (int i = 1; !a_reason_fails_what_it_is_about(i == kTries); ++i) continue;
}

}  // namespace
}  // namespace taco::pg
