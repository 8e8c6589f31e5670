// Every algorithm, one case each, proved by the interpreter. Test support.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "pg/algorithms/gradient_shard.h"
#include "pg/algorithms/list.h"
#include "support/coded_all_reduce.h"
#include "support/collective_reference.h"
#include "support/keeping_codec.h"
#include "support/schedule_interpreter.h"
#include "support/schedule_world.h"
#include "support/words_codec.h"
#include "support/zeros_codec.h"

namespace taco::pg::testing {

inline std::uint64_t base_seed() {
  static const std::uint64_t seed = [] {
    const char* text = std::getenv("TACO_TEST_SEED");
    return text ? std::strtoull(text, nullptr, 10) : 20260131ull;
  }();
  return seed;
}

class EveryAlgorithm : public ::testing::TestWithParam<const Algorithm*> {
 protected:
  const Algorithm& algorithm() const { return *GetParam(); }

  // One world, one problem: right results under kAdd, and under kTree the same bits whatever the
  // order of events, on all ranks where all have the same result.
  void prove(const Topology& topology, std::vector<Problem> problems, std::uint64_t chunk) {
    const bool by_words = may_be_words_ && problems[0].element_bytes == 4 && random_() % 2 == 0;
    for (Problem& problem : problems) problem.codec = by_words ? words_ : codec_;
    topology_ = &topology;
    if (algorithm().unfit(problems[0], topology)) return;
    ++proved_;
    SCOPED_TRACE(std::string(algorithm().name) + ": " + describe(problems[0]) + ", chunk " +
                 std::to_string(chunk) + ", " + describe(topology) + ", TACO_TEST_SEED " +
                 std::to_string(base_seed()));
    const std::vector<Schedule> schedules = schedules_of(algorithm(), problems, topology, chunk);
    InterpreterOptions options = next_options();
    const InterpreterResult sums = interpret(problems, schedules, options, nothing_kept(problems));
    ASSERT_EQ(sums.failure, "");
    expect_outputs(problems, sums);
    expect_fixed_order(problems, schedules);
  }

  InterpreterOptions next_options() {
    static constexpr std::uint32_t kWindows[] = {0, 1, 2, 5};
    InterpreterOptions options;
    options.seed = random_();
    options.mood = static_cast<Mood>(random_() % kMoods);
    options.window = kWindows[random_() % std::size(kWindows)];
    return options;
  }

  void expect_outputs(const std::vector<Problem>& problems, const InterpreterResult& result) {
    const Kind kind = problems[0].kind;
    const bool same_everywhere =
        kind == Kind::kAllReduce || kind == Kind::kAllGather || kind == Kind::kBroadcast;
    std::vector<Bytes> expected;
    for (int rank = 0; rank < static_cast<int>(problems.size()); ++rank) {
      if (kind == Kind::kReduce && rank != problems[rank].root) continue;
      if (rank == 0 || !same_everywhere) expected = expected_outputs(problems, rank);
      ASSERT_EQ(result.outputs[rank].size(), expected.size());
      for (std::size_t piece = 0; piece < expected.size(); ++piece) {
        ASSERT_EQ(result.outputs[rank][piece], expected[piece])
            << "rank " << rank << " output " << piece;
      }
    }
  }

  void expect_fixed_order(const std::vector<Problem>& problems,
                          const std::vector<Schedule>& schedules) {
    const Kind kind = problems[0].kind;
    if (kind != Kind::kAllReduce && kind != Kind::kReduceScatter && kind != Kind::kReduce) return;
    InterpreterOptions options = next_options();
    options.arithmetic = Arithmetic::kTree;
    const InterpreterResult first = interpret(problems, schedules, options, nothing_kept(problems));
    ASSERT_EQ(first.failure, "");
    InterpreterOptions other = next_options();
    other.arithmetic = Arithmetic::kTree;
    const InterpreterResult second = interpret(problems, schedules, other, nothing_kept(problems));
    ASSERT_EQ(second.failure, "");
    for (std::size_t rank = 0; rank < problems.size(); ++rank) {
      if (kind == Kind::kReduce && static_cast<int>(rank) != problems[rank].root) continue;
      ASSERT_EQ(first.outputs[rank], second.outputs[rank])
          << "order of events changed rank " << rank;
      if (kind == Kind::kAllReduce) {
        ASSERT_EQ(first.outputs[rank], first.outputs[0]) << "ranks 0 and " << rank << " differ";
      }
    }
  }

  // For a codec with a memory. It sends everything, so that sums are the same as without it.
  std::vector<Feedback> nothing_kept(const std::vector<Problem>& problems) const {
    std::vector<Feedback> feedback(problems.size());
    if (!codec_->has_memory()) return feedback;
    for (std::size_t rank = 0; rank < problems.size(); ++rank) {
      const Shard shard =
          gradient_shard(problems[rank].bytes, sizeof(float), *topology_, static_cast<int>(rank));
      feedback[rank].residual.resize(shard.bytes / sizeof(float));
    }
    return feedback;
  }

  ProblemTraits random_traits(int world, std::uint64_t elements) {
    ProblemTraits traits;
    traits.elements = elements;
    traits.uneven = random_() % 2 == 0;
    traits.average = random_() % 3 == 0;
    traits.premultiply = random_() % 4 == 0;
    traits.root = static_cast<int>(random_() % world);
    return traits;
  }

  bool needs_memory() const {
    return &algorithm() == &algorithms::all_reduce_two_dimensional_sparse;
  }
  void set_codec(std::uint64_t longest_block) {
    if (needs_memory()) {
      codec_ = std::make_shared<const KeepingCodec>(1, longest_block);
    } else {
      codec_ = std::make_shared<const ZerosCodec>(1, longest_block);
      words_ = std::make_shared<const WordsCodec>(longest_block);
      may_be_words_ = true;
    }
  }

  std::uint32_t random_element() { return needs_memory() ? 4 : 1u << random_() % 5; }

  // One host, a host for each rank, and hosts of so many ranks as they come.
  void prove_world(int world) {
    for (const Topology& topology : layouts(world)) {
      const std::uint64_t elements = 1 + random_() % (world > 16 ? 80 : 300);
      const auto problems = problems_of(algorithm().kind, world, random_element(),
                                        random_traits(world, elements), random_);
      prove(topology, problems, 64 + random_() % 512);
      if (HasFatalFailure()) return;
    }
  }

  std::vector<Topology> layouts(int world) {
    std::vector<Topology> made{Topology::one_host(world)};
    if (world > 1) {
      made.push_back(Topology::uniform(world, 1, 1));
      made.push_back(
          scattered_topology(world, 2 + static_cast<int>(random_() % (world - 1)), random_));
    }
    if (world % 4 == 0) {
      made.push_back(Topology::uniform(world / 4, 4, 1));
      made.push_back(*made.back().grouped(2));
    }
    if (world % 6 == 0) made.push_back(*made[2].grouped(world / 3));  // across uneven hosts
    return made;
  }

  std::mt19937_64 random_{base_seed()};
  std::shared_ptr<const Codec> codec_ = std::make_shared<const ZerosCodec>();
  std::shared_ptr<const Codec> words_;  // whose blocks can be added up as they arrive
  bool may_be_words_ = false;
  const Topology* topology_ = nullptr;
  int proved_ = 0;
};

inline std::string test_name(const ::testing::TestParamInfo<const Algorithm*>& info) {
  return std::string(name_of(info.param->kind)) + "_" + info.param->name;
}
}  // namespace taco::pg::testing
