// Every collective end to end, ranks as threads: results against a plain computation, bit by bit.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <string>
#include <tuple>

#include "pg/algorithms/list.h"
#include "pg/planning/topology.h"
#include "support/collective_checks.h"
#include "support/pg_values.h"
#include "support/rank_threads.h"

namespace taco::pg {
namespace {

using kernels::Dtype;
using kernels::ReduceOp;
using testing::all_gather;
using testing::all_reduce;
using testing::broadcast;
using testing::Bytes;
using testing::CollectiveCase;
using testing::everything;
using testing::one_of;
using testing::piece;
using testing::pieces;
using testing::RankThreads;
using testing::reduce_scatter;
using testing::reduced;
using testing::run_operation;
using testing::same;
using testing::values;

class Collectives : public ::testing::TestWithParam<std::tuple<int, std::uint64_t>> {};

TEST_P(Collectives, GiveTheSameBitsAsAPlainComputation) {
  const auto [world, seed] = GetParam();
  SCOPED_TRACE("seed " + std::to_string(seed));
  RankThreads ranks({.world = world, .seed = seed});
  ranks.run([&](int, Communicator& group) {
    for (const std::size_t count : {0, 1, 3, 64, 1000, 9000}) {
      for (const bool uneven : {false, true})
        everything(group, {.count = count, .root = world / 2, .uneven = uneven});
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Collectives,
                         ::testing::Combine(::testing::Range(1, 9),
                                            ::testing::Values(0u, 11u, 12u)));

TEST(Collectives, CoverEveryDtypeAndReduction) {
  RankThreads ranks({.world = 3, .seed = 5});
  ranks.run([&](int, Communicator& group) {
    for (int dtype = 0; dtype < kernels::kDtypes; ++dtype) {
      for (int op = 0; op < kernels::kReduceOps; ++op)
        everything(group, {.dtype = Dtype(dtype), .op = ReduceOp(op), .count = 33, .root = 1});
    }
  });
}

bool fits(const Algorithm& algorithm, const Topology& topology, std::size_t bytes, int root) {
  Problem problem{.kind = algorithm.kind, .element_bytes = 4, .root = root, .bytes = bytes};
  problem.equal_splits = true;
  return algorithm.unfit(problem, topology) == nullptr;
}

TEST(Collectives, WorkByEveryAlgorithmThatFits) {
  for (const Algorithm* algorithm : all_algorithms()) {
    if (algorithm->coded) continue;  // coded_group_test.cc
    const std::string name = std::string(name_of(algorithm->kind)) + "=" + algorithm->name;
    SCOPED_TRACE(name);
    int fitted = 0;
    for (const int per_host : {0, 2}) {
      const Topology topology =
          per_host == 0 ? Topology::one_host(5) : *Topology::make({0, 0, 1, 1, 2}, {});
      RankThreads ranks({.world = 5, .seed = 9, .algorithm = name, .ranks_per_host = per_host});
      for (const std::size_t count : {1, 1000, 20'000}) {
        if (!fits(*algorithm, topology, count * 4, 3)) continue;
        ++fitted;
        ranks.run([&](int, Communicator& group) {
          one_of(group, algorithm->kind, {.count = count, .root = 3});
        });
      }
    }
    EXPECT_GT(fitted, 0);
  }
}

// Blocks of one length here: some ranks say so by giving no split lists, the others give them.
void all_to_all_with_and_without_lists(Communicator& group, std::size_t count) {
  const int world = group.options().world, rank = group.options().rank;
  std::vector<Bytes> inputs, outputs;
  for (int r = 0; r < world; ++r) {
    inputs.push_back(values(Dtype::kF32, count, rank, r));
    outputs.emplace_back(count * sizeof(float));
  }
  OperationSpec spec{.kind = Kind::kAllToAll, .dtype = Dtype::kF32};
  spec.equal_splits = rank % 2 == 0;
  spec.inputs = pieces(inputs);
  spec.outputs = pieces(outputs);
  run_operation(group, spec);
  for (int r = 0; r < world; ++r)
    EXPECT_TRUE(same(outputs[r], values(Dtype::kF32, count, r, rank))) << "from " << r;
}

TEST(Collectives, RanksWithSplitListsMatchRanksWithout) {
  constexpr std::size_t kLong = (300 << 10) / sizeof(float);  // beyond what hosts would pack
  for (const int per_host : {0, 1, 2}) {
    SCOPED_TRACE(per_host);
    RankThreads ranks({.world = 4, .seed = 8, .ranks_per_host = per_host});
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{999}, kLong}) {
      if (per_host == 2 && count < kLong) continue;
      ranks.run([&](int, Communicator& group) { all_to_all_with_and_without_lists(group, count); });
    }
  }
}

TEST(Collectives, RanksWithSplitListsMatchRanksWithoutOnAnyHostsWhenToldTo) {
  RankThreads ranks({.world = 4, .seed = 8, .algorithm = "all_to_all=direct", .ranks_per_host = 2});
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{999}})
    ranks.run([&](int, Communicator& group) { all_to_all_with_and_without_lists(group, count); });
}

TEST(Collectives, WhereHostsPackShortBlocksMixedSplitListsAreToldWhatToDo) {
  RankThreads ranks({.world = 4, .algorithm = "all_to_all=hierarchical", .ranks_per_host = 2});
  std::atomic<int> told{0};
  ranks.run([&](int rank, Communicator& group) {
    Bytes input = values(Dtype::kF32, 4, rank), output(input.size());
    OperationSpec spec{.kind = Kind::kAllToAll, .dtype = Dtype::kF32};
    spec.equal_splits = rank != 1;
    for (int r = 0; r < 4; ++r) {
      spec.inputs.push_back({input.data() + 4 * r, 4});
      spec.outputs.push_back({output.data() + 4 * r, 4});
    }
    Result<OperationPtr> operation = group.start(spec);
    const Status status = operation.ok() ? (*operation)->wait(0) : operation.status();
    EXPECT_FALSE(status.ok());
    told +=
        status.message().find("either all ranks pass split sizes or none") != std::string::npos &&
        status.message().find("TACO_ALGORITHM=all_to_all=direct") != std::string::npos;
  });
  EXPECT_GT(told, 0);
}

TEST(Collectives, LargeMessagesAreCutIntoChunks) {
  RankThreads ranks({.world = 4, .seed = 3});
  ranks.run([&](int, Communicator& group) {
    const CollectiveCase c{.count = (5 << 20) / 4 + 13, .root = 2};
    all_reduce(group, c, true);
    reduce_scatter(group, {.count = 300'001});
    all_gather(group, {.count = 300'001}, false);
    broadcast(group, c);
  });
}

TEST(Collectives, OverlappingBuffersAreStaged) {
  RankThreads ranks({.world = 3, .seed = 4});
  ranks.run([&](int rank, Communicator& group) {
    // all_reduce whose output starts inside the input.
    Bytes memory = values(Dtype::kF32, 20, rank);
    OperationSpec shifted{.kind = Kind::kAllReduce, .dtype = Dtype::kF32};
    shifted.inputs = {{memory.data(), 64}};
    shifted.outputs = {{memory.data() + 16, 64}};
    std::vector<Bytes> all;
    for (int r = 0; r < 3; ++r) all.push_back(values(Dtype::kF32, 16, r));
    run_operation(group, shifted);
    EXPECT_TRUE(
        same(Bytes(memory.begin() + 16, memory.end()), reduced(ReduceOp::kSum, Dtype::kF32, all)));
    // all_gather into one and the same output: the last rank's block remains.
    Bytes input = values(Dtype::kF32, 16, rank), output(64);
    OperationSpec onto{.kind = Kind::kAllGather, .dtype = Dtype::kF32};
    onto.inputs = {piece(input)};
    onto.outputs = {piece(output), piece(output), piece(output)};
    run_operation(group, onto);
    EXPECT_TRUE(same(output, values(Dtype::kF32, 16, 2)));
  });
}

}  // namespace
}  // namespace taco::pg
