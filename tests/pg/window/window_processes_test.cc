// Windows over real transports between processes: shared memory, UDP, and UDP by several paths,
// where packets overtake each other.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "harp/engine/stack.h"
#include "pg/communicator.h"
#include "support/processes.h"
#include "support/stack_world.h"

namespace taco::pg {
namespace {

using testing::Fellowship;
using testing::kWays;
using testing::run_processes;
using testing::stack_by;
using testing::Way;
using Floats = std::vector<float>;

Piece piece(Floats& floats, std::size_t first, std::size_t count) {
  return {reinterpret_cast<std::byte*>(floats.data() + first), count * sizeof(float)};
}

class Member {
 public:
  Member(Fellowship& fellowship, const Way& way, std::size_t count) : window(count) {
    stack = stack_by(way);
    const auto addresses = fellowship.all_gather(stack->address());
    GroupOptions options;
    options.id = 0x77ac1;
    options.name = "window";
    options.rank = fellowship.rank();
    options.world = fellowship.world();
    options.timeout = 60 * kSecond;
    options.host_gbits = {0};
    options.host_of_rank.assign(options.world, 0);
    options.window = WindowMemory{piece(window, 0, count), kernels::Dtype::kF32};
    for (int rank = 0; rank < options.world; ++rank) {
      options.peers.push_back(rank == options.rank ? 0 : stack->add_peer(addresses[rank]).value());
    }
    auto created = Communicator::create(stack, options);
    EXPECT_TRUE(created.ok()) << created.status().message();
    group = std::move(created).value();
    fellowship.barrier();
  }
  ~Member() {
    (void)group->close(5 * kSecond);
    group.reset();
    stack->close();
  }

  OperationPtr put(Floats& data, std::size_t count, int to, std::size_t at) {
    OperationSpec spec{.kind = Kind::kPut, .dtype = kernels::Dtype::kF32, .root = to};
    spec.offset = at * sizeof(float);
    spec.inputs = {piece(data, 0, count)};
    auto started = group->start(std::move(spec));
    EXPECT_TRUE(started.ok()) << started.status().message();
    return started.ok() ? *started : nullptr;
  }
  Status wait_signal(int from) {
    auto started = group->start({.kind = Kind::kWaitSignal, .root = from});
    return started.ok() ? (*started)->wait(0) : started.status();
  }

  Floats window;
  std::shared_ptr<harp::Stack> stack;
  std::shared_ptr<Communicator> group;
};

constexpr std::size_t kSlot = 50'000;
const std::vector<std::size_t> kCounts = {1, 200, 251, 252, 3000, kSlot};

// Rank `from` fills its section of everybody's window, one slot a put, in rounds.
void exchange(Fellowship& fellowship, const Way& way) {
  const int rank = fellowship.rank(), world = fellowship.world();
  const std::size_t section = kCounts.size() * kSlot;
  Member member(fellowship, way, world * section);
  for (int round = 1; round <= 5; ++round) {
    std::vector<Floats> data;
    std::vector<OperationPtr> puts;
    for (std::size_t i = 0; i < kCounts.size(); ++i)
      data.emplace_back(kCounts[i], static_cast<float>(1000 * round + 10 * rank) + float(i) / 16);
    for (int to = 0; to < world; ++to) {
      for (std::size_t i = 0; i < kCounts.size() && to != rank; ++i)
        puts.push_back(member.put(data[i], kCounts[i], to, rank * section + i * kSlot));
    }
    for (int from = 0; from < world; ++from) {
      for (std::size_t i = 0; i < kCounts.size() && from != rank; ++i) {
        const Status status = member.wait_signal(from);
        ASSERT_TRUE(status.ok()) << status.message();
        const float expected = static_cast<float>(1000 * round + 10 * from) + float(i) / 16;
        const float* const slot = member.window.data() + from * section + i * kSlot;
        for (const std::size_t at : {std::size_t{0}, kCounts[i] / 2, kCounts[i] - 1})
          ASSERT_EQ(slot[at], expected) << "of rank " << from << ", put " << i << ", at " << at;
        ASSERT_TRUE(kCounts[i] == kSlot || slot[kCounts[i]] == 0) << "behind put " << i;
      }
    }
    for (const OperationPtr& each : puts) {
      const Status status = each->wait(0);
      ASSERT_TRUE(status.ok()) << status.message();
    }
    fellowship.barrier();  // everybody has looked at this round
  }
}

TEST(WindowProcesses, PutsAreInPlaceWhenTheirSignalIsTaken) {
  for (const Way& way : kWays) {
    SCOPED_TRACE(way.name);
    const auto ends =
        run_processes({.count = 3}, [&](Fellowship& fellowship) { exchange(fellowship, way); });
    for (const int end : ends) EXPECT_EQ(end, 0) << way.name;
  }
}

// Rank 2 is killed while the others put into its window and wait for its signals.
void lose_one(Fellowship& fellowship, const Way& way) {
  Member member(fellowship, way, 4 * kSlot);
  Floats data(kSlot, 1.0f);
  const std::string pid = fellowship.all_gather(std::to_string(getpid()))[2];
  if (fellowship.rank() == 2) {
    EXPECT_TRUE(member.wait_signal(0).ok());
    fellowship.barrier();
    for (;;) pause();
  }
  std::vector<OperationPtr> puts;
  if (fellowship.rank() == 0) puts.push_back(member.put(data, kSlot, 2, 0));
  fellowship.barrier();
  if (fellowship.rank() == 0) kill(static_cast<pid_t>(std::stoi(pid)), SIGKILL);
  const Status lost = member.wait_signal(2);
  EXPECT_EQ(lost.code(), Code::kPeerLost) << lost.message();
  ASSERT_NE(lost.peer_loss(), nullptr);
  EXPECT_EQ(lost.peer_loss()->rank, 2) << lost.message();
  EXPECT_FALSE(lost.peer_loss()->address.empty());
}

TEST(WindowProcesses, AKilledRankEndsTheWaitsForItAndIsNamed) {
  for (const Way& way : kWays) {
    SCOPED_TRACE(way.name);
    const auto ends =
        run_processes({.count = 3}, [&](Fellowship& fellowship) { lose_one(fellowship, way); });
    EXPECT_EQ(ends[0], 0);
    EXPECT_EQ(ends[1], 0);
    EXPECT_TRUE(WIFSIGNALED(ends[2]));
  }
}

// The owner closes its window while the others write, and goes on to use the memory.
void close_under_traffic(Fellowship& fellowship, const Way& way) {
  auto member = std::make_unique<Member>(fellowship, way, 2 * kSlot);
  if (fellowship.rank() == 0) {
    for (int i = 0; i < 20; ++i) {
      const Status status = member->wait_signal(1 + i % 2);
      EXPECT_TRUE(status.ok()) << status.message();
    }
    EXPECT_TRUE(member->group->close_window(Status(Code::kAborted, "closed")).ok());
    Floats kept(2 * kSlot);
    std::iota(kept.begin(), kept.end(), 0.0f);
    member->window = kept;
    (void)member->group->close(5 * kSecond);
    fellowship.barrier();  // all puts of the others have ended
    EXPECT_EQ(member->window, kept);
    return;
  }
  Floats data(kSlot, 3.0f);
  Status end;
  while (end.ok()) {
    auto one = [&](std::size_t count) {
      OperationSpec spec{.kind = Kind::kPut, .dtype = kernels::Dtype::kF32, .root = 0};
      spec.inputs = {piece(data, 0, count)};
      auto started = member->group->start(std::move(spec));
      return started.ok() ? (*started)->wait(0) : started.status();
    };
    end = one(kSlot);
    if (end.ok()) end = one(20);
  }
  EXPECT_TRUE(end.code() == Code::kPeerLost || end.code() == Code::kAborted) << end.message();
  fellowship.barrier();
}

TEST(WindowProcesses, NothingIsWrittenToAWindowThatIsClosed) {
  for (const Way& way : kWays) {
    SCOPED_TRACE(way.name);
    const auto ends = run_processes(
        {.count = 3}, [&](Fellowship& fellowship) { close_under_traffic(fellowship, way); });
    for (const int end : ends) EXPECT_EQ(end, 0) << way.name;
  }
}

}  // namespace
}  // namespace taco::pg
