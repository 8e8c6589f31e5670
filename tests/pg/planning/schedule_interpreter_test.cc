// The interpreter must find what is wrong: schedules broken on purpose, one promise at a time.
#include "support/schedule_interpreter.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "pg/algorithms/gradient_shard.h"
#include "pg/algorithms/list.h"
#include "support/coded_all_reduce.h"
#include "support/keeping_codec.h"
#include "support/schedule_world.h"
#include "support/words_codec.h"
#include "support/written_schedules.h"
#include "support/zeros_codec.h"

namespace taco::pg {
namespace {

using namespace testing;

std::vector<Problem> broadcast_problems(int world, std::uint64_t bytes) {
  Problem problem;
  problem.kind = Kind::kBroadcast;
  problem.element_bytes = 4;
  problem.bytes = bytes;
  return std::vector<Problem>(world, problem);
}

// Takes away every edge into `later`, as a forgotten dependency would.
void forget_dependencies(Schedule& schedule, std::uint32_t later) {
  for (Step& step : schedule.steps) {
    for (std::uint32_t i = 0; i < step.dependents; ++i) {
      std::uint32_t& dependent = schedule.dependents[step.first_dependent + i];
      if (dependent != later) continue;
      dependent = schedule.dependents[step.first_dependent + --step.dependents];
      --i;
    }
  }
  schedule.steps[later].dependencies = 0;
}

// The first failure over many orders of events.
std::string first_failure(const std::vector<Problem>& problems,
                          const std::vector<Schedule>& schedules, std::uint32_t window = 0,
                          const std::vector<Feedback>& feedback = {}) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    InterpreterOptions options;
    options.seed = seed;
    options.mood = static_cast<Mood>(seed % kMoods);
    options.window = window;
    const InterpreterResult result = interpret(problems, schedules, options, feedback);
    if (!result.failure.empty()) return result.failure;
  }
  return "";
}

#define EXPECT_FINDS(text, what) \
  EXPECT_NE((text).find(what), std::string::npos) << "said: " << (text)

TEST(ScheduleInterpreter, finds_a_write_to_what_is_being_sent) {
  const auto problems = broadcast_problems(2, 64);
  auto schedules = write(problems, {[](ScheduleBuilder& b) {
                                      b.send(b.output(), 1);
                                      b.receive(b.output(), 1);
                                    },
                                    [](ScheduleBuilder& b) {
                                      const Slice s = b.scratch(64);
                                      b.send(s, 0);
                                      b.receive(b.output(), 0);
                                    }});
  EXPECT_EQ(first_failure(problems, schedules), "");
  forget_dependencies(schedules[0], 1);
  EXPECT_FINDS(first_failure(problems, schedules), "is sending");
}

TEST(ScheduleInterpreter, finds_two_receives_into_the_same_bytes) {
  const auto problems = broadcast_problems(3, 64);
  auto schedules = write(problems, {[](ScheduleBuilder& b) { b.send(b.output(), 2); },
                                    [](ScheduleBuilder& b) { b.send(b.output(), 2); },
                                    [](ScheduleBuilder& b) {
                                      b.receive(b.output(), 0);
                                      b.receive(b.output(), 1);
                                    }});
  EXPECT_EQ(first_failure(problems, schedules), "");
  forget_dependencies(schedules[2], 1);
  EXPECT_FINDS(first_failure(problems, schedules), "is receiving");
}

TEST(ScheduleInterpreter, finds_messages_without_a_partner_or_of_another_length) {
  const auto problems = broadcast_problems(2, 64);
  const Program nothing = [](ScheduleBuilder&) {};
  const Program sends = [](ScheduleBuilder& b) { b.send(b.output(), 1); };
  const Program receives = [](ScheduleBuilder& b) { b.receive(b.output(), 0); };
  const Program receives_half = [](ScheduleBuilder& b) { b.receive(b.output().part(0, 32), 0); };
  EXPECT_FINDS(first_failure(problems, write(problems, {sends, nothing})), "nobody receives");
  EXPECT_FINDS(first_failure(problems, write(problems, {nothing, receives})), "nobody sends");
  EXPECT_FINDS(first_failure(problems, write(problems, {sends, receives_half})), "lengths differ");
}

std::vector<Problem> coded_problems(int world, std::uint64_t bytes) {
  std::vector<Problem> problems = broadcast_problems(world, bytes);
  for (Problem& problem : problems) problem.codec = std::make_shared<const ZerosCodec>();
  return problems;
}

TEST(ScheduleInterpreter, finds_a_step_that_goes_by_a_length_before_it_is_known) {
  const auto problems = coded_problems(2, 64);
  auto schedules = write(problems, {[](ScheduleBuilder& b) {
                                      const VariableSlice coded = b.coded(64);
                                      b.encode(coded, b.output());
                                      b.send(coded, 1);
                                    },
                                    [](ScheduleBuilder& b) {
                                      const VariableSlice coded = b.coded(64);
                                      b.receive(coded, 0);
                                      b.decode(b.output(), coded);
                                    }});
  EXPECT_EQ(first_failure(problems, schedules), "");
  auto wrong = schedules;
  forget_dependencies(wrong[0], 1);
  EXPECT_FINDS(first_failure(problems, wrong), "not known yet");
  wrong = schedules;
  forget_dependencies(wrong[1], 1);
  EXPECT_NE(first_failure(problems, wrong), "");
}

TEST(ScheduleInterpreter, finds_messages_that_may_be_longer_than_their_receive) {
  const auto problems = coded_problems(2, 64);
  const auto with = [&](std::uint64_t sent, std::uint64_t received) {
    return write(problems, {[=](ScheduleBuilder& b) { b.send(b.output().part(0, sent), 1); },
                            [=](ScheduleBuilder& b) {
                              b.receive(b.variable(b.output().part(0, received), received), 0);
                            }});
  };
  EXPECT_EQ(first_failure(problems, with(32, 64)), "");
  EXPECT_EQ(first_failure(problems, with(64, 64)), "");
  EXPECT_FINDS(first_failure(problems, with(64, 32)), "may be too long");
  const auto fixed =
      write(problems, {[](ScheduleBuilder& b) { b.send(b.variable(b.scratch(64), 64), 1); },
                       [](ScheduleBuilder& b) { b.receive(b.output(), 0); }});
  EXPECT_FINDS(first_failure(problems, fixed), "lengths differ");
}

TEST(ScheduleInterpreter, finds_a_block_without_room_for_what_it_may_become) {
  const auto problems = coded_problems(1, 64);
  const auto schedules = write(
      problems, {[](ScheduleBuilder& b) { b.encode(b.variable(b.scratch(64), 64), b.output()); }});
  EXPECT_FINDS(first_failure(problems, schedules), "too little room");
}

TEST(ScheduleInterpreter, finds_a_deadlock) {
  const auto problems = broadcast_problems(2, 64);
  const Program forwards = [](ScheduleBuilder& b) {
    b.receive(b.output(), 1 - b.rank());
    b.send(b.output(), 1 - b.rank());
  };
  EXPECT_FINDS(first_failure(problems, write(problems, {forwards, forwards})), "deadlock");
}

TEST(ScheduleInterpreter, finds_a_deadlock_that_only_a_narrow_window_makes) {
  const auto problems = broadcast_problems(2, 128);
  const auto schedules = write(problems, {[](ScheduleBuilder& b) {
                                            b.send(b.output().part(0, 64), 1);
                                            b.send(b.output().part(64, 64), 1);
                                          },
                                          [](ScheduleBuilder& b) {
                                            b.receive(b.output().part(0, 64), 0);
                                            b.receive(b.output().part(64, 64), 0);
                                          }});
  EXPECT_EQ(first_failure(problems, schedules, 1), "");
  auto crossed = schedules;
  std::swap(crossed[1].transfers[0], crossed[1].transfers[1]);
  EXPECT_EQ(first_failure(problems, crossed, 2), "");
  EXPECT_FINDS(first_failure(problems, crossed, 1), "deadlock");
}

TEST(ScheduleInterpreter, finds_slices_beyond_their_piece_and_cut_elements) {
  const auto problems = broadcast_problems(2, 64);
  const auto with = [&](std::uint64_t offset, std::uint64_t bytes) {
    return write(problems, {[=](ScheduleBuilder& b) { b.send(b.output().part(offset, bytes), 1); },
                            [=](ScheduleBuilder& b) { b.receive(b.scratch(bytes), 0); }});
  };
  EXPECT_FINDS(first_failure(problems, with(32, 64)), "beyond");
  EXPECT_FINDS(first_failure(problems, with(2, 8)), "cuts an element");
}

TEST(ScheduleInterpreter, finds_an_input_that_was_written) {
  Problem problem;
  problem.kind = Kind::kAllReduce;
  problem.element_bytes = 4;
  problem.bytes = 64;
  const std::vector<Problem> problems(2, problem);
  const auto schedules = write(problems, {[](ScheduleBuilder& b) { b.send(b.input(), 1); },
                                          [](ScheduleBuilder& b) { b.receive(b.input(), 0); }});
  EXPECT_FINDS(first_failure(problems, schedules), "input was written");
}

TEST(ScheduleInterpreter, finds_a_barrier_that_is_left_too_early) {
  Problem problem;
  problem.kind = Kind::kBarrier;
  const std::vector<Problem> problems(3, problem);
  const auto schedules = write(problems, {[](ScheduleBuilder& b) {
                                            b.signal(1);
                                            b.await(1);
                                          },
                                          [](ScheduleBuilder& b) {
                                            b.signal(0);
                                            b.await(0);
                                          },
                                          [](ScheduleBuilder&) {}});
  EXPECT_FINDS(first_failure(problems, schedules), "left the barrier");
}

TEST(ScheduleInterpreter, tree_arithmetic_tells_orders_of_operands_apart) {
  const Bytes a{1, 2, 3, 4}, b{5, 6, 7, 8}, c{9, 10, 11, 12};
  const auto combine = [](const Bytes& x, const Bytes& y) {
    Bytes out(x.size());
    reduce_elements(Arithmetic::kTree, 4, out.data(), x.data(), y.data(), x.size());
    return out;
  };
  EXPECT_NE(combine(a, b), combine(b, a));
  EXPECT_NE(combine(combine(a, b), c), combine(a, combine(b, c)));
}

// The memory of a codec that has kept nothing.
std::vector<Feedback> nothing_kept(const Problem& problem, const Topology& topology) {
  std::vector<Feedback> feedback(topology.world());
  for (int rank = 0; rank < topology.world(); ++rank) {
    const Shard shard = gradient_shard(problem.bytes, sizeof(float), topology, rank);
    feedback[rank].residual.resize(shard.bytes / sizeof(float));
  }
  return feedback;
}

// Every dependency of a real schedule is needed: without those of one step, some order of events
// breaks a promise or the result.
void expect_each_dependency_needed(const Algorithm& algorithm, const Topology& topology,
                                   const std::shared_ptr<const Codec>& codec) {
  SCOPED_TRACE(algorithm.name);
  std::mt19937_64 random(1);
  ProblemTraits traits;
  traits.elements = 64;
  std::vector<Problem> problems = problems_of(algorithm.kind, 4, 4, traits, random);
  for (Problem& problem : problems) {
    problem.in_place = true;
    problem.codec = codec;
  }
  const std::vector<Feedback> feedback = nothing_kept(problems[0], topology);
  const std::vector<Schedule> right = schedules_of(algorithm, problems, topology, 1 << 20);
  ASSERT_EQ(first_failure(problems, right, 0, feedback), "");
  int tried = 0;
  for (std::uint32_t step = 0; step < right[1].steps.size(); ++step) {
    if (right[1].steps[step].dependencies == 0) continue;
    ++tried;
    std::vector<Schedule> wrong = right;
    forget_dependencies(wrong[1], step);
    bool noticed = !first_failure(problems, wrong, 0, feedback).empty();
    for (std::uint64_t seed = 1; seed <= 200 && !noticed; ++seed) {
      InterpreterOptions options;
      options.seed = seed;
      options.mood = static_cast<Mood>(seed % kMoods);
      const InterpreterResult result = interpret(problems, wrong, options, feedback);
      for (int rank = 0; rank < 4; ++rank) {
        noticed = noticed || result.outputs[rank] != expected_outputs(problems, rank);
      }
    }
    EXPECT_TRUE(noticed) << "step " << step << " (" << name_of(right[1].steps[step].kind) << ")";
  }
  EXPECT_GT(tried, 5);
}

TEST(ScheduleInterpreter, notices_each_forgotten_dependency_of_a_ring) {
  expect_each_dependency_needed(algorithms::all_reduce_ring, Topology::one_host(4), nullptr);
}

TEST(ScheduleInterpreter, notices_each_forgotten_dependency_of_coded_messages) {
  const auto codec = std::make_shared<const ZerosCodec>();
  expect_each_dependency_needed(coded_all_reduce, Topology::one_host(4), codec);
  expect_each_dependency_needed(algorithms::all_reduce_two_dimensional_coded,
                                Topology::uniform(2, 2, 1), codec);
  expect_each_dependency_needed(algorithms::all_reduce_two_dimensional_coded,
                                Topology::uniform(2, 2, 1), std::make_shared<const WordsCodec>());
}

TEST(ScheduleInterpreter, notices_each_forgotten_dependency_of_a_coded_reduce_scatter) {
  const auto& algorithm = algorithms::reduce_scatter_two_dimensional_coded;
  for (const Topology& topology : {Topology::uniform(2, 2, 1), Topology::uniform(4, 1, 1)}) {
    expect_each_dependency_needed(algorithm, topology, std::make_shared<const ZerosCodec>(1, 128));
    expect_each_dependency_needed(algorithm, topology, std::make_shared<const WordsCodec>(128));
  }
}

TEST(ScheduleInterpreter, notices_each_forgotten_dependency_of_a_codec_with_a_memory) {
  expect_each_dependency_needed(algorithms::all_reduce_two_dimensional_sparse,
                                Topology::uniform(2, 2, 1), std::make_shared<const KeepingCodec>());
}

std::vector<Problem> problems_that_keep(std::uint64_t bytes) {
  std::vector<Problem> problems = broadcast_problems(1, bytes);
  problems[0].codec = std::make_shared<const KeepingCodec>();
  return problems;
}

TEST(ScheduleInterpreter, finds_a_block_that_is_encoded_without_its_residual_or_with_another) {
  const auto problems = problems_that_keep(64);
  const auto with = [&](const Slice& residual) {
    const auto schedules = write(problems, {[&](ScheduleBuilder& b) {
                                   const VariableSlice coded = b.coded(64);
                                   b.encode(coded, b.output(), residual);
                                 }});
    std::vector<Feedback> feedback(1);
    feedback[0].residual.resize(16);
    return first_failure(problems, schedules, 0, feedback);
  };
  EXPECT_EQ(with(ScheduleBuilder::residual(0, 64)), "");
  EXPECT_FINDS(with(ScheduleBuilder::residual(4, 64)), "beyond its piece");
  EXPECT_FINDS(with(Slice{}), "slices differ in length");
}

// Twice the same residual: what the first encoding has taken out, the second does not find.
TEST(ScheduleInterpreter, finds_two_encodings_of_one_residual_in_any_order) {
  const auto problems = problems_that_keep(64);
  auto schedules = write(problems, {[](ScheduleBuilder& b) {
                           const Slice kept = ScheduleBuilder::residual(0, 64);
                           const Slice block = b.scratch(64);
                           b.copy(block, b.output());
                           for (int i = 0; i < 2; ++i) {
                             const VariableSlice coded = b.coded(64);
                             b.encode(coded, block, kept);
                             if (i == 0) b.decode(b.output(), coded);
                           }
                         }});
  const auto outputs = [&] {
    std::vector<Feedback> feedback(1);
    for (int i = 0; i < 16; ++i) feedback[0].residual.push_back(1);
    std::vector<std::vector<Bytes>> seen;
    for (std::uint64_t seed = 1; seed <= 50; ++seed) {
      InterpreterOptions options;
      options.seed = seed;
      seen.push_back(interpret(problems, schedules, options, feedback).outputs[0]);
    }
    return std::count(seen.begin(), seen.end(), seen[0]);
  };
  EXPECT_EQ(outputs(), 50);
  ASSERT_EQ(schedules[0].steps[3].kind, StepKind::kEncode);
  forget_dependencies(schedules[0], 3);
  EXPECT_LT(outputs(), 50);
}

}  // namespace
}  // namespace taco::pg
