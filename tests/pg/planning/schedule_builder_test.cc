#include "pg/planning/schedule_builder.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "pg/algorithms/list.h"
#include "support/keeping_codec.h"
#include "support/zeros_codec.h"

namespace taco::pg {
namespace {

Problem all_reduce_of(std::uint64_t bytes, bool in_place = false) {
  Problem problem;
  problem.kind = Kind::kAllReduce;
  problem.element_bytes = 4;
  problem.bytes = bytes;
  problem.in_place = in_place;
  return problem;
}

bool depends(const Schedule& schedule, std::uint32_t later, std::uint32_t earlier) {
  const auto dependents = schedule.dependents_of(schedule.steps[earlier]);
  return std::find(dependents.begin(), dependents.end(), later) != dependents.end();
}

TEST(ScheduleBuilder, a_reader_waits_for_the_writer_of_its_bytes_only) {
  const Problem problem = all_reduce_of(1024);
  ScheduleBuilder builder(problem, 0, 4, 1 << 20);
  builder.receive(builder.output().part(0, 512), 1);    // 0
  builder.receive(builder.output().part(512, 512), 2);  // 1
  builder.send(builder.output().part(256, 128), 3);     // 2
  builder.send(builder.output().part(256, 512), 3);     // 3
  const Schedule schedule = builder.finish("test");
  EXPECT_TRUE(depends(schedule, 2, 0));
  EXPECT_FALSE(depends(schedule, 2, 1));
  EXPECT_EQ(schedule.steps[2].dependencies, 1u);
  EXPECT_EQ(schedule.steps[3].dependencies, 2u);
}

TEST(ScheduleBuilder, a_writer_waits_for_every_send_that_reads_its_bytes) {
  const Problem problem = all_reduce_of(1024);
  ScheduleBuilder builder(problem, 0, 4, 1 << 20);
  builder.send(builder.output().part(0, 600), 1);      // 0
  builder.send(builder.output().part(300, 300), 2);    // 1
  builder.receive(builder.output().part(500, 64), 3);  // 2
  builder.receive(builder.output().part(600, 64), 3);  // 3
  const Schedule schedule = builder.finish("test");
  EXPECT_TRUE(depends(schedule, 2, 0));
  EXPECT_TRUE(depends(schedule, 2, 1));
  EXPECT_EQ(schedule.steps[3].dependencies, 0u);
}

TEST(ScheduleBuilder, reducing_receives_of_one_slice_come_one_after_the_other) {
  const Problem problem = all_reduce_of(256);
  ScheduleBuilder builder(problem, 0, 3, 1 << 20);
  builder.receive_reduce(builder.output(), builder.input(), 1);
  builder.receive_reduce(builder.output(), builder.output(), 2);
  const Schedule schedule = builder.finish("test");
  EXPECT_TRUE(depends(schedule, 1, 0));
}

TEST(ScheduleBuilder, in_place_input_and_output_are_one_memory) {
  for (const bool in_place : {false, true}) {
    const Problem problem = all_reduce_of(256, in_place);
    ScheduleBuilder builder(problem, 0, 2, 1 << 20);
    builder.send(builder.input(), 1);
    builder.receive(builder.output(), 1);
    builder.copy(builder.output(), builder.input());
    const Schedule schedule = builder.finish("test");
    EXPECT_EQ(depends(schedule, 1, 0), in_place);
    EXPECT_EQ(schedule.steps.size(), in_place ? 2u : 3u) << "a copy onto itself is no step";
  }
}

TEST(ScheduleBuilder, long_steps_are_cut_alike_at_both_ends_without_cutting_elements) {
  for (const std::uint64_t bytes : {4ull, 60ull, 64ull, 68ull, 1000ull, 4096ull, 10004ull}) {
    const Problem problem = all_reduce_of(bytes);
    ScheduleBuilder sender(problem, 0, 2, 300), receiver(problem, 1, 2, 300);
    sender.send(sender.input(), 1);
    receiver.receive(receiver.output(), 0);
    const Schedule sent = sender.finish("test"), received = receiver.finish("test");
    ASSERT_EQ(sent.steps.size(), received.steps.size());
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < sent.steps.size(); ++i) {
      const Slice& source = sent.steps[i].source;
      EXPECT_EQ(source.bytes, received.steps[i].destination.bytes);
      EXPECT_EQ(source.offset, total);
      EXPECT_EQ(source.offset % 64, 0u);
      EXPECT_LE(source.bytes, 320u);
      total += source.bytes;
    }
    EXPECT_EQ(total, bytes);
  }
}

TEST(ScheduleBuilder, channels_count_messages_of_each_pair_in_each_direction) {
  const Problem problem = all_reduce_of(256);
  ScheduleBuilder builder(problem, 0, 3, 1 << 20);
  const int both[] = {1, 2};
  builder.send(builder.input(), both);
  builder.send(builder.input(), 2);
  builder.receive(builder.output(), 2);
  const Schedule schedule = builder.finish("test");
  ASSERT_EQ(schedule.transfers.size(), 4u);
  EXPECT_EQ(schedule.transfers_of(schedule.steps[0])[1].channel, 0u);
  EXPECT_EQ(schedule.transfers_of(schedule.steps[1])[0].channel, 1u);
  EXPECT_EQ(schedule.transfers_of(schedule.steps[2])[0].channel, 0u);
  EXPECT_EQ(schedule.sends, 3u);
  EXPECT_EQ(schedule.receives, 1u);
}

TEST(ScheduleBuilder, steps_over_nothing_are_left_out) {
  const Problem problem = all_reduce_of(0);
  ScheduleBuilder builder(problem, 0, 2, 1 << 20);
  builder.send(builder.input(), 1);
  builder.receive_reduce(builder.output(), builder.input(), 1);
  builder.reduce(builder.output(), builder.output(), builder.input());
  EXPECT_TRUE(builder.finish("test").steps.empty());
}

TEST(ScheduleBuilder, a_signal_waits_for_all_that_was_awaited_before) {
  Problem problem;
  problem.kind = Kind::kBarrier;
  ScheduleBuilder builder(problem, 0, 4, 1 << 20);
  builder.signal(1);
  builder.await(2);
  builder.await(3);
  builder.signal(1);
  const Schedule schedule = builder.finish("test");
  EXPECT_EQ(schedule.steps[0].dependencies, 0u);
  EXPECT_EQ(schedule.steps[3].dependencies, 2u);
}

TEST(ScheduleBuilder, only_sends_from_scratch_outlive_the_operation) {
  const Problem problem = all_reduce_of(256);
  ScheduleBuilder builder(problem, 0, 2, 1 << 20);
  const Slice scratch = builder.scratch(256);
  builder.copy(scratch, builder.input());
  builder.send(scratch, 1);
  builder.send(builder.input(), 1);
  const Schedule schedule = builder.finish("test");
  EXPECT_FALSE(schedule.steps[0].outlives_operation());
  EXPECT_TRUE(schedule.steps[1].outlives_operation());
  EXPECT_FALSE(schedule.steps[2].outlives_operation());
}

TEST(ScheduleBuilder, premultiplied_input_is_scaled_before_anybody_reads_it) {
  Problem problem = all_reduce_of(256);
  problem.premultiply = true;
  ScheduleBuilder builder(problem, 0, 2, 1 << 20);
  builder.send(builder.input(), 1);
  const Schedule schedule = builder.finish("test");
  EXPECT_EQ(schedule.steps[0].kind, StepKind::kScale);
  EXPECT_EQ(schedule.steps[0].source.space, Space::kInput);
  EXPECT_TRUE(depends(schedule, 1, 0));
  EXPECT_EQ(schedule.steps[1].source, schedule.steps[0].destination);
}

TEST(ScheduleBuilder, a_coded_message_is_not_cut_and_waits_for_what_tells_its_length) {
  Problem problem = all_reduce_of(4096);
  problem.codec = std::make_shared<const testing::ZerosCodec>(0.5);
  ScheduleBuilder builder(problem, 0, 2, 256);
  const VariableSlice own = builder.coded(4096), incoming = builder.coded(4096);
  builder.encode(own, builder.input());                                // 0
  builder.send(own, 1);                                                // 1
  builder.receive(incoming, 1);                                        // 2
  builder.decode_reduce(builder.output(), builder.input(), incoming);  // 3
  builder.encode(own, builder.output());                               // 4
  const Schedule schedule = builder.finish("test");
  ASSERT_EQ(schedule.steps.size(), 5u);
  EXPECT_TRUE(depends(schedule, 1, 0));
  EXPECT_TRUE(depends(schedule, 3, 2));
  EXPECT_TRUE(depends(schedule, 4, 1)) << "the block is sent before another takes its place";
  EXPECT_TRUE(depends(schedule, 4, 3));
  const std::uint64_t most = problem.codec->most(4096);
  EXPECT_EQ(schedule.steps[1].source.bytes, most);
  EXPECT_EQ(schedule.message_bytes(schedule.steps[1]), most / 2);
  EXPECT_EQ(schedule.steps[0].length, schedule.steps[1].length);
  EXPECT_NE(schedule.steps[1].length, schedule.steps[2].length);
  EXPECT_EQ(schedule.steps[3].worked_on().bytes, 4096u);
}

TEST(ScheduleBuilder, whoever_encodes_a_residual_comes_after_whoever_encoded_it_before) {
  Problem problem = all_reduce_of(256);
  problem.codec = std::make_shared<const testing::KeepingCodec>();
  ScheduleBuilder builder(problem, 0, 2, 1 << 20);
  const auto half = [&](std::uint64_t from) {
    builder.encode(builder.coded(128), builder.input().part(from, 128),
                   ScheduleBuilder::residual(from, 128));
  };
  half(0);
  half(128);
  half(0);
  const Schedule schedule = builder.finish("test");
  ASSERT_EQ(schedule.steps.size(), 3u);
  EXPECT_FALSE(depends(schedule, 1, 0));
  EXPECT_TRUE(depends(schedule, 2, 0));
  EXPECT_FALSE(depends(schedule, 2, 1));
  EXPECT_EQ(schedule.steps[1].operand, ScheduleBuilder::residual(128, 128));
}

TEST(ScheduleBuilder, a_room_is_used_again_once_its_block_has_been_sent) {
  Problem problem = all_reduce_of(256);
  problem.codec = std::make_shared<const testing::ZerosCodec>();
  ScheduleBuilder builder(problem, 0, 2, 1 << 20);
  const Slice room = builder.scratch(problem.codec->most(128));
  for (const std::uint64_t bytes : {128, 64}) {
    const VariableSlice coded = builder.coded(room, bytes);
    EXPECT_EQ(coded.room.bytes, problem.codec->most(bytes));
    builder.encode(coded, builder.input().part(0, bytes));
    builder.send(coded, 1);
  }
  const Schedule schedule = builder.finish("test");
  EXPECT_TRUE(depends(schedule, 2, 1));
  EXPECT_NE(schedule.steps[1].length, schedule.steps[3].length);
}

TEST(ScheduleBuilder, what_is_coded_of_the_input_has_been_scaled) {
  Problem problem = all_reduce_of(256);
  problem.premultiply = true;
  problem.codec = std::make_shared<const testing::ZerosCodec>();
  ScheduleBuilder builder(problem, 0, 2, 1 << 20);
  const VariableSlice coded = builder.coded(256);
  builder.encode(coded, builder.input());
  builder.decode_reduce(builder.output(), builder.input(), coded);
  const Schedule schedule = builder.finish("test");
  ASSERT_EQ(schedule.steps.size(), 4u);
  EXPECT_EQ(schedule.steps[0].kind, StepKind::kScale);
  EXPECT_EQ(schedule.steps[1].source, schedule.steps[0].destination);
  EXPECT_EQ(schedule.steps[2].kind, StepKind::kScale);
  EXPECT_EQ(schedule.steps[3].operand, schedule.steps[2].destination);
}

TEST(ScheduleBuilder, coding_nothing_is_no_step) {
  Problem problem = all_reduce_of(0);
  problem.codec = std::make_shared<const testing::ZerosCodec>();
  ScheduleBuilder builder(problem, 0, 2, 1 << 20);
  const VariableSlice coded = builder.coded(0);
  builder.encode(coded, builder.input());
  builder.send(coded, 1);
  builder.receive(coded, 1);
  builder.decode(builder.output(), coded);
  EXPECT_TRUE(builder.finish("test").steps.empty());
}

TEST(ScheduleBuilder, tags_keep_sequence_and_channel_apart_and_off_point_to_point) {
  EXPECT_NE(collective_tag(1, 0), collective_tag(0, 1));
  EXPECT_EQ(collective_tag(7, 0x7fffffff) & kPointToPointTag, 0u);
  EXPECT_EQ(collective_tag(7, 3) >> 32, 7u);
}

// Scaled input waits in a ring: however long the message, and whatever the algorithm reads of it.
TEST(ScheduleBuilder, scaling_the_input_takes_no_scratch_that_grows_with_it) {
  constexpr std::uint64_t kRing = 8 << 20, kLong = std::uint64_t{3} << 28, kChunk = 1 << 20;
  for (const Topology& topology : {Topology::one_host(8), Topology::uniform(8, 1, 10),
                                   Topology::uniform(2, 4, 10), Topology::one_host(3)}) {
    for (const Algorithm* algorithm : all_algorithms()) {
      Problem plain;
      plain.kind = algorithm->kind;
      plain.element_bytes = 4;
      const bool scatters = plain.kind == Kind::kReduceScatter;
      if (!scatters && plain.kind != Kind::kAllReduce && plain.kind != Kind::kReduce) continue;
      plain.bytes = scatters ? kLong / topology.world() / 4 * 4 : kLong;
      if (algorithm->unfit(plain, topology)) continue;
      Problem scaled = plain;
      scaled.premultiply = true;
      for (int rank = 0; rank < topology.world(); ++rank) {
        const auto bytes = [&](const Problem& problem) {
          return build_schedule(*algorithm, problem, topology, kChunk, rank).scratch_bytes;
        };
        EXPECT_LE(bytes(scaled), bytes(plain) + kRing)
            << name_of(plain.kind) << " " << algorithm->name << ", rank " << rank;
      }
    }
  }
}

TEST(ScheduleBuilder, scaled_input_overwrites_only_what_has_been_sent) {
  Problem problem = all_reduce_of(std::uint64_t{20} << 20);
  problem.premultiply = true;
  ScheduleBuilder builder(problem, 0, 2, 1 << 20);
  builder.send(builder.input(), 1);
  const Schedule schedule = builder.finish("test");
  ASSERT_EQ(schedule.sends, 20u);
  for (std::uint32_t send = 1; send < schedule.steps.size(); send += 2) {
    EXPECT_EQ(schedule.steps[send - 1].kind, StepKind::kScale);
    EXPECT_EQ(schedule.steps[send].source, schedule.steps[send - 1].destination);
    EXPECT_TRUE(depends(schedule, send, send - 1));
    if (send >= 17) {
      EXPECT_TRUE(depends(schedule, send - 1, send - 16)) << send;
    }
  }
}

}  // namespace
}  // namespace taco::pg
