// Groups of several engines: large operations are cut among them, and are one operation to
// everybody.
#include "pg/group/striped_group.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "pg/execution/trace.h"
#include "support/eventually.h"
#include "support/pg_values.h"
#include "support/rank_threads.h"

namespace taco::pg {
namespace {

using kernels::Dtype;
using kernels::ReduceOp;
using testing::Bytes;
using testing::eventually;
using testing::piece;
using testing::RankThreads;
using testing::values;

constexpr std::size_t kLarge = StripedGroup::kMinPart;  // elements of four bytes: eight MiB
constexpr int kWorld = 3;

// The flight recorder's entries of a group.
int records_of(const std::string& group, const std::string& with = "") {
  const std::string json = trace::flight_recorder_json();
  int found = 0;
  for (std::size_t at = 0; (at = json.find("{\"record_id\"", at)) != std::string::npos; ++at) {
    const std::string entry = json.substr(at, json.find('}', at) - at);
    if (entry.find("\"group\":\"" + group + "\"") != std::string::npos &&
        entry.find(with) != std::string::npos)
      ++found;
  }
  return found;
}

// One operation of each rank on whole numbers, whose sums are exact in any order.
struct Call {
  Call(Kind kind, std::size_t count, int rank, int world = kWorld) : out(4 * count) {
    spec = {.kind = kind, .dtype = Dtype::kI32, .op = ReduceOp::kSum, .root = 1};
    std::vector<Piece> list;
    for (int r = 0; r < world; ++r) blocks.push_back(values(Dtype::kI32, count, rank * world + r));
    for (Bytes& block : blocks) list.push_back(piece(block));
    in = values(Dtype::kI32, count, rank);
    if (kind != Kind::kBroadcast) spec.inputs = {piece(in)};
    spec.outputs = {piece(kind == Kind::kBroadcast ? in : out)};
    if (kind == Kind::kAllGather) spec.outputs = list;
    if (kind == Kind::kReduceScatter) spec.inputs = list;
  }
  // The memory that holds this rank's result.
  std::vector<Bytes> results() const {
    switch (spec.kind) {
      case Kind::kBroadcast:
        return {in};
      case Kind::kAllGather:
        return blocks;
      default:
        return {out};
    }
  }
  Bytes in, out;
  std::vector<Bytes> blocks;
  OperationSpec spec;
};

Status run(Communicator& group, Call& call) {
  Result<OperationPtr> operation = group.start(call.spec);
  return operation.ok() ? (*operation)->wait(0) : operation.status();
}

// By rank, of the operations one after the other.
std::vector<std::vector<std::vector<Bytes>>> results_with(int engines,
                                                          const std::vector<Kind>& kinds,
                                                          std::size_t count) {
  RankThreads ranks({.world = kWorld, .engines = engines});
  std::vector<std::vector<std::vector<Bytes>>> results(kWorld);
  ranks.run([&](int rank, Communicator& group) {
    for (const Kind kind : kinds) {
      Call call(kind, count, rank);
      const Status status = run(group, call);
      EXPECT_TRUE(status.ok()) << status.message();
      // The outputs of a reduce are undefined but on its root.
      if (kind != Kind::kReduce || rank == call.spec.root) results[rank].push_back(call.results());
    }
    EXPECT_EQ(group.sequence(), kinds.size());
  });
  return results;
}

const std::vector<Kind> kCut = {Kind::kAllReduce, Kind::kReduce, Kind::kBroadcast, Kind::kAllGather,
                                Kind::kReduceScatter};

TEST(StripedGroup, BringsWhatOneEngineBrings) {
  // An odd number of elements, so that parts differ in length.
  const std::size_t count = kLarge + 1;
  EXPECT_EQ(results_with(3, kCut, count), results_with(1, kCut, count));
}

TEST(StripedGroup, CutsLargeOperationsAndRecordsEachOnce) {
  RankThreads ranks({.world = 2, .engines = 2});
  const auto before = [](const char* with) { return records_of("world", with); };
  const int all = before(""), by_two = before("\"engines\":2");
  ranks.run([&](int rank, Communicator& group) {
    Call large(Kind::kAllReduce, kLarge, rank, 2), small(Kind::kAllReduce, 100, rank, 2);
    EXPECT_TRUE(run(group, large).ok());
    EXPECT_TRUE(run(group, small).ok());
    EXPECT_TRUE(run(group, large).ok());
  });
  EXPECT_EQ(records_of("world") - all, 6);
  EXPECT_EQ(records_of("world", "\"engines\":2") - by_two, 4);
}

TEST(StripedGroup, TellsOnceHowAnOperationHasEnded) {
  RankThreads ranks({.world = 2, .engines = 2});
  std::atomic<int> ended{0}, completed{0};
  ranks.run([&](int rank, Communicator& group) {
    Call call(Kind::kAllReduce, kLarge, rank, 2);
    call.spec.ended_st = [&](const Status& status, Duration) {
      EXPECT_TRUE(status.ok()) << status.message();
      ++ended;
    };
    Result<OperationPtr> operation = group.start(call.spec);
    ASSERT_TRUE(operation.ok());
    (*operation)->on_complete([&, operation = *operation] {
      EXPECT_TRUE(operation->done());
      ++completed;
    });
    EXPECT_TRUE((*operation)->wait(0).ok());
    EXPECT_TRUE(eventually([&] { return completed == 2; }));
  });
  EXPECT_EQ(ended, 2);
}

// The input begins in the middle of the output.
TEST(StripedGroup, OverlappingMemoryIsReadBeforeAnyPartWrites) {
  RankThreads ranks({.world = 2, .engines = 2});
  ranks.run([&](int rank, Communicator& group) {
    Bytes in = values(Dtype::kI32, kLarge, rank), other = values(Dtype::kI32, kLarge, 1 - rank);
    Bytes memory(4 * kLarge + 4096);
    std::copy(in.begin(), in.end(), memory.begin() + 4096);
    Call call(Kind::kAllReduce, 1, rank, 2);
    call.spec.inputs = {{memory.data() + 4096, 4 * kLarge}};
    call.spec.outputs = {{memory.data(), 4 * kLarge}};
    ASSERT_TRUE(run(group, call).ok());
    const auto* sum = reinterpret_cast<const std::int32_t*>(memory.data());
    const auto* a = reinterpret_cast<const std::int32_t*>(in.data());
    const auto* b = reinterpret_cast<const std::int32_t*>(other.data());
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < kLarge; ++i) wrong += sum[i] != a[i] + b[i] ? 1 : 0;
    EXPECT_EQ(wrong, 0u);
  });
}

// Failures. Everywhere the operation and the group have the same one, and nothing stays open.
void expect_all_end(RankThreads& ranks) {
  EXPECT_TRUE(eventually([&] {
    return ranks.network(0).open_requests() == 0 && ranks.network(1).open_requests() == 0;
  }));
}

void expect_disagreement(std::size_t first, std::size_t second) {
  RankThreads ranks({.world = 2, .engines = 2});
  ranks.run([&](int rank, Communicator& group) {
    Call before(Kind::kAllReduce, 10, rank, 2);
    EXPECT_TRUE(run(group, before).ok());
    Call call(Kind::kAllReduce, rank == 0 ? first : second, rank, 2);
    const Status status = run(group, call);
    EXPECT_EQ(status.code(), Code::kMismatch) << status.message();
    for (const std::size_t count : {first, second}) {
      EXPECT_NE(status.message().find("all_reduce SUM int32 x " + std::to_string(count)),
                std::string::npos)
          << status.message();
    }
    EXPECT_NE(status.message().find("operation 2"), std::string::npos) << status.message();
    EXPECT_EQ(group.error().code(), Code::kMismatch);
  });
  expect_all_end(ranks);
}

TEST(StripedGroup, RanksDisagreeWhetherACallIsCut) {
  expect_disagreement(kLarge, 100);
  expect_disagreement(100, kLarge);
}

TEST(StripedGroup, RanksDisagreeAboutTheSizeOfWhatBothCut) {
  expect_disagreement(kLarge, 2 * kLarge);
}

TEST(StripedGroup, ARankThatComesLaterToSomethingElseIsFoundOutAtTheHome) {
  RankThreads ranks({.world = 2, .engines = 2});
  ranks.run([&](int rank, Communicator& group) {
    Call large(Kind::kAllReduce, kLarge, rank, 2), small(Kind::kBroadcast, 100, rank, 2);
    Status status;
    if (rank == 0) {
      status = run(group, large);
    } else {
      status = run(group, small);
      if (status.ok()) status = run(group, large);
    }
    EXPECT_EQ(status.code(), Code::kMismatch) << status.message();
  });
  expect_all_end(ranks);
}

// The two processes lose each other on one engine only.
void expect_loss_by(int engine) {
  RankThreads ranks({.world = 2, .engines = 2});
  std::atomic<int> heard{0};
  ranks.network(1).hold(0, 1, true);
  ranks.network(1).hold(1, 0, true);
  std::vector<std::unique_ptr<Call>> calls;
  std::vector<OperationPtr> operations;
  for (int rank = 0; rank < 2; ++rank) {
    calls.push_back(std::make_unique<Call>(Kind::kAllReduce, kLarge, rank, 2));
    ranks.group(rank).on_failure([&] { ++heard; });
    auto operation = ranks.group(rank).start(calls.back()->spec);
    ASSERT_TRUE(operation.ok());
    operations.push_back(*operation);
  }
  const std::string open = ranks.group(0).dump();
  EXPECT_NE(open.find("part 2 of 2"), std::string::npos) << open;
  ranks.network(engine).cut(0, 1);
  for (int rank = 0; rank < 2; ++rank) {
    const Status status = operations[rank]->wait(0);
    EXPECT_EQ(status.code(), Code::kPeerLost) << status.message();
    ASSERT_NE(status.peer_loss(), nullptr);
    EXPECT_EQ(status.peer_loss()->rank, 1 - rank);
    const Status error = ranks.group(rank).error();
    EXPECT_EQ(error.code(), Code::kPeerLost) << error.message();
    EXPECT_TRUE(eventually([&] {
      Call next(Kind::kAllReduce, 10, rank, 2);
      return run(ranks.group(rank), next).code() == Code::kPeerLost;
    }));
  }
  EXPECT_TRUE(eventually([&] { return heard == 2; }));
  expect_all_end(ranks);
}

TEST(StripedGroup, ALossThatTheHomeHearsOfEndsAllParts) { expect_loss_by(0); }
TEST(StripedGroup, ALossThatAnotherEngineHearsOfEndsAllParts) { expect_loss_by(1); }

TEST(StripedGroup, ADeadlineEndsAllPartsAndTheHomeSaysWhoIsMissing) {
  RankThreads ranks({.world = 2, .engines = 2});
  Call call(Kind::kAllReduce, kLarge, 0, 2);
  call.spec.timeout = kSecond / 5;
  const Status status = run(ranks.group(0), call);
  EXPECT_EQ(status.code(), Code::kTimeout) << status.message();
  EXPECT_NE(status.message().find("all_reduce SUM int32 x " + std::to_string(kLarge)),
            std::string::npos)
      << status.message();
  EXPECT_EQ(ranks.group(0).error().code(), Code::kTimeout);
  Call late(Kind::kAllReduce, kLarge, 1, 2);
  EXPECT_EQ(run(ranks.group(1), late).code(), Code::kTimeout);
  expect_all_end(ranks);
}

TEST(StripedGroup, AnAbortEndsAllPartsOnEveryRank) {
  RankThreads ranks({.world = 2, .engines = 2});
  ranks.network(1).hold(0, 1, true);
  std::vector<std::unique_ptr<Call>> calls;
  std::vector<OperationPtr> operations;
  for (int rank = 0; rank < 2; ++rank) {
    calls.push_back(std::make_unique<Call>(Kind::kAllReduce, kLarge, rank, 2));
    Result<OperationPtr> operation = ranks.group(rank).start(calls.back()->spec);
    ASSERT_TRUE(operation.ok());
    operations.push_back(*operation);
  }
  ranks.group(0).abort(Status(Code::kAborted, "enough"));
  for (const OperationPtr& operation : operations) {
    const Status status = operation->wait(0);
    EXPECT_EQ(status.code(), Code::kAborted) << status.message();
    EXPECT_NE(status.message().find("enough"), std::string::npos) << status.message();
  }
  expect_all_end(ranks);
}

// A failure that destroying a group would report is reported once.
TEST(StripedGroup, AFailureThatAnOperationHasToldIsNotToldAgainByTheLeaving) {
  RankThreads ranks({.world = 2, .engines = 2});
  ranks.run([&](int rank, Communicator& group) {
    Call call(Kind::kAllReduce, rank == 0 ? kLarge : 2 * kLarge, rank, 2);
    EXPECT_EQ(run(group, call).code(), Code::kMismatch);
    const Status left = group.close(kSecond);
    EXPECT_TRUE(left.ok()) << left.message();
    EXPECT_EQ(run(group, call).code(), Code::kAborted);
  });
}

TEST(StripedGroup, LeavesWhenIdleWithAllParts) {
  RankThreads ranks({.world = 2, .engines = 2});
  std::vector<std::shared_ptr<Communicator>> groups = ranks.make_group({0, 1}, "idle");
  testing::on_threads(2, [&](int rank) {
    Call call(Kind::kAllReduce, kLarge, rank, 2);
    Result<OperationPtr> operation = groups[rank]->start(call.spec);
    ASSERT_TRUE(operation.ok());
    groups[rank]->close_when_idle(kSecond);
    groups[rank].reset();
    EXPECT_TRUE((*operation)->wait(0).ok());
  });
}

TEST(StripedGroup, AWrongCallIsRefusedInTheWordsOfTheWhole) {
  RankThreads ranks({.world = 2, .engines = 2});
  Call call(Kind::kAllReduce, kLarge, 0, 2);
  call.spec.outputs[0].bytes -= 4;
  const Status status = run(ranks.group(0), call);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find(std::to_string(4 * kLarge) + " are needed"), std::string::npos)
      << status.message();
  EXPECT_EQ(ranks.group(0).sequence(), 0u);
}

}  // namespace
}  // namespace taco::pg
