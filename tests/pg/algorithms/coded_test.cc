// The promises of algorithms with a codec besides those of every algorithm: residuals are not lost,
// scratch memory is bounded, and the wire carries what they say it does.
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <random>

#include "pg/algorithms/coded_blocks.h"
#include "pg/algorithms/gradient_shard.h"
#include "pg/algorithms/list.h"
#include "pg/planning/simulator.h"
#include "support/collective_reference.h"
#include "support/keeping_codec.h"
#include "support/schedule_interpreter.h"
#include "support/schedule_world.h"
#include "support/zeros_codec.h"

namespace taco::pg {
namespace {

using namespace testing;

std::vector<Problem> problems_with(std::shared_ptr<const Codec> codec, int world,
                                   std::uint64_t elements, std::mt19937_64& random) {
  ProblemTraits traits;
  traits.elements = elements;
  std::vector<Problem> problems = problems_of(Kind::kAllReduce, world, 4, traits, random);
  for (Problem& problem : problems) problem.codec = codec;
  return problems;
}

std::vector<Topology> topologies(std::mt19937_64& random) {
  std::vector<Topology> made{Topology::uniform(2, 2, 1), Topology::uniform(3, 1, 1),
                             *Topology::make({0, 0, 0, 1, 1, 2}, {}),
                             *Topology::uniform(1, 6, 0).grouped(2),
                             *Topology::uniform(2, 6, 0).grouped(4)};
  for (int i = 0; i < 40; ++i) {
    const int world = 2 + static_cast<int>(random() % 12);
    made.push_back(scattered_topology(world, 2 + static_cast<int>(random() % (world - 1)), random));
  }
  return made;
}

// Adds what each rank's feedback holds to `sum`, at the elements that it is about.
void add_kept(std::vector<std::uint32_t>& sum, const std::vector<Feedback>& feedback,
              std::uint64_t bytes, const Topology& topology) {
  for (int rank = 0; rank < topology.world(); ++rank) {
    const Shard shard = gradient_shard(bytes, sizeof(float), topology, rank);
    ASSERT_EQ(feedback[rank].residual.size(), shard.bytes / sizeof(float));
    for (std::size_t i = 0; i < feedback[rank].residual.size(); ++i) {
      sum[shard.offset / sizeof(float) + i] +=
          std::bit_cast<std::uint32_t>(feedback[rank].residual[i]);
    }
  }
}

std::vector<std::uint32_t> elements_of(const Bytes& bytes) {
  std::vector<std::uint32_t> elements(bytes.size() / 4);
  std::memcpy(elements.data(), bytes.data(), bytes.size());
  return elements;
}

// Whole numbers that wrap around: not one bit may be missing.
TEST(CodedAllReduce, what_is_sent_and_what_is_kept_add_up_to_what_was_given_and_kept_before) {
  std::mt19937_64 random(20261122);
  for (const Topology& topology : topologies(random)) {
    SCOPED_TRACE(describe(topology));
    const auto codec = std::make_shared<const KeepingCodec>(1 + random() % 4, 64);
    const auto problems = problems_with(codec, topology.world(), 1 + random() % 300, random);
    const auto& algorithm = algorithms::all_reduce_two_dimensional_sparse;
    ASSERT_EQ(algorithm.unfit(problems[0], topology), nullptr);
    const std::uint64_t bytes = problems[0].bytes;
    std::vector<Feedback> feedback(topology.world());
    for (int rank = 0; rank < topology.world(); ++rank) {
      const Shard shard = gradient_shard(bytes, sizeof(float), topology, rank);
      for (std::uint64_t i = 0; i < shard.bytes / sizeof(float); ++i) {
        feedback[rank].residual.push_back(
            std::bit_cast<float>(static_cast<std::uint32_t>(random())));
      }
    }
    std::vector<std::uint32_t> given = elements_of(expected_outputs(problems, 0)[0]);
    add_kept(given, feedback, bytes, topology);
    InterpreterOptions options;
    options.seed = random();
    options.mood = static_cast<Mood>(random() % kMoods);
    options.window = random() % 3;
    const auto schedules = schedules_of(algorithm, problems, topology, 64 + random() % 256);
    const InterpreterResult result = interpret(problems, schedules, options, feedback);
    ASSERT_EQ(result.failure, "");
    for (const auto& outputs : result.outputs) ASSERT_EQ(outputs, result.outputs[0]);
    std::vector<std::uint32_t> got = elements_of(result.outputs[0][0]);
    add_kept(got, result.feedback, bytes, topology);
    ASSERT_EQ(got, given);
  }
}

TEST(GradientShard, covers_each_element_once_in_each_group) {
  std::mt19937_64 random(5);
  for (const Topology& topology : topologies(random)) {
    SCOPED_TRACE(describe(topology));
    const Topology& groups = topology.groups();
    for (const std::uint64_t elements : {0, 1, 7, 1000, 100'000}) {
      for (int group = 0; group < groups.hosts(); ++group) {
        std::uint64_t next = 0;
        for (const int rank : groups.ranks_of(group)) {
          const Shard shard = gradient_shard(elements * 4, 4, topology, rank);
          if (groups.local_index_of(rank) >= groups.min_ranks_per_host()) {
            EXPECT_EQ(shard.bytes, 0u);
            continue;
          }
          EXPECT_EQ(shard.offset, next);
          EXPECT_EQ(shard.bytes % 4, 0u);
          next += shard.bytes;
        }
        EXPECT_EQ(next, elements * 4);
      }
    }
  }
  EXPECT_EQ(gradient_shard(4096, 4, Topology::one_host(4), 1).bytes, 0u) << "nothing to send";
}

TEST(CodedBlocks, are_no_longer_than_the_codec_takes_and_fill_a_message_where_they_can) {
  const ZerosCodec half(0.5), hundredth(0.01), short_blocks(1, 4096);
  for (const std::uint64_t part : {0ull, 100ull, 1ull << 20, 20ull << 20, 5ull << 30}) {
    for (const int rooms : {2, 4, 64, 1000}) {
      for (const ZerosCodec* codec : {&half, &hundredth, &short_blocks}) {
        const CodedBlocks blocks(*codec, part, rooms);
        EXPECT_LE(blocks.longest, codec->longest_block());
        EXPECT_EQ(blocks.longest % 64, 0u);
        EXPECT_LE(blocks.longest, std::max<std::uint64_t>(part + 63, 64));
        EXPECT_GE(blocks.turns_in_flight, std::min(blocks.count(part), 2));
        EXPECT_GE(blocks.longest * blocks.count(part), part);
        EXPECT_LE(codec->most(blocks.longest) * rooms * blocks.turns_in_flight, 40ull << 20);
      }
    }
  }
  EXPECT_NEAR(static_cast<double>(half.expected(CodedBlocks(half, 10 << 20, 4).longest)), 62'400,
              200);
  EXPECT_EQ(CodedBlocks(hundredth, 20 << 20, 2).longest, 4u << 20);
  EXPECT_GE(CodedBlocks(half, 1 << 20, 4).count(1 << 20), 4) << "short messages are cut too";
}

// A block of which a hundredth is sent needs room for all of it.
TEST(CodedAllReduce, scratch_memory_does_not_grow_with_the_message) {
  for (const Topology& topology : {Topology::uniform(2, 2, 1), Topology::uniform(16, 2, 10)}) {
    Problem problem;
    problem.kind = Kind::kAllReduce;
    problem.element_bytes = 4;
    problem.bytes = std::uint64_t{2} << 30;
    problem.codec = std::make_shared<const ZerosCodec>(0.5);
    for (const bool sparse : {false, true}) {
      if (sparse) problem.codec = std::make_shared<const KeepingCodec>(100);
      const Algorithm& algorithm = sparse ? algorithms::all_reduce_two_dimensional_sparse
                                          : algorithms::all_reduce_two_dimensional_coded;
      const Schedule schedule = build_schedule(algorithm, problem, topology, 1 << 20, 1);
      EXPECT_LE(schedule.scratch_bytes, 40u << 20) << algorithm.name;
      EXPECT_LT(schedule.steps.size(), 200'000u) << algorithm.name;
    }
  }
}

std::vector<Schedule> schedules_for(const Algorithm& algorithm, const Problem& problem,
                                    const Topology& topology) {
  const CostParameters parameters;
  const std::uint64_t chunk = chunk_for(algorithm.work(problem, topology), topology, parameters);
  return schedules_of(algorithm, std::vector<Problem>(topology.world(), problem), topology, chunk);
}

TEST(CodedAllReduce, a_host_sends_what_its_codec_makes_of_the_shards) {
  for (const Topology& topology :
       {Topology::uniform(2, 2, 1), Topology::uniform(4, 3, 1), Topology::uniform(3, 1, 1)}) {
    const double hosts = topology.hosts();
    Problem problem;
    problem.kind = Kind::kAllReduce;
    problem.element_bytes = 4;
    problem.bytes = 40 << 20;
    const auto bytes = static_cast<double>(problem.bytes);
    problem.codec = std::make_shared<const ZerosCodec>(0.5);
    const auto& coded = algorithms::all_reduce_two_dimensional_coded;
    const Simulation halves =
        simulate(schedules_for(coded, problem, topology), topology, CostParameters());
    ASSERT_TRUE(halves.finished);
    const double ring = 2 * (hosts - 1) / hosts * bytes;
    const double most = static_cast<double>(problem.codec->most(1 << 20)) / (1 << 20);
    EXPECT_NEAR(halves.host_sent_bytes[1] / ring, most / 2, 0.01);
    problem.codec = std::make_shared<const KeepingCodec>(100);
    const auto& sparse = algorithms::all_reduce_two_dimensional_sparse;
    const Simulation few =
        simulate(schedules_for(sparse, problem, topology), topology, CostParameters());
    ASSERT_TRUE(few.finished);
    const auto share = static_cast<double>(problem.codec->expected(1 << 20)) / (1 << 20);
    EXPECT_NEAR(few.host_sent_bytes[1] / bytes, (hosts - 1) * share, 0.01);
    EXPECT_LT(few.seconds, halves.seconds);
  }
}

Problem coded_reduce_scatter(std::uint64_t block) {
  Problem problem;
  problem.kind = Kind::kReduceScatter;
  problem.element_bytes = 4;
  problem.bytes = block;
  problem.codec = std::make_shared<const ZerosCodec>(0.5);
  return problem;
}

TEST(CodedReduceScatter, scratch_memory_does_not_grow_with_the_message) {
  for (const Topology& topology :
       {Topology::uniform(2, 2, 1), Topology::uniform(16, 2, 10), Topology::uniform(4, 1, 1),
        *Topology::make({0, 0, 0, 0, 0, 0, 1}, {})}) {
    for (const bool premultiply : {false, true}) {
      Problem problem = coded_reduce_scatter((std::uint64_t{2} << 30) / topology.world());
      problem.premultiply = premultiply;
      for (const int rank : {0, topology.world() - 1}) {
        const Schedule schedule = build_schedule(algorithms::reduce_scatter_two_dimensional_coded,
                                                 problem, topology, 1 << 20, rank);
        EXPECT_LE(schedule.scratch_bytes, 48u << 20) << describe(topology);
        EXPECT_LT(schedule.steps.size(), 200'000u) << describe(topology);
      }
    }
  }
}

TEST(CodedReduceScatter, a_host_sends_one_coded_sum_for_each_rank_of_another) {
  const auto& algorithm = algorithms::reduce_scatter_two_dimensional_coded;
  for (const Topology& topology :
       {Topology::uniform(2, 2, 1), Topology::uniform(4, 3, 1), Topology::uniform(3, 1, 1)}) {
    const Problem problem = coded_reduce_scatter(4 << 20);
    const Simulation played =
        simulate(schedules_for(algorithm, problem, topology), topology, CostParameters());
    ASSERT_TRUE(played.finished);
    const double strangers = topology.world() - topology.max_ranks_per_host();
    const auto share = static_cast<double>(problem.codec->expected(1 << 20)) / (1 << 20);
    for (const double sent : played.host_sent_bytes) {
      EXPECT_NEAR(sent / static_cast<double>(problem.bytes), strangers * share, 0.02 * strangers);
    }
  }
}

}  // namespace
}  // namespace taco::pg
