// The executor over the loopback network, on schedules written for the purpose: messages whose
// length is known only when they are sent, and what codecs do.
#include "pg/execution/executor.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "support/coded_all_reduce.h"
#include "support/schedule_ranks.h"
#include "support/words_codec.h"
#include "support/written_schedules.h"
#include "support/zeros_codec.h"

namespace taco::pg {
namespace {

using namespace testing;
using taco::testing::RankResult;
using taco::testing::ScheduleRanks;
using Floats = std::vector<float>;

const auto kCodec = std::make_shared<const ZerosCodec>();

Problem all_reduce_of(std::uint64_t bytes) {
  Problem problem;
  problem.kind = Kind::kAllReduce;
  problem.element_bytes = sizeof(float);
  problem.bytes = bytes;
  problem.codec = kCodec;
  return problem;
}

Piece piece_over(Floats& values) {
  return {reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(float)};
}

OperationSpec spec_over(Floats& input, Floats& output) {
  OperationSpec spec{.kind = Kind::kAllReduce, .dtype = kernels::Dtype::kF32};
  spec.inputs = {piece_over(input)};
  spec.outputs = {piece_over(output)};
  spec.codec = kCodec;
  return spec;
}

// The buffers that each rank gives and gets.
struct Buffers {
  Buffers(int world, std::size_t count) : inputs(world, Floats(count)), outputs(world) {
    for (Floats& output : outputs) output.assign(count, -1);
  }
  std::vector<OperationSpec> specs() {
    std::vector<OperationSpec> specs;
    for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
      specs.push_back(spec_over(inputs[rank], outputs[rank]));
    }
    return specs;
  }
  std::vector<Floats> inputs, outputs;
};

// Codes its input and sends that.
const Program kSendsCoded = [](ScheduleBuilder& b) {
  const VariableSlice coded = b.coded(4096);
  b.encode(coded, b.input());
  b.send(coded, 1);
};

void expect_all_ok(const std::vector<RankResult>& results) {
  for (const RankResult& result : results)
    EXPECT_TRUE(result.status.ok()) << result.status.message();
}

// Small integers, of which most are 0: sums are exact, and blocks differ in length.
Floats sparse_values(std::size_t count, std::mt19937_64& random) {
  const std::uint64_t share = 1 + random() % 8;
  Floats values(count);
  for (float& value : values)
    value = random() % 8 < share ? 0.f : static_cast<float>(random() % 1000);
  return values;
}

TEST(Executor, a_collective_of_coded_messages_gives_the_plain_result) {
  for (const int world : {1, 2, 3, 5}) {
    for (const std::uint64_t seed : {0, 1, 2, 3}) {
      std::mt19937_64 random(seed * 100 + world);
      ScheduleRanks ranks({.processes = world, .seed = seed});
      for (const std::size_t count : {1, 7, 1000, 50'000}) {
        Buffers buffers(world, count);
        Floats expected(count);
        for (Floats& input : buffers.inputs) {
          input = sparse_values(count, random);
          for (std::size_t i = 0; i < count; ++i) expected[i] += input[i];
        }
        const Problem problem = all_reduce_of(count * sizeof(float));
        std::vector<Schedule> schedules;
        for (int rank = 0; rank < world; ++rank) {
          schedules.push_back(
              build_schedule(coded_all_reduce, problem, Topology::one_host(world), 16 << 10, rank));
          schedules.back().turn_bytes = 1000;  // a block takes several turns
        }
        expect_all_ok(ranks.run(schedules, buffers.specs()));
        for (const Floats& output : buffers.outputs) EXPECT_EQ(output, expected) << count;
      }
    }
  }
}

TEST(Executor, a_message_is_as_long_as_its_block_has_become) {
  const Problem problem = all_reduce_of(4096);
  Buffers buffers(2, 1024);
  buffers.inputs[0][5] = 1.5f;
  const auto schedules = write(problem, {kSendsCoded, [](ScheduleBuilder& b) {
                                           const VariableSlice coded = b.coded(4096);
                                           b.receive(coded, 0);
                                           b.decode(b.output(), coded);
                                         }});
  ScheduleRanks ranks({.processes = 2});
  const auto results = ranks.run(schedules, buffers.specs());
  expect_all_ok(results);
  EXPECT_EQ(buffers.outputs[1], buffers.inputs[0]);
  EXPECT_EQ(results[1].bytes_received, 4096 / 16 * 2 + 2u) << "1.5 has two bytes that are not 0";
}

// As an exchange of pages needs it: one side knows the length, the other only the most it may be.
TEST(Executor, a_receive_that_knows_only_the_most_passes_on_what_came) {
  const Problem problem = all_reduce_of(4096);
  for (const std::uint64_t bytes : {4, 256, 260, 4096}) {
    Buffers buffers(3, 1024);
    for (std::size_t i = 0; i < 1024; ++i) buffers.inputs[0][i] = static_cast<float>(i);
    const Program takes = [](ScheduleBuilder& b) {
      const VariableSlice page = b.variable(b.output(), 4096);
      b.receive(page, b.rank() - 1);
      if (b.rank() == 1) b.send(page, 2);
    };
    const Program gives = [&](ScheduleBuilder& b) { b.send(b.input().part(0, bytes), 1); };
    ScheduleRanks ranks({.processes = 3, .seed = bytes});
    const auto results = ranks.run(write(problem, {gives, takes, takes}), buffers.specs());
    expect_all_ok(results);
    Floats expected(1024, -1);
    std::memcpy(expected.data(), buffers.inputs[0].data(), bytes);
    for (const int rank : {1, 2}) {
      EXPECT_EQ(results[rank].bytes_received, bytes);
      EXPECT_EQ(buffers.outputs[rank], expected) << bytes;
    }
  }
}

TEST(Executor, a_receive_that_knows_the_length_takes_no_other) {
  const Problem problem = all_reduce_of(4096);
  const Program gives = [](ScheduleBuilder& b) { b.send(b.input().part(0, 128), 1); };
  const Program takes = [](ScheduleBuilder& b) { b.receive(b.output().part(0, 256), 0); };
  Buffers buffers(2, 1024);
  ScheduleRanks ranks({.processes = 2});
  const Status status = ranks.run(write(problem, {gives, takes}), buffers.specs())[1].status;
  EXPECT_EQ(status.code(), Code::kMismatch);
  EXPECT_NE(status.message().find("128 bytes where 256"), std::string::npos) << status.message();
}

// Says of a block that more of its bytes are there than there are.
class BoastfulCodec final : public Codec {
 public:
  const char* name() const override { return kCodec->name(); }
  std::uint64_t most(std::uint64_t bytes) const override { return kCodec->most(bytes); }
  double bytes_per_second() const override { return 1e9; }
  Result<std::size_t> encode(Coding& coding, std::size_t) const override {
    coding.destination[0] = coding.destination[1] = std::byte{0xff};
    coding.written = 2;
    coding.done = true;
    return coding.source_bytes;
  }
  Result<std::size_t> decode(Coding& coding, std::size_t budget) const override {
    return kCodec->decode(coding, budget);
  }
};

// In fragments of any length, straight from where they arrive.
TEST(Executor, what_is_coded_element_by_element_is_added_as_it_arrives) {
  for (const std::uint64_t seed : {0, 1, 2, 3}) {
    for (const std::size_t count : {1, 7, 1000, 50'000}) {
      Problem problem = all_reduce_of(count * sizeof(float));
      problem.codec = std::make_shared<const WordsCodec>();
      Buffers buffers(2, count);
      Floats expected(count);
      for (std::size_t i = 0; i < count; ++i) {
        buffers.inputs[0][i] = static_cast<float>(i % 1000);
        buffers.outputs[1][i] = static_cast<float>(i % 77);
        expected[i] = buffers.inputs[0][i] + buffers.outputs[1][i];
      }
      auto specs = buffers.specs();
      for (OperationSpec& spec : specs) spec.codec = problem.codec;
      const Program sends = [&](ScheduleBuilder& b) {
        const VariableSlice coded = b.coded(problem.bytes);
        b.encode(coded, b.input());
        b.send(coded, 1);
      };
      const Program adds = [](ScheduleBuilder& b) { b.receive_coded(b.output(), 0); };
      ScheduleRanks ranks({.processes = 2, .seed = seed});
      expect_all_ok(ranks.run(write(problem, {sends, adds}), specs));
      EXPECT_EQ(buffers.outputs[1], expected) << count;
    }
  }
}

TEST(Executor, a_block_to_be_added_as_it_arrives_that_is_too_short_fails_the_operation) {
  Problem problem = all_reduce_of(4096);
  problem.codec = std::make_shared<const WordsCodec>();
  Buffers buffers(2, 1024);
  auto specs = buffers.specs();
  for (OperationSpec& spec : specs) spec.codec = problem.codec;
  const Program sends = [](ScheduleBuilder& b) { b.send(b.input().part(0, 4092), 1); };
  const Program adds = [](ScheduleBuilder& b) { b.receive_coded(b.output(), 0); };
  ScheduleRanks ranks({.processes = 2});
  const auto results = ranks.run(write(problem, {sends, adds}), specs);
  EXPECT_EQ(results[1].status.code(), Code::kMismatch);
  EXPECT_EQ(results[1].status.message(), "rank 0: sent 4092 bytes where 4096 are expected");
}

TEST(Executor, a_damaged_block_fails_the_operation_and_names_whose_it_is) {
  const Problem problem = all_reduce_of(4096);
  const auto schedules = write(problem, {kSendsCoded, [](ScheduleBuilder& b) {
                                           const VariableSlice coded = b.coded(4096);
                                           b.receive(coded, 0);
                                           b.decode_reduce(b.output(), b.input(), coded);
                                           b.finish_reduction(b.output());
                                           b.copy(b.scratch(4096), b.output());  // never begins
                                         }});
  Buffers buffers(2, 1024);
  auto specs = buffers.specs();
  specs[0].codec = std::make_shared<const BoastfulCodec>();
  ScheduleRanks ranks({.processes = 2});
  const auto results = ranks.run(schedules, specs);
  EXPECT_TRUE(results[0].status.ok()) << results[0].status.message();
  EXPECT_EQ(results[1].status.code(), Code::kMismatch);
  EXPECT_EQ(results[1].status.message(), "rank 0: a coded block ends too early");
}

}  // namespace
}  // namespace taco::pg
