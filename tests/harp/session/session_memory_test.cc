// What an idle session really holds: every allocation of this program is counted.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <deque>
#include <new>

#include "support/sim_cluster.h"

namespace {
std::atomic<std::size_t> live_bytes{0};
}  // namespace

void* operator new(std::size_t bytes) {
  void* block = std::malloc(bytes);
  if (block == nullptr) throw std::bad_alloc();
  live_bytes += malloc_usable_size(block);
  return block;
}
void operator delete(void* block) noexcept {
  if (block != nullptr) live_bytes -= malloc_usable_size(block);
  std::free(block);
}
void operator delete(void* block, std::size_t) noexcept { operator delete(block); }

namespace taco::harp {
namespace {

struct Pair {
  SendRequest send;
  RecvRequest recv;
  int done = 0;
};

// Every process of the cluster sends every other one a message of `bytes`.
void exchange(SimCluster& cluster, std::uint64_t tag, std::size_t bytes) {
  std::vector<std::byte> source(bytes), target(bytes);
  std::deque<Pair> pairs;
  for (std::uint32_t from = 0; from < cluster.size(); ++from) {
    for (std::uint32_t to = 0; to < cluster.size(); ++to) {
      if (from == to) continue;
      Pair& pair = pairs.emplace_back();
      pair.send.key = pair.recv.key = {1, tag};
      pair.send.data = source.data();
      pair.send.bytes = pair.recv.max_bytes = bytes;
      pair.send.on_done = [](SendRequest& r, const Status&) {
        ++static_cast<Pair*>(r.context)->done;
      };
      pair.recv.on_done = [](RecvRequest& r, const Status&) {
        ++static_cast<Pair*>(r.context)->done;
      };
      pair.send.context = pair.recv.context = &pair;
      pair.recv.sink = Sink::discard();
      cluster[to].matcher(from).recv(pair.recv);
      cluster[from].matcher(to).send(pair.send);
    }
  }
  ASSERT_TRUE(cluster.run(cluster.now() + 20 * kSecond, [&] {
    return std::all_of(pairs.begin(), pairs.end(), [](const Pair& p) { return p.done == 2; });
  }));
}

TEST(SessionMemory, AnIdleSessionHoldsAtMostFourKilobytes) {
  constexpr std::uint32_t kNodes = 16;
  SimFaults faults;
  faults.receive_buffer = 8 << 20;
  SimCluster cluster(kNodes, 1, faults);
  const std::size_t before = live_bytes;
  for (std::uint64_t round = 0; round < 5; ++round) {
    exchange(cluster, 2 * round, 100);
    exchange(cluster, 2 * round + 1, 20'000);
  }
  cluster.run(cluster.now() + 10 * kSecond, [] { return false; });
  // What is free belongs to the engine and is bounded there, whatever the number of sessions.
  std::size_t held = live_bytes - before;
  for (std::uint32_t i = 0; i < kNodes; ++i) {
    held -= cluster[i].matching().buffers.bytes_kept() + cluster[i].bytes_kept();
  }
  const std::size_t sessions = kNodes * (kNodes - 1);
  printf("%zu bytes a session, with its matcher\n", held / sessions);
  EXPECT_LE(held / sessions, 4096u);
}

}  // namespace
}  // namespace taco::harp
