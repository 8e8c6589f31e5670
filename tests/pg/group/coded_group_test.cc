// all_reduce by a codec in whole groups: over even and uneven hosts, in groups of ranks, beside
// other operations; what is refused, and what a peer that sends rubbish, or an abort, brings about.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/timeline.h"
#include "pg/algorithms/gradient_shard.h"
#include "support/eventually.h"
#include "support/keeping_codec.h"
#include "support/pg_values.h"
#include "support/rank_threads.h"
#include "support/zeros_codec.h"

namespace taco::pg {
namespace {

using kernels::Dtype;
using kernels::ReduceOp;
using taco::testing::Bytes;
using taco::testing::eventually;
using taco::testing::piece;
using taco::testing::RankOptions;
using taco::testing::RankThreads;
using taco::testing::reduced;
using taco::testing::same;
using taco::testing::values;
using testing::KeepingCodec;
using testing::ZerosCodec;

std::shared_ptr<const Codec> lossless() { return std::make_shared<const ZerosCodec>(0.5, 4096); }

OperationSpec coded(Bytes& input, Bytes& output, std::shared_ptr<const Codec> codec,
                    ReduceOp op = ReduceOp::kSum) {
  OperationSpec spec{.kind = Kind::kAllReduce, .dtype = Dtype::kF32, .op = op};
  spec.inputs = {piece(input)};
  spec.outputs = {piece(output)};
  spec.codec = std::move(codec);
  return spec;
}

std::shared_ptr<Feedback> feedback_for(const Communicator& group, std::size_t count) {
  auto feedback = std::make_shared<Feedback>();
  const Shard shard =
      gradient_shard(count * sizeof(float), sizeof(float), group.topology(), group.options().rank);
  feedback->residual.resize(shard.bytes / sizeof(float));
  return feedback;
}

// 2 x 2 ranks; hosts with 2, 2 and 1; hosts with 3 and 2; one host in groups of 2.
std::vector<RankOptions> layouts() {
  return {{.world = 4, .seed = 3, .ranks_per_host = 2},
          {.world = 5, .seed = 4, .ranks_per_host = 2},
          {.world = 5, .seed = 5, .ranks_per_host = 3},
          {.world = 4, .seed = 6, .intra_size = 2},
          {.world = 6, .seed = 7, .ranks_per_host = 3, .intra_size = 2}};
}

TEST(CodedGroup, SumsAndAveragesAreRightOnAllRanks) {
  for (const RankOptions& layout : layouts()) {
    SCOPED_TRACE(layout.seed);
    RankThreads ranks(layout);
    const auto codec = lossless();
    ranks.run([&](int rank, Communicator& group) {
      for (const std::size_t count : {0, 1, 2, 7, 1000, 100'000}) {
        for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
          std::vector<Bytes> all;
          for (int r = 0; r < layout.world; ++r) all.push_back(values(Dtype::kF32, count, r));
          Bytes input = all[rank], output(input.size());
          const bool in_place = count % 2 == 0;
          const auto operation = *group.start(coded(input, in_place ? input : output, codec, op));
          const Status status = operation->wait(0);
          ASSERT_TRUE(status.ok()) << status.message();
          EXPECT_STREQ(operation->algorithm(), "two_dimensional_coded");
          EXPECT_TRUE(same(in_place ? input : output, reduced(op, Dtype::kF32, all)));
        }
      }
    });
    EXPECT_TRUE(eventually([&] { return ranks.network().open_requests() == 0; }));
  }
}

// Blocks of `count` elements, or of that and of none by turns.
TEST(CodedGroup, ReduceScattersAreRightOnAllRanksWhateverTheFactor) {
  for (const RankOptions& layout : layouts()) {
    SCOPED_TRACE(layout.seed);
    RankThreads ranks(layout);
    const auto codec = lossless();
    ranks.run([&](int rank, Communicator& group) {
      for (const std::size_t count : {0, 1, 7, 1000, 30'000}) {
        for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kPremulSum}) {
          for (const bool uneven : {false, true}) {
            std::vector<Bytes> inputs, mine;
            const auto length = [&](int r) { return uneven && r % 2 == 1 ? 0 : count; };
            for (int r = 0; r < layout.world; ++r) {
              inputs.push_back(values(Dtype::kF32, length(r), rank, r));
              mine.push_back(values(Dtype::kF32, length(rank), r, rank));
            }
            Bytes output(inputs[rank].size());
            OperationSpec spec = coded(inputs[0], output, codec, op);
            spec.kind = Kind::kReduceScatter;
            spec.premul = 0.5;
            spec.inputs.clear();
            for (Bytes& input : inputs) spec.inputs.push_back(piece(input));
            const auto operation = *group.start(std::move(spec));
            const Status status = operation->wait(0);
            ASSERT_TRUE(status.ok()) << status.message();
            EXPECT_STREQ(operation->algorithm(), "two_dimensional_coded");
            EXPECT_TRUE(same(output, reduced(op, Dtype::kF32, mine, 0.5)));
          }
        }
      }
    });
    EXPECT_TRUE(eventually([&] { return ranks.network().open_requests() == 0; }));
  }
}

float at(const Bytes& bytes, std::size_t i) {
  float value = 0;
  std::memcpy(&value, bytes.data() + i * sizeof value, sizeof value);
  return value;
}

// Small whole numbers, which float32 adds exactly.
TEST(CodedGroup, WhatIsNotSentComesLater) {
  constexpr std::size_t kCount = 20'000;
  constexpr int kSteps = 6;
  for (const RankOptions& layout : layouts()) {
    SCOPED_TRACE(layout.seed);
    RankThreads ranks(layout);
    const auto codec = std::make_shared<const KeepingCodec>(3, 4096);
    std::vector<std::shared_ptr<Feedback>> feedback(layout.world);
    std::vector<Bytes> outputs(layout.world);
    std::vector<double> sent(kCount);
    ranks.run([&](int rank, Communicator& group) {
      feedback[rank] = feedback_for(group, kCount);
      for (int step = 0; step < kSteps; ++step) {
        Bytes gradient = values(Dtype::kF32, kCount, rank, step);
        OperationSpec spec = coded(gradient, gradient, codec);
        spec.feedback = feedback[rank];
        const auto operation = *group.start(std::move(spec));
        ASSERT_TRUE(operation->wait(0).ok());
        EXPECT_STREQ(operation->algorithm(), "two_dimensional_sparse");
        for (std::size_t i = 0; i < kCount && rank == 0; ++i) sent[i] += at(gradient, i);
        outputs[rank].insert(outputs[rank].end(), gradient.begin(), gradient.end());
      }
    });
    double kept = 0;
    for (int rank = 0; rank < layout.world; ++rank) {
      ASSERT_TRUE(same(outputs[rank], outputs[0])) << "ranks 0 and " << rank;
      const Topology& topology = ranks.group(rank).topology();
      const Shard shard = gradient_shard(kCount * sizeof(float), sizeof(float), topology, rank);
      for (std::size_t i = 0; i < feedback[rank]->residual.size(); ++i) {
        sent[shard.offset / sizeof(float) + i] += feedback[rank]->residual[i];
        kept += feedback[rank]->residual[i];
      }
    }
    EXPECT_GT(kept, 0) << "else this shows nothing";
    std::vector<double> given(kCount);
    for (int rank = 0; rank < layout.world; ++rank) {
      for (int step = 0; step < kSteps; ++step) {
        const Bytes gradient = values(Dtype::kF32, kCount, rank, step);
        for (std::size_t i = 0; i < kCount; ++i) given[i] += at(gradient, i);
      }
    }
    EXPECT_EQ(sent, given);
  }
}

TEST(CodedGroup, OnOneHostNothingIsCoded) {
  RankThreads ranks({.world = 3});
  ranks.run([&](int rank, Communicator& group) {
    std::vector<Bytes> all;
    for (int r = 0; r < 3; ++r) all.push_back(values(Dtype::kF32, 500, r));
    OperationSpec spec = coded(all[rank], all[rank], std::make_shared<const KeepingCodec>(5));
    const std::vector<Bytes> before = all;
    spec.feedback = feedback_for(group, 500);
    const auto operation = *group.start(std::move(spec));
    ASSERT_TRUE(operation->wait(0).ok());
    EXPECT_EQ(std::string(operation->algorithm()).find("two_dim"), std::string::npos);
    EXPECT_TRUE(same(all[rank], reduced(ReduceOp::kSum, Dtype::kF32, before)));
  });
}

void expect_refused(Communicator& group, const OperationSpec& spec, const std::string& words) {
  const auto started = group.start(spec);
  ASSERT_FALSE(started.ok());
  EXPECT_EQ(started.status().code(), Code::kInvalidArgument);
  EXPECT_NE(started.status().message().find(words), std::string::npos)
      << started.status().message();
}

TEST(CodedGroup, WhatACodecCannotDoIsRefused) {
  RankThreads ranks({.world = 4, .ranks_per_host = 2});
  ranks.run([&](int, Communicator& group) {
    Bytes data(400);
    const OperationSpec right = coded(data, data, lossless());
    OperationSpec wrong = right;
    wrong.dtype = Dtype::kI32;
    expect_refused(group, wrong, "this is int32 under SUM");
    wrong = right;
    wrong.op = ReduceOp::kMax;
    expect_refused(group, wrong, "only float32 under SUM or AVG can be compressed");
    wrong = right;
    wrong.kind = Kind::kReduce;
    expect_refused(group, wrong, "only an all_reduce or a reduce_scatter can be compressed");
    wrong = right;
    wrong.codec = std::make_shared<const KeepingCodec>();
    expect_refused(group, wrong, "needs a residual of the 50 elements");
    wrong.feedback = feedback_for(group, 90);
    expect_refused(group, wrong, "and got one of ");
    wrong = right;
    wrong.kind = Kind::kReduceScatter;
    wrong.inputs = std::vector<Piece>(4, piece(data));
    wrong.codec = std::make_shared<const KeepingCodec>();
    expect_refused(group, wrong, "a reduce_scatter sends all, in 16 bits");
    EXPECT_TRUE((*group.start(right))->wait(0).ok()) << "the group goes on";
  });
}

// A group that another rank has failed already starts nothing.
Status run_one(Communicator& group, OperationSpec spec) {
  Result<OperationPtr> operation = group.start(std::move(spec));
  return operation.ok() ? (*operation)->wait(0) : operation.status();
}

class Named final : public Codec {
 public:
  explicit Named(std::uint32_t code) : code_(code) {}
  const char* name() const override { return zeros_.name(); }
  std::uint64_t most(std::uint64_t bytes) const override { return zeros_.most(bytes); }
  double bytes_per_second() const override { return zeros_.bytes_per_second(); }
  std::uint32_t code() const override { return code_; }
  Result<std::size_t> encode(Coding& coding, std::size_t budget) const override {
    return zeros_.encode(coding, budget);
  }
  Result<std::size_t> decode(Coding& coding, std::size_t budget) const override {
    return zeros_.decode(coding, budget);
  }

 private:
  const ZerosCodec zeros_;
  const std::uint32_t code_;
};

TEST(CodedGroup, RanksWithDifferentCodecsAreToldOfBoth) {
  RankThreads ranks({.world = 4, .ranks_per_host = 2});
  ranks.run([&](int rank, Communicator& group) {
    Bytes data = values(Dtype::kF32, 5000, rank);
    const auto codec =
        std::make_shared<const Named>(rank == 2 ? top_k_code(0.01, false, 0) : half_code(false));
    const Status status = run_one(group, coded(data, data, codec));
    EXPECT_EQ(status.code(), Code::kMismatch);
    for (const char* words : {"coded as TopK 1%", "coded as float16", "rank 2"}) {
      EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
    }
  });
}

TEST(CodedGroup, ARankWithoutACodecAmongThoseWithOneIsToldOfBoth) {
  RankThreads ranks({.world = 4, .ranks_per_host = 2});
  ranks.run([&](int rank, Communicator& group) {
    Bytes data = values(Dtype::kF32, 5000, rank);
    const auto codec = rank == 2 ? nullptr : std::make_shared<const Named>(half_code(true));
    const Status status = run_one(group, coded(data, data, codec));
    EXPECT_EQ(status.code(), Code::kMismatch);
    EXPECT_NE(status.message().find("x 5000 coded as bfloat16"), std::string::npos)
        << status.message();
    EXPECT_NE(status.message().find("rank 2: all_reduce SUM float32 x 5000"), std::string::npos)
        << status.message();
  });
}

// As the others' codec, but what it sends is none of its blocks. It notices nothing itself.
class Rubbish final : public Codec {
 public:
  const char* name() const override { return zeros_.name(); }
  std::uint64_t most(std::uint64_t bytes) const override { return zeros_.most(bytes); }
  double bytes_per_second() const override { return zeros_.bytes_per_second(); }
  Result<std::size_t> encode(Coding& coding, std::size_t) const override {
    coding.destination[0] = coding.destination[1] = std::byte{0xff};
    coding.written = 2;
    coding.done = true;
    return coding.source_bytes;
  }
  Result<std::size_t> decode(Coding& coding, std::size_t) const override {
    coding.done = true;
    return coding.destination_bytes;
  }

 private:
  const ZerosCodec zeros_;
};

TEST(CodedGroup, ADamagedBlockEndsTheOperationOnAllRanksAndNamesItsSender) {
  for (const RankOptions& layout : {layouts()[0], layouts()[1]}) {
    RankThreads ranks(layout);
    ranks.run([&](int rank, Communicator& group) {
      Bytes data = values(Dtype::kF32, 50'000, rank);
      const std::shared_ptr<const Codec> codec =
          rank == 2 ? std::make_shared<const Rubbish>()
                    : std::shared_ptr<const Codec>(std::make_shared<const ZerosCodec>());
      const Status status = run_one(group, coded(data, data, codec));
      EXPECT_EQ(status.code(), Code::kMismatch) << "rank " << rank;
      for (const char* words : {"rank 2", "a coded block ends too early", "all_reduce"}) {
        EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
      }
    });
    EXPECT_TRUE(eventually([&] { return ranks.network().open_requests() == 0; }));
  }
}

TEST(CodedGroup, AnAbortInMidOperationEndsItOnAllRanks) {
  for (const bool sparse : {false, true}) {
    RankThreads ranks({.world = 4, .ranks_per_host = 2});
    ranks.network().hold(2, 0, true);
    constexpr std::size_t kCount = 200'000;
    std::vector<Bytes> data;
    for (int rank = 0; rank < 4; ++rank) data.push_back(values(Dtype::kF32, kCount, rank));
    std::vector<OperationPtr> operations;
    for (int rank = 0; rank < 4; ++rank) {
      OperationSpec spec = coded(data[rank], data[rank], lossless());
      if (sparse) {
        spec.codec = std::make_shared<const KeepingCodec>(10, 4096);
        spec.feedback = feedback_for(ranks.group(rank), kCount);
      }
      operations.push_back(*ranks.group(rank).start(std::move(spec)));
    }
    // The other two hosts' ranks finish, or get as far as they can without rank 2's blocks.
    EXPECT_EQ(operations[0]->wait(100 * kMillisecond).code(), Code::kTimeout);
    ranks.group(1).abort(Status(Code::kAborted, "enough"));
    const Status status = operations[0]->wait(10 * kSecond);
    EXPECT_EQ(status.code(), Code::kAborted) << status.message();
    EXPECT_NE(status.message().find("enough"), std::string::npos) << status.message();
    EXPECT_TRUE(eventually([&] {
      return std::all_of(operations.begin(), operations.end(),
                         [](const OperationPtr& operation) { return operation->done(); });
    }));
    ranks.network().hold(2, 0, false);
    EXPECT_TRUE(eventually([&] { return ranks.network().open_requests() == 0; }));
  }
}

TEST(CodedGroup, PredictsWhatLessBytesWouldSave) {
  RankThreads ranks({.world = 4, .ranks_per_host = 1});
  constexpr std::uint64_t kBytes = 40 << 20;
  const auto few = std::make_shared<const KeepingCodec>(100);
  const double exact = ranks.group(0).predict_average(kBytes, nullptr).seconds;
  EXPECT_LT(ranks.group(0).predict_average(kBytes, few).seconds, exact / 2);
  for (int rank = 1; rank < 4; ++rank)
    EXPECT_EQ(ranks.group(rank).predict_average(kBytes, nullptr).seconds, exact);
}

TEST(CodedGroup, ASizeOfGroupsThatDoesNotDivideTheRanksIsRefused) {
  RankThreads ranks({.world = 4, .ranks_per_host = 2});
  GroupOptions options = ranks.group(0).options();
  options.id += 1000;
  options.intra_size = 3;
  const auto made = Communicator::create(ranks.network().stack(0), options);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(made.status().message(),
            "groups of 3 ranks do not divide the 4 ranks of hosts with 2, 2 ranks");
}

TEST(CodedGroup, TheTimelineShowsWhatIsCoded) {
  timeline::enable(true);
  RankThreads ranks({.world = 2, .ranks_per_host = 1});
  ranks.run([&](int rank, Communicator& group) {
    Bytes data = values(Dtype::kF32, 1000, rank);
    EXPECT_TRUE((*group.start(coded(data, data, lossless())))->wait(0).ok());
  });
  const std::string shown = timeline::chrome_json();
  timeline::enable(false);
  for (const char* words : {"\"encode\"", "\"decode\"", "\"decode_reduce\"", "coding of world",
                            "\"coded_bytes\":", "\"codec\":\"zeros left out\""}) {
    EXPECT_NE(shown.find(words), std::string::npos) << words;
  }
}

TEST(CodedGroup, RunsBesideOthersOfItsKindAndExactOnes) {
  RankThreads ranks({.world = 5, .seed = 11, .ranks_per_host = 2});
  const auto codec = lossless();
  ranks.run([&](int rank, Communicator& group) {
    constexpr int kCalls = 12;
    std::vector<Bytes> data;
    for (int call = 0; call < kCalls; ++call)
      data.push_back(values(Dtype::kF32, 3000 + 100 * (call % 3), rank, call));
    std::vector<OperationPtr> operations;
    for (int call = 0; call < kCalls; ++call) {
      operations.push_back(
          *group.start(coded(data[call], data[call], call % 2 == 0 ? codec : nullptr)));
    }
    for (int call = 0; call < kCalls; ++call) {
      ASSERT_TRUE(operations[call]->wait(0).ok());
      std::vector<Bytes> all;
      for (int r = 0; r < 5; ++r)
        all.push_back(values(Dtype::kF32, 3000 + 100 * (call % 3), r, call));
      EXPECT_TRUE(same(data[call], reduced(ReduceOp::kSum, Dtype::kF32, all))) << "call " << call;
    }
  });
}

}  // namespace
}  // namespace taco::pg
