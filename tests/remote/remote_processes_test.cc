// Endpoints of processes that have nothing in common but what they tell each other: over shared
// memory, UDP, and UDP by several paths.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/random.h"
#include "remote/endpoint.h"
#include "support/processes.h"
#include "support/stack_world.h"

namespace taco::remote {
namespace {

using testing::Fellowship;
using testing::kWays;
using testing::run_processes;
using testing::stack_by;
using testing::Way;
using Bytes = std::vector<std::byte>;

constexpr Duration kPatience = 60 * kSecond;
Time soon() { return monotonic_now() + kPatience; }

// A process with an endpoint, connected to the other one, whose memory it has a handle of.
struct Side {
  Side(Fellowship& fellowship, const Way& way, std::size_t bytes) : memory(bytes) {
    stack = stack_by(way);
    auto opened =
        Endpoint::open(stack, harp::group_id(kRemoteMemory, random_value<std::uint64_t>()));
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    endpoint = std::move(opened).value();
    own = endpoint->add(memory.data(), memory.size()).value();
    const int other = 1 - fellowship.rank();
    const auto processes = fellowship.all_gather(stack->address());
    const auto handles = fellowship.all_gather(encode(own));
    theirs = decode_handle(handles[other]).value();
    const Status status = endpoint->connect(processes[other], theirs.endpoint);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(endpoint->connected());
  }
  ~Side() {
    endpoint.reset();
    stack->close();
  }

  Status move(Action action, Bytes& local, std::size_t at) {
    Handle part = theirs;
    part.offset += at;
    part.bytes -= at;
    auto started = endpoint->start(action, local.data(), local.size(), part);
    return started.ok() ? (*started)->wait(soon()) : started.status();
  }

  Bytes memory;
  std::shared_ptr<harp::Stack> stack;
  std::shared_ptr<Endpoint> endpoint;
  Handle own, theirs;
};

Bytes filled(std::size_t size, int value) { return Bytes(size, static_cast<std::byte>(value)); }

const std::vector<std::size_t> kSizes = {1, 900, 5000, 3'000'000};

void exchange(Fellowship& fellowship, const Way& way) {
  Side side(fellowship, way, 4'000'000);
  const int rank = fellowship.rank();
  for (int round = 1; round <= 5; ++round) {
    for (const std::size_t size : kSizes) {
      const int value = 100 * rank + round;
      Bytes local = filled(size, value), read(size);
      Status status = side.move(Action::kWrite, local, 10);
      ASSERT_TRUE(status.ok()) << status.message();
      status = side.move(Action::kRead, read, 10);
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_TRUE(read == local) << size;
      fellowship.barrier();  // the other has written, too
      ASSERT_EQ(side.memory[10], static_cast<std::byte>(100 * (1 - rank) + round));
      ASSERT_EQ(side.memory[9], std::byte{0});
      fellowship.barrier();
    }
  }
  EXPECT_TRUE(side.endpoint->close(soon()).ok());
  fellowship.barrier();
}

TEST(RemoteProcesses, ReadAndWriteEachOthersMemory) {
  for (const Way& way : kWays) {
    SCOPED_TRACE(way.name);
    const auto ends =
        run_processes({.count = 2}, [&](Fellowship& fellowship) { exchange(fellowship, way); });
    for (const int end : ends) EXPECT_EQ(end, 0) << way.name;
  }
}

// Process 1 is killed while process 0 writes into its memory.
void lose_one(Fellowship& fellowship, const Way& way) {
  Side side(fellowship, way, 1'000'000);
  const std::string pid = fellowship.all_gather(std::to_string(getpid()))[1];
  if (fellowship.rank() == 1) {
    fellowship.barrier();
    for (;;) pause();
  }
  Bytes local = filled(1'000'000, 1);
  ASSERT_TRUE(side.move(Action::kWrite, local, 0).ok());
  fellowship.barrier();
  std::vector<TransferPtr> under_way;
  for (int i = 0; i < 100; ++i) {
    under_way.push_back(
        side.endpoint->start(Action::kWrite, local.data(), local.size(), side.theirs).value());
  }
  kill(static_cast<pid_t>(std::stoi(pid)), SIGKILL);
  Status lost = under_way.back()->wait(soon());
  while (lost.ok()) lost = side.move(Action::kWrite, local, 0);
  EXPECT_EQ(lost.code(), Code::kPeerLost) << lost.message();
  ASSERT_NE(lost.peer_loss(), nullptr) << lost.message();
  EXPECT_NE(lost.peer_loss()->address.find("pid " + pid), std::string::npos) << lost.message();
  EXPECT_FALSE(side.endpoint->connected());
}

TEST(RemoteProcesses, AKilledPeerEndsWhatIsUnderWayAndIsNamed) {
  for (const Way& way : kWays) {
    SCOPED_TRACE(way.name);
    const auto ends =
        run_processes({.count = 2}, [&](Fellowship& fellowship) { lose_one(fellowship, way); });
    EXPECT_EQ(ends[0], 0);
    EXPECT_TRUE(WIFSIGNALED(ends[1]));
  }
}

// Process 1 revokes its memory while process 0 writes, and goes on to use it.
void revoke_under_traffic(Fellowship& fellowship, const Way& way) {
  Side side(fellowship, way, 1'000'000);
  if (fellowship.rank() == 0) {
    Bytes local = filled(1'000'000, 1);
    Status end;
    while (end.ok()) end = side.move(Action::kWrite, local, 0);
    EXPECT_EQ(end.code(), Code::kAborted) << end.message();
    EXPECT_NE(end.message().find("revoked"), std::string::npos) << end.message();
    fellowship.barrier();
    return;
  }
  while (std::atomic_ref(side.memory[500'000]).load() == std::byte{0}) sched_yield();
  const Status freed = side.endpoint->revoke(side.own.region.number, soon());
  EXPECT_TRUE(freed.ok()) << freed.message();
  side.memory = filled(1'000'000, 9);
  fellowship.barrier();  // the writes have ended
  EXPECT_TRUE(side.memory == filled(1'000'000, 9));
}

TEST(RemoteProcesses, NothingIsWrittenToMemoryThatWasRevoked) {
  for (const Way& way : kWays) {
    SCOPED_TRACE(way.name);
    const auto ends = run_processes(
        {.count = 2}, [&](Fellowship& fellowship) { revoke_under_traffic(fellowship, way); });
    for (const int end : ends) EXPECT_EQ(end, 0) << way.name;
  }
}

// Two endpoints of one process.
TEST(RemoteProcesses, AnEndpointOfTheSameProcessIsAPeerLikeAny) {
  const auto ends = run_processes({.count = 1}, [](Fellowship&) {
    auto stack = harp::Stack::acquire({}).value();
    auto a = Endpoint::open(stack, harp::group_id(kRemoteMemory, 1)).value();
    auto b = Endpoint::open(stack, harp::group_id(kRemoteMemory, 2)).value();
    ASSERT_TRUE(a->connect(stack->address(), b->id()).ok());
    ASSERT_TRUE(b->connect(stack->address(), a->id()).ok());
    EXPECT_EQ(a->connect(stack->address(), b->id()).code(), Code::kInvalidArgument);
    Bytes memory(100'000);
    const Handle handle = b->add(memory.data(), memory.size()).value();
    for (const std::size_t size : {10, 100'000}) {
      Bytes local = filled(size, 3), read(size);
      for (auto [action, data] : {std::pair{Action::kWrite, &local}, {Action::kRead, &read}}) {
        auto started = a->start(action, data->data(), size, handle);
        const Status status = (*started)->wait(soon());
        EXPECT_TRUE(status.ok()) << status.message();
      }
      EXPECT_TRUE(read == local);
    }
    EXPECT_TRUE(b->close(soon()).ok());
    Bytes local(10);
    const auto late = a->start(Action::kRead, local.data(), 10, handle).value()->wait(soon());
    EXPECT_EQ(late.code(), Code::kAborted) << late.message();
    EXPECT_FALSE(b->connected());
    EXPECT_EQ(b->add(memory.data(), 1).status().code(), Code::kAborted);
    EXPECT_TRUE(a->close(soon()).ok());
    stack->close();
  });
  EXPECT_EQ(ends[0], 0);
}

}  // namespace
}  // namespace taco::remote
