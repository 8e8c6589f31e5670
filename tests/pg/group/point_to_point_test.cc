// Sends and receives: order, tags, any source, wrong sizes.
#include <gtest/gtest.h>

#include <array>
#include <random>
#include <set>

#include "support/pg_values.h"
#include "support/rank_threads.h"

namespace taco::pg {
namespace {

using kernels::Dtype;
using testing::Bytes;
using testing::piece;
using testing::RankThreads;
using testing::same;
using testing::values;

OperationPtr send(Communicator& group, Bytes& data, int to, std::uint32_t tag = 0) {
  OperationSpec spec{.kind = Kind::kSend, .dtype = Dtype::kU8, .root = to, .tag = tag};
  spec.inputs = {piece(data)};
  auto operation = group.start(std::move(spec));
  EXPECT_TRUE(operation.ok()) << operation.status().message();
  return operation.ok() ? *operation : nullptr;
}

OperationPtr receive(Communicator& group, Bytes& data, int from, std::uint32_t tag = 0) {
  OperationSpec spec{.kind = from < 0 ? Kind::kRecvAny : Kind::kRecv,
                     .dtype = Dtype::kU8,
                     .root = from,
                     .tag = tag};
  spec.outputs = {piece(data)};
  auto operation = group.start(std::move(spec));
  EXPECT_TRUE(operation.ok()) << operation.status().message();
  return operation.ok() ? *operation : nullptr;
}

void finish(const OperationPtr& operation) {
  ASSERT_NE(operation, nullptr);
  const Status status = operation->wait(0);
  ASSERT_TRUE(status.ok()) << status.message();
}

class PointToPointSeeds : public ::testing::TestWithParam<std::uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, PointToPointSeeds, ::testing::Range<std::uint64_t>(0, 8));

TEST_P(PointToPointSeeds, OrderIsKeptPerSenderAndTag) {
  RankThreads ranks({.world = 2, .seed = GetParam()});
  constexpr int kMessages = 100;
  ranks.run([&](int rank, Communicator& group) {
    std::vector<Bytes> buffers;
    std::vector<OperationPtr> operations;
    buffers.reserve(kMessages);
    for (int i = 0; i < kMessages; ++i) {
      const std::size_t bytes = static_cast<std::size_t>(i % 5) * 200;
      buffers.push_back(rank == 0 ? values(Dtype::kU8, bytes, i % 6, i) : Bytes(bytes));
      const auto tag = static_cast<std::uint32_t>(i % 2);
      operations.push_back(rank == 0 ? send(group, buffers[i], 1, tag)
                                     : receive(group, buffers[i], 0, tag));
    }
    for (const OperationPtr& operation : operations) finish(operation);
    for (int i = 0; i < kMessages && rank == 1; ++i)
      EXPECT_TRUE(same(buffers[i], values(Dtype::kU8, buffers[i].size(), i % 6, i))) << i;
  });
}

TEST_P(PointToPointSeeds, ARankExchangesMessagesWithItself) {
  RankThreads ranks({.world = 2, .seed = GetParam()});
  constexpr std::array<std::size_t, 6> kSizes = {0, 1, 1000, 1 << 20, (1 << 20) + 7, 5'000'000};
  ranks.run([&](int rank, Communicator& group) {
    for (const bool receive_first : {false, true}) {
      std::vector<Bytes> sent, received;
      std::vector<OperationPtr> operations;
      for (const std::size_t bytes : kSizes) {
        sent.push_back(values(Dtype::kU8, bytes, rank, static_cast<int>(bytes)));
        received.emplace_back(bytes);
      }
      const auto send_all = [&] {
        for (std::uint32_t i = 0; i < kSizes.size(); ++i)
          operations.push_back(send(group, sent[i], rank, i % 2));
      };
      if (!receive_first) send_all();
      for (std::uint32_t i = 0; i < kSizes.size(); ++i)
        operations.push_back(receive(group, received[i], rank, i % 2));
      if (receive_first) send_all();
      for (const OperationPtr& operation : operations) finish(operation);
      for (std::size_t i = 0; i < kSizes.size(); ++i) EXPECT_TRUE(same(received[i], sent[i])) << i;
    }
  });
}

TEST(PointToPoint, AMessageToOneselfThatDiffersFromItsReceiveFailsOnBothEnds) {
  RankThreads ranks({.world = 2, .seed = 1});
  ranks.run([&](int rank, Communicator& group) {
    if (rank != 0) return;
    Bytes sent(100), received(200);
    const OperationPtr one = send(group, sent, 0), other = receive(group, received, 0);
    EXPECT_EQ(one->wait(0).code(), Code::kMismatch);
    EXPECT_EQ(other->wait(0).code(), Code::kMismatch);
  });
}

TEST(PointToPoint, AReceiveOfAMessageToOneselfThatIsNotSentTimesOut) {
  RankThreads ranks({.world = 2, .seed = 1});
  ranks.run([&](int rank, Communicator& group) {
    if (rank != 0) return;
    Bytes received(200);
    const OperationPtr operation = receive(group, received, 0);
    EXPECT_EQ(operation->wait(20 * kMillisecond).code(), Code::kTimeout);
    Bytes sent(200);
    finish(send(group, sent, 0));
    finish(operation);
  });
}

TEST_P(PointToPointSeeds, TagsAreReceivedInReverse) {
  RankThreads ranks({.world = 2, .seed = GetParam()});
  ranks.run([&](int rank, Communicator& group) {
    std::vector<Bytes> buffers(60);
    std::vector<OperationPtr> operations;
    for (int i = 0; i < 60; ++i) {
      const int tag = rank == 0 ? i : 59 - i;
      buffers[tag] = rank == 0 ? values(Dtype::kU8, 3000, 0, tag) : Bytes(3000);
      operations.push_back(rank == 0 ? send(group, buffers[tag], 1, tag)
                                     : receive(group, buffers[tag], 0, tag));
      if (rank == 1) finish(operations.back());
    }
    for (const OperationPtr& operation : operations) finish(operation);
    for (int tag = 0; tag < 60 && rank == 1; ++tag)
      EXPECT_TRUE(same(buffers[tag], values(Dtype::kU8, 3000, 0, tag))) << tag;
  });
}

TEST_P(PointToPointSeeds, AnySourceTakesEveryMessageOnceInOrderOfItsSender) {
  constexpr int kWorld = 5, kEach = 20;
  const std::size_t size = GetParam() % 2 == 0 ? 8 : 4000;
  RankThreads ranks({.world = kWorld, .seed = GetParam()});
  ranks.run([&](int rank, Communicator& group) {
    if (rank != 0) {
      for (int i = 0; i < kEach; ++i) {
        Bytes data(size, std::byte(i));
        Bytes kept = data;
        finish(send(group, kept, 0, 7));
        Bytes other(4, std::byte(rank));
        finish(send(group, other, 0, 8));
      }
      return;
    }
    std::vector<int> next(kWorld, 0);
    for (int n = 0; n < kEach; ++n) {
      for (int i = 1; i < kWorld; ++i) {
        Bytes data(size);
        OperationPtr operation = receive(group, data, -1, 7);
        finish(operation);
        const int source = operation->source_rank();
        ASSERT_GE(source, 1);
        EXPECT_EQ(static_cast<int>(data[0]), next[source]++) << "from rank " << source;
        Bytes other(4);
        finish(receive(group, other, source, 8));
        EXPECT_EQ(static_cast<int>(other[0]), source);
      }
    }
    for (int r = 1; r < kWorld; ++r) EXPECT_EQ(next[r], kEach);
  });
}

enum class End { kGoodbye, kUnmet };

void end(RankThreads& ranks, int rank, End how) {
  if (how == End::kGoodbye) ranks.network().stack(rank)->close();
  if (how == End::kUnmet) ranks.network().miss(rank);
}

TEST(PointToPoint, AnySourceGoesOnWithoutWhoHasLeftAndWhoMayHave) {
  for (const End how : {End::kGoodbye, End::kUnmet}) {
    for (const bool before : {true, false}) {
      RankThreads ranks({.world = 3});
      Bytes data(1), sent(1, std::byte(7));
      if (before) end(ranks, 2, how);
      OperationPtr any = receive(ranks.group(0), data, -1);
      if (!before) end(ranks, 2, how);
      // Rank 0 has heard of the end before rank 1 sends.
      EXPECT_EQ(any->wait(100 * kMillisecond).code(), Code::kTimeout) << any->status().message();
      finish(send(ranks.group(1), sent, 0));
      finish(any);
      EXPECT_EQ(any->source_rank(), 1);
      EXPECT_EQ(data, sent);
    }
  }
}

TEST(PointToPoint, AnySourceFailsOnceNobodyIsLeftThatCouldSend) {
  for (const End how : {End::kGoodbye, End::kUnmet}) {
    RankThreads ranks({.world = 3});
    Bytes data(1);
    end(ranks, 1, how);
    OperationPtr any = receive(ranks.group(0), data, -1);
    EXPECT_EQ(any->wait(100 * kMillisecond).code(), Code::kTimeout) << any->status().message();
    end(ranks, 2, how);
    const Status status = any->wait(0);
    EXPECT_EQ(status.code(), Code::kPeerLost) << status.message();
    ASSERT_NE(status.peer_loss(), nullptr);
    EXPECT_EQ(status.peer_loss()->rank, 2);
  }
}

TEST(PointToPoint, AnySourceTakesWhatWasSentBeforeTheLastSenderLeft) {
  RankThreads ranks({.world = 2});
  Bytes data(1), sent(1, std::byte(7));
  finish(send(ranks.group(1), sent, 0));
  end(ranks, 1, End::kGoodbye);
  finish(receive(ranks.group(0), data, -1));
  EXPECT_EQ(data, sent);
}

TEST(PointToPoint, AnySourceFailsWhenAMemberDies) {
  RankThreads ranks({.world = 3});
  Bytes data(1);
  OperationPtr any = receive(ranks.group(0), data, -1);
  ranks.network().kill(2);
  const Status status = any->wait(0);
  EXPECT_EQ(status.code(), Code::kPeerLost) << status.message();
  ASSERT_NE(status.peer_loss(), nullptr);
  EXPECT_EQ(status.peer_loss()->rank, 2);
}

TEST(PointToPoint, WhoNeedsARankThatWasNeverMetLosesIt) {
  RankThreads ranks({.world = 3});
  ranks.network().miss(2);
  Bytes data(1);
  OperationPtr any = receive(ranks.group(0), data, -1, 1);
  EXPECT_EQ(any->wait(100 * kMillisecond).code(), Code::kTimeout) << any->status().message();
  const Status status = receive(ranks.group(0), data, 2)->wait(0);
  EXPECT_EQ(status.code(), Code::kPeerLost) << status.message();
  ASSERT_NE(status.peer_loss(), nullptr);
  EXPECT_EQ(status.peer_loss()->rank, 2);
}

TEST(PointToPoint, AReceiveBehindAnySourceTakesTheNextMessage) {
  RankThreads ranks({.world = 2});
  ranks.run([&](int rank, Communicator& group) {
    Bytes first(1, std::byte(1)), second(1, std::byte(2));
    if (rank == 0) {
      finish(send(group, first, 1));
      finish(send(group, second, 1));
      return;
    }
    Bytes a(1), b(1);
    OperationPtr any = receive(group, a, -1), specific = receive(group, b, 0);
    finish(any);
    finish(specific);
    EXPECT_EQ(static_cast<int>(a[0]), 1);
    EXPECT_EQ(static_cast<int>(b[0]), 2);
  });
}

TEST(PointToPoint, AShortReceiveBufferIsAMismatchOnBothSides) {
  for (const std::size_t bytes : {std::size_t{100}, std::size_t{100'000}}) {
    RankThreads ranks({.world = 2});
    ranks.run([&](int rank, Communicator& group) {
      Bytes data(rank == 0 ? bytes : bytes / 2);
      OperationPtr operation = rank == 0 ? send(group, data, 1, 3) : receive(group, data, 0, 3);
      Status status = operation->wait(0);
      // The sender of an eager message may have been done before; then the group says it.
      for (int i = 0; i < 500 && status.ok(); ++i) {
        Bytes none(1);
        auto next = group.start(
            {.kind = Kind::kSend, .dtype = Dtype::kU8, .root = 1, .inputs = {piece(none)}});
        status = next.ok() ? (*next)->wait(20 * kMillisecond) : next.status();
        if (status.code() == Code::kTimeout) status = Status();
      }
      EXPECT_EQ(status.code(), Code::kMismatch) << status.message();
      EXPECT_NE(status.message().find("uint8 x " + std::to_string(bytes)), std::string::npos)
          << status.message();
      EXPECT_NE(status.message().find("uint8 x " + std::to_string(bytes / 2)), std::string::npos);
    });
  }
}

TEST(PointToPoint, RanksThatDoNotExistAreRefused) {
  RankThreads ranks({.world = 2});
  Bytes data(4);
  for (const int peer : {2, 100, -2}) {
    OperationSpec spec{.kind = Kind::kSend, .dtype = Dtype::kU8, .root = peer};
    spec.inputs = {piece(data)};
    auto operation = ranks.group(0).start(spec);
    ASSERT_FALSE(operation.ok()) << peer;
    EXPECT_EQ(operation.status().code(), Code::kInvalidArgument);
  }
}

}  // namespace
}  // namespace taco::pg
