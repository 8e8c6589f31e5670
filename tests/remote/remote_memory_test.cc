// Reads and writes of another process's memory, over networks of all kinds: every byte arrives
// where it belongs, and none elsewhere.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/remote_pair.h"

namespace taco::remote {
namespace {

const std::vector<std::size_t> kSizes = {1, 16, kMaxCarried, kMaxCarried + 1, 5000, 300'000};
constexpr std::size_t kGuard = 64;

std::size_t all_of(const std::vector<std::size_t>& sizes) {
  std::size_t sum = 0;
  for (const std::size_t size : sizes) sum += size;
  return sum;
}

Handle part_of(Handle handle, std::size_t offset, std::size_t bytes) {
  handle.offset += offset;
  handle.bytes = bytes;
  return handle;
}

// Both ends write into the other's memory, and read another part of it, in all sizes at once.
void exchange(RemotePair& pair) {
  const std::size_t half = all_of(kSizes) + kGuard;
  std::vector<Bytes> memory, before;
  std::vector<Handle> handles;
  for (std::uint32_t node : {0u, 1u}) memory.push_back(random_bytes(2 * half, 77 + node));
  before = memory;
  for (std::uint32_t node : {0u, 1u}) handles.push_back(pair.expose(node, memory[node]));
  struct Ask {
    std::uint32_t node;
    std::size_t at;
    Noted* noted;
  };
  std::vector<Ask> asks;
  for (std::uint32_t node : {0u, 1u}) {
    std::size_t at = 0;
    for (const std::size_t size : kSizes) {
      const Handle there = handles[1 - node];
      asks.push_back({node, at,
                      &pair.start(node, Action::kWrite, random_bytes(size, size + node),
                                  part_of(there, at, size))});
      asks.push_back(
          {node, half + at,
           &pair.start(node, Action::kRead, Bytes(size), part_of(there, half + at, size))});
      at += size;
    }
  }
  ASSERT_TRUE(pair.run([&] { return pair.all_done(); }));
  for (const Ask& ask : asks) {
    const Noted& noted = *ask.noted;
    EXPECT_EQ(noted.calls, 1);
    ASSERT_TRUE(noted.outcome.ok()) << noted.outcome.message();
    const Bytes& there = memory[1 - ask.node];
    EXPECT_TRUE(std::equal(noted.local.begin(), noted.local.end(), there.begin() + ask.at))
        << noted.bytes << " bytes at " << ask.at;
  }
  for (std::uint32_t node : {0u, 1u}) {
    EXPECT_TRUE(std::equal(memory[node].begin() + half - kGuard, memory[node].end(),
                           before[node].begin() + half - kGuard))
        << "what nobody wrote has changed";
  }
  EXPECT_TRUE(pair.run(
      [&] { return pair.ends[0]->owner.is_idle_st() && pair.ends[1]->owner.is_idle_st(); }));
}

SimFaults wild() {
  SimFaults faults;
  faults.loss = 0.03;
  faults.duplication = 0.05;
  faults.reordering = 0.05;
  faults.corruption = 0.01;
  return faults;
}

TEST(RemoteMemory, BytesAreInPlaceWhenAReadOrAWriteIsDone) {
  RemotePair pair(1);
  pair.connect_both();
  exchange(pair);
}

TEST(RemoteMemory, NothingThatANetworkDoesChangesThat) {
  for (const auto level :
       {harp::Security::kNone, harp::Security::kAuth, harp::Security::kEncrypt}) {
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      SCOPED_TRACE(seed);
      RemotePair pair(seed, wild());
      for (const std::uint32_t node : {0u, 1u}) {
        pair.cluster[node].set_security(level);
        pair.cluster[node].set_paths(2);
      }
      pair.connect_both();
      exchange(pair);
      EXPECT_GT(pair.cluster.network().counts().duplicated, 0u);
    }
  }
}

TEST(RemoteMemory, LongOperationsBecomeSeveralRequests) {
  RemotePair pair(5, {}, 2, 10'000);
  pair.connect_both();
  exchange(pair);
  Bytes memory(1'000'003);
  const Handle handle = pair.expose(1, memory);
  Noted& write = pair.start(0, Action::kWrite, random_bytes(memory.size(), 3), handle);
  const Status status = pair.run_one(write);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(memory == write.local);
}

TEST(RemoteMemory, AnyNumberOfOperationsMayBeStarted) {
  RemotePair pair(6);
  pair.connect_both();
  constexpr std::size_t kCount = 10 * kMaxRequests, kSize = 2000;
  Bytes memory(kCount * kSize);
  const Handle handle = pair.expose(1, memory);
  for (std::size_t i = 0; i < kCount; ++i) {
    pair.start(0, Action::kWrite, random_bytes(kSize, i), part_of(handle, i * kSize, kSize));
  }
  ASSERT_TRUE(pair.run([&] { return pair.all_done(); }));
  for (std::size_t i = 0; i < kCount; ++i) {
    const Noted& each = *pair.operations[i];
    ASSERT_TRUE(each.outcome.ok()) << each.outcome.message();
    EXPECT_TRUE(std::equal(each.local.begin(), each.local.end(), memory.begin() + i * kSize)) << i;
  }
}

TEST(RemoteMemory, ARequestWaitsForAPeerThatConnectsLater) {
  RemotePair pair(7);
  Bytes memory(3000);
  const Handle handle = pair.expose(1, memory);
  pair.connect(0, 1);
  Noted& small = pair.start(0, Action::kWrite, random_bytes(100, 1), handle);
  Noted& large = pair.start(0, Action::kWrite, random_bytes(3000, 2), handle);
  const Time later = pair.cluster.now() + kSecond;
  EXPECT_FALSE(pair.cluster.run(later, [&] { return small.calls + large.calls > 0; }));
  pair.connect(1, 0);
  ASSERT_TRUE(pair.run_one(large).ok()) << large.outcome.message();
  ASSERT_TRUE(pair.run_one(small).ok()) << small.outcome.message();
}

TEST(RemoteMemory, ALinkThatDiesCostsNoByte) {
  RemotePair pair(8);
  for (const std::uint32_t node : {0u, 1u}) pair.cluster[node].set_paths(2);
  pair.connect_both();
  Bytes memory(20'000'000);
  const Handle handle = pair.expose(1, memory);
  Noted& write = pair.start(0, Action::kWrite, random_bytes(memory.size(), 3), handle);
  bool has_died = false;
  ASSERT_TRUE(pair.run([&] { return write.calls > 0; },
                       [&] {
                         if (has_died || memory[1'000'000] == std::byte{0}) return;
                         has_died = true;
                         for (const std::uint32_t from : {0u, 1u})
                           pair.cluster.network().kill_link(from, 1 - from, kNever, 1);
                       }));
  EXPECT_TRUE(has_died);
  ASSERT_TRUE(write.outcome.ok()) << write.outcome.message();
  EXPECT_TRUE(memory == write.local);
}

}  // namespace
}  // namespace taco::remote
