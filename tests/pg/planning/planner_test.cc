#include "pg/planning/planner.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "pg/algorithms/forced.h"
#include "pg/algorithms/list.h"
#include "support/coded_all_reduce.h"
#include "support/keeping_codec.h"
#include "support/schedule_world.h"
#include "support/zeros_codec.h"

namespace taco::pg {
namespace {

using namespace testing;

constexpr Kind kKinds[] = {Kind::kAllReduce,     Kind::kBroadcast, Kind::kAllGather,
                           Kind::kReduceScatter, Kind::kReduce,    Kind::kGather,
                           Kind::kScatter,       Kind::kAllToAll,  Kind::kBarrier};

Problem problem_of(Kind kind, std::uint64_t bytes) {
  Problem problem;
  problem.kind = kind;
  problem.element_bytes = 4;
  problem.bytes = kind == Kind::kBarrier ? 0 : bytes;
  problem.equal_splits = kind == Kind::kAllToAll;
  return problem;
}

std::unique_ptr<Planner> planner_for(Topology topology, int rank, const std::string& forced = "",
                                     CostParameters parameters = {}) {
  auto made = Planner::create(all_algorithms(), std::move(topology), parameters, rank, forced);
  EXPECT_TRUE(made.ok()) << made.status().message();
  return made.ok() ? std::move(*made) : nullptr;
}

std::shared_ptr<const Codec> codec_for(const Algorithm& algorithm) {
  if (&algorithm == &algorithms::all_reduce_two_dimensional_sparse)
    return std::make_shared<const KeepingCodec>(100);
  return std::make_shared<const ZerosCodec>(0.5);
}

TEST(Planner, all_ranks_choose_the_same_algorithm_though_their_own_part_differs) {
  std::mt19937_64 random(7);
  for (int world : {2, 3, 7, 16}) {
    const Topology topology = scattered_topology(world, 1 + world / 3, random);
    std::vector<std::unique_ptr<Planner>> planners;
    for (int rank = 0; rank < world; ++rank) planners.push_back(planner_for(topology, rank));
    for (const Kind kind : kKinds) {
      for (const std::uint64_t elements : {1ull, 300ull, 20000ull, 1000000ull}) {
        ProblemTraits traits;
        traits.elements = elements;
        traits.uneven = random() % 2 == 0;
        const auto problems = problems_of(kind, world, 4, traits, random);
        std::set<std::string> chosen;
        for (int rank = 0; rank < world; ++rank) {
          chosen.insert((*planners[rank]->plan(problems[rank]))->algorithm);
        }
        EXPECT_EQ(chosen.size(), 1u) << describe(problems[0]) << " " << describe(topology);
      }
    }
  }
}

TEST(Planner, takes_the_least_prediction) {
  const auto planner = planner_for(Topology::uniform(4, 2, 10), 3);
  for (const Kind kind : kKinds) {
    for (const std::uint64_t bytes : {8ull, 65536ull, 8388608ull}) {
      const Problem problem = problem_of(kind, bytes);
      const auto predictions = planner->predictions(problem);
      ASSERT_FALSE(predictions.empty());
      for (const Prediction& prediction : predictions) {
        EXPECT_LE(predictions[0].seconds, prediction.seconds);
      }
      const auto schedule = *planner->plan(problem);
      EXPECT_STREQ(schedule->algorithm, predictions[0].algorithm->name);
      EXPECT_DOUBLE_EQ(schedule->predicted_seconds, predictions[0].seconds);
    }
  }
}

TEST(Planner, does_what_is_known_to_be_right_at_both_ends_of_the_scale) {
  const auto one_host = planner_for(Topology::one_host(4), 0);
  EXPECT_STREQ((*one_host->plan(problem_of(Kind::kAllReduce, 8)))->algorithm, "direct");
  EXPECT_STREQ((*one_host->plan(problem_of(Kind::kAllReduce, 32 << 20)))->algorithm,
               "direct_scatter");
  const auto many_ranks = planner_for(Topology::one_host(64), 0);
  EXPECT_STREQ((*many_ranks->plan(problem_of(Kind::kAllReduce, 8)))->algorithm,
               "recursive_doubling");
  const auto two_by_two = planner_for(Topology::uniform(2, 2, 1), 0);
  EXPECT_STREQ((*two_by_two->plan(problem_of(Kind::kAllReduce, 40 << 20)))->algorithm,
               "two_dimensional");
  EXPECT_STREQ((*two_by_two->plan(problem_of(Kind::kAllGather, 10 << 20)))->algorithm,
               "hierarchical");
}

TEST(Planner, every_algorithm_can_be_forced_where_it_fits) {
  const Topology topology = Topology::uniform(2, 3, 10);
  for (const Algorithm* algorithm : all_algorithms()) {
    Problem problem = problem_of(algorithm->kind, 4096);
    if (algorithm->coded) problem.codec = codec_for(*algorithm);
    ASSERT_EQ(algorithm->unfit(problem, topology), nullptr) << algorithm->name;
    const std::string item = std::string(name_of(algorithm->kind)) + "=" + algorithm->name;
    for (const std::string& forced : {std::string(algorithm->name), item, "auto," + item}) {
      auto schedule = planner_for(topology, 4, forced)->plan(problem);
      ASSERT_TRUE(schedule.ok()) << forced;
      EXPECT_STREQ((*schedule)->algorithm, algorithm->name);
    }
  }
}

TEST(Planner, a_bare_name_leaves_other_collectives_alone) {
  const auto planner = planner_for(Topology::one_host(4), 0, "rabenseifner");
  EXPECT_STREQ((*planner->plan(problem_of(Kind::kAllReduce, 8)))->algorithm, "rabenseifner");
  EXPECT_TRUE(planner->plan(problem_of(Kind::kBroadcast, 8)).ok());
}

TEST(Planner, a_forced_algorithm_that_does_not_fit_is_an_error_that_lists_those_that_do) {
  const auto planner = planner_for(Topology::one_host(4), 0, "all_reduce=two_dimensional");
  const auto planned = planner->plan(problem_of(Kind::kAllReduce, 1024));
  ASSERT_EQ(planned.status().code(), Code::kInvalidArgument);
  const std::string text = planned.status().message();
  for (const char* part : {"TACO_ALGORITHM", "two_dimensional", "one host", "ring", "direct"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
}

TEST(Planner, unknown_names_are_refused_with_the_known_ones) {
  for (const char* forced : {"rign", "all_reduce=rign", "all_redcue=ring", "broadcast=ring"}) {
    const auto made = Planner::create(all_algorithms(), Topology::one_host(2), {}, 0, forced);
    ASSERT_FALSE(made.ok()) << forced;
    EXPECT_EQ(made.status().code(), Code::kInvalidArgument);
    EXPECT_NE(made.status().message().find(forced), std::string::npos);
  }
  const std::pair<const char*, const char*> nearest[] = {
      {"rign", "did you mean ring? There are: auto, "},
      {"all_redcue=ring", "did you mean all_reduce? There are: "},
      {"broadcast=binomail", "did you mean binomial? There are: "}};
  for (const auto& [forced, suggestion] : nearest) {
    const std::string text = check_forced(forced).message();
    EXPECT_NE(text.find(suggestion), std::string::npos) << text;
  }
  for (const char* forced : {"", "auto", " ring ", "all_reduce = ring , broadcast=auto"}) {
    EXPECT_TRUE(Planner::create(all_algorithms(), Topology::one_host(2), {}, 0, forced).ok())
        << forced;
  }
}

TEST(Planner, bytes_under_way_to_several_hosts_are_bounded_by_the_wire_and_small_ones_never_wait) {
  constexpr std::uint64_t kSmall = 64, kLarge = 4 << 20;
  const auto send_window = [](double gbits, std::uint64_t block, CostParameters parameters = {}) {
    const auto planner =
        planner_for(Topology::uniform(64, 1, gbits), 5, "all_to_all=direct", parameters);
    return (*planner->plan(problem_of(Kind::kAllToAll, block)))->send_window;
  };
  EXPECT_GE(send_window(10, kSmall), 63u);
  EXPECT_EQ(send_window(1, kLarge), 2u);
  const std::uint32_t at_10_gbits = send_window(10, kLarge),
                      at_100_gbits = send_window(100, kLarge);
  EXPECT_GT(at_10_gbits, 2u);
  EXPECT_NEAR(at_100_gbits, 10 * at_10_gbits, 10);
  CostParameters far;
  far.network.latency = 1e-3;
  EXPECT_GT(send_window(10, kLarge, far), 10 * at_10_gbits);
}

TEST(Planner, refuses_what_has_no_schedule) {
  const auto planner = planner_for(Topology::one_host(2), 0);
  EXPECT_EQ(planner->plan(problem_of(Kind::kSend, 8)).status().code(), Code::kInvalidArgument);
  EXPECT_FALSE(Planner::create(all_algorithms(), Topology::one_host(2), {}, 2, "").ok());
}

TEST(Planner, what_may_be_coded_is_coded_wherever_it_leaves_a_host_or_a_group) {
  const auto chosen = [](const Topology& topology, std::shared_ptr<const Codec> codec,
                         const std::string& forced = "") {
    Problem problem = problem_of(Kind::kAllReduce, 40 << 20);
    problem.codec = std::move(codec);
    return std::string((*planner_for(topology, 0, forced)->plan(problem))->algorithm);
  };
  const auto lossless = std::make_shared<const ZerosCodec>(1);
  const auto keeping = std::make_shared<const KeepingCodec>(100);
  for (const Topology& topology :
       {Topology::uniform(4, 1, 1), Topology::uniform(2, 2, 100), *Topology::make({0, 0, 1}, {}),
        *Topology::one_host(4).grouped(2)}) {
    EXPECT_EQ(chosen(topology, lossless), "two_dimensional_coded");
    EXPECT_EQ(chosen(topology, keeping), "two_dimensional_sparse");
    EXPECT_EQ(chosen(topology, lossless, "ring"), "two_dimensional_coded");
    EXPECT_EQ(chosen(topology, nullptr).find("coded"), std::string::npos);
  }
  for (const Topology& topology : {Topology::one_host(4), *Topology::uniform(2, 2, 1).grouped(4)}) {
    EXPECT_EQ(chosen(topology, lossless), chosen(topology, nullptr));
    EXPECT_EQ(chosen(topology, keeping, "ring"), "ring");
  }
}

TEST(Planner, a_reduce_scatter_is_coded_where_it_leaves_a_host_unless_its_codec_keeps_something) {
  const auto chosen = [](const Topology& topology, std::shared_ptr<const Codec> codec) {
    Problem problem = problem_of(Kind::kReduceScatter, 10 << 20);
    problem.codec = std::move(codec);
    return std::string((*planner_for(topology, 0)->plan(problem))->algorithm);
  };
  const auto lossless = std::make_shared<const ZerosCodec>(1);
  const auto keeping = std::make_shared<const KeepingCodec>(100);
  for (const Topology& topology :
       {Topology::uniform(4, 1, 1), Topology::uniform(2, 2, 100), *Topology::make({0, 0, 1}, {})}) {
    EXPECT_EQ(chosen(topology, lossless), "two_dimensional_coded");
    EXPECT_EQ(chosen(topology, keeping), chosen(topology, nullptr));
  }
  EXPECT_EQ(chosen(Topology::one_host(4), lossless), chosen(Topology::one_host(4), nullptr));
}

TEST(Planner, a_coded_algorithm_can_not_be_forced_on_what_must_be_exact) {
  const auto planner = planner_for(Topology::uniform(2, 2, 1), 0, "two_dimensional_coded");
  const auto planned = planner->plan(problem_of(Kind::kAllReduce, 1024));
  ASSERT_EQ(planned.status().code(), Code::kInvalidArgument);
  EXPECT_NE(planned.status().message().find("nothing may be coded"), std::string::npos);
}

std::string chosen_under(const TwoDimensionalChoice& choice, std::uint64_t bytes,
                         const Topology& topology = Topology::uniform(2, 2, 1),
                         const std::string& forced = "") {
  const auto planner = Planner::create(all_algorithms(), topology, {}, 0, forced, choice).value();
  return (*planner->plan(problem_of(Kind::kAllReduce, bytes)))->algorithm;
}

TEST(Planner, the_user_may_force_two_dimensions_forbid_them_or_bound_their_messages) {
  using Use = TwoDimensionalChoice::Use;
  constexpr std::uint64_t kShort = 64, kLong = 40 << 20;
  const std::string wanted = "two_dimensional";
  EXPECT_NE(chosen_under({}, kShort), wanted);
  EXPECT_EQ(chosen_under({}, kLong), wanted);
  EXPECT_EQ(chosen_under({Use::kWhereItFits}, kShort), wanted);
  EXPECT_NE(chosen_under({Use::kNever}, kLong), wanted);
  EXPECT_EQ(chosen_under({Use::kIfFastest, kLong}, kLong), wanted);
  EXPECT_NE(chosen_under({Use::kIfFastest, kLong - 1}, kLong), wanted);
  EXPECT_EQ(chosen_under({Use::kWhereItFits, kShort}, kShort), wanted);
  EXPECT_NE(chosen_under({Use::kWhereItFits, kShort}, kShort + 4), wanted);
  EXPECT_NE(chosen_under({Use::kWhereItFits}, kLong, Topology::one_host(4)), wanted)
      << "where it fits";
  EXPECT_EQ(chosen_under({Use::kWhereItFits}, kLong, *Topology::one_host(4).grouped(2)), wanted);
  EXPECT_EQ(chosen_under({Use::kNever}, kLong, Topology::uniform(2, 2, 1), wanted), wanted)
      << "TACO_ALGORITHM comes first";
  const auto planner =
      Planner::create(all_algorithms(), Topology::uniform(2, 2, 1), {}, 0, "", {Use::kNever})
          .value();
  EXPECT_TRUE(planner->plan(problem_of(Kind::kBroadcast, kLong)).ok());
}

TEST(Planner, problems_with_another_codec_have_another_schedule) {
  const auto planner =
      Planner::create(algorithms_and_coded(), Topology::uniform(4, 1, 1), {}, 0, "coded").value();
  Problem problem = problem_of(Kind::kAllReduce, 1 << 20);
  problem.codec = std::make_shared<const ZerosCodec>(0.1);
  const auto first = *planner->plan(problem);
  EXPECT_EQ(*planner->plan(problem), first);
  problem.codec = std::make_shared<const ZerosCodec>(0.2);
  EXPECT_NE(*planner->plan(problem), first);
}

TEST(Planner, equal_problems_share_one_schedule) {
  const auto planner = planner_for(Topology::one_host(4), 0);
  const auto first = *planner->plan(problem_of(Kind::kAllReduce, 4096));
  EXPECT_EQ(first, *planner->plan(problem_of(Kind::kAllReduce, 4096)));
  Problem in_place = problem_of(Kind::kAllReduce, 4096);
  in_place.in_place = true;
  EXPECT_NE(first, *planner->plan(in_place));
  EXPECT_EQ(planner->cached(), 2u);
}

TEST(Planner, the_cache_is_bounded_and_keeps_what_was_used_last) {
  const auto planner = planner_for(Topology::one_host(4), 0);
  const auto favourite = *planner->plan(problem_of(Kind::kAllReduce, 4));
  for (std::uint64_t i = 2; i < 3000; ++i) {
    ASSERT_TRUE(planner->plan(problem_of(Kind::kAllReduce, i * 4)).ok());
    EXPECT_EQ(*planner->plan(problem_of(Kind::kAllReduce, 4)), favourite);
  }
  EXPECT_LE(planner->cached(), 512u);
  const auto large = planner_for(Topology::one_host(64), 0, "ring");
  for (std::uint64_t i = 1; i < 400; ++i) {
    ASSERT_TRUE(large->plan(problem_of(Kind::kAllReduce, (i << 20) * 16)).ok());
  }
  EXPECT_LT(large->cached(), 200u) << "long schedules count for more";
}

TEST(Planner, a_schedule_outlives_its_planner) {
  auto planner = planner_for(Topology::one_host(4), 0);
  const auto schedule = *planner->plan(problem_of(Kind::kAllReduce, 4096));
  planner.reset();
  EXPECT_FALSE(schedule->steps.empty());
}

TEST(Planner, steps_stay_bounded_when_messages_do_not) {
  for (const Topology& topology :
       {Topology::one_host(4), Topology::uniform(4, 1, 1), Topology::uniform(2, 4, 25)}) {
    const auto planner = planner_for(topology, 0);
    for (const Kind kind : kKinds) {
      if (kind == Kind::kAllToAll) continue;  // its chunk may not depend on the blocks
      const auto schedule = *planner->plan(problem_of(kind, std::uint64_t{16} << 30));
      EXPECT_LT(schedule->steps.size(), 50000u) << name_of(kind) << " " << schedule->algorithm;
      for (const Step& step : schedule->steps) {
        ASSERT_LE(std::max(step.source.bytes, step.destination.bytes), harp::kMaxMessageBytes);
      }
    }
  }
}

}  // namespace
}  // namespace taco::pg
