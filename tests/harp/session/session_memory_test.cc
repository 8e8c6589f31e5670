// Measures the memory that an idle session really holds: every allocation of this program is
// counted.
#include <gtest/gtest.h>
#include <malloc.h>
#include <openssl/crypto.h>

#include <atomic>
#include <cstdlib>
#include <deque>
#include <memory>
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

namespace {

// Memory that libcrypto holds for keys counts as well.
void* crypto_malloc(std::size_t bytes, const char*, int) {
  void* block = std::malloc(bytes);
  if (block != nullptr) live_bytes += malloc_usable_size(block);
  return block;
}
void crypto_free(void* block, const char*, int) { operator delete(block); }
void* crypto_realloc(void* block, std::size_t bytes, const char*, int) {
  if (block != nullptr) live_bytes -= malloc_usable_size(block);
  void* moved = std::realloc(block, bytes);
  if (moved != nullptr) live_bytes += malloc_usable_size(moved);
  return moved;
}
const bool crypto_counted =
    CRYPTO_set_mem_functions(crypto_malloc, crypto_realloc, crypto_free) == 1;

}  // namespace

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

// Free blocks and message objects, which messages to come use again: the engine's, not a session's.
std::size_t bytes_kept(SimCluster& cluster) {
  std::size_t kept = 0;
  for (std::uint32_t i = 0; i < cluster.size(); ++i) kept += cluster[i].bytes_kept();
  return kept;
}

constexpr std::size_t kKeys = 4096;

// Two claims that add up to everything: a session with its matcher holds 4 KiB, and one more for
// each of its paths, and kKeys for its keys if it has any, and the engine keeps beside that what
// the busiest moment took, however many such moments there were.
void expect_little_memory(std::uint32_t paths, Security security = Security::kNone) {
  constexpr std::uint32_t kNodes = 16;
  SimFaults faults;
  faults.receive_buffer = 8 << 20;
  const auto make_cluster = [&](std::uint32_t nodes) {
    auto made = std::make_unique<SimCluster>(nodes, 1, faults);
    for (std::uint32_t i = 0; i < nodes; ++i) {
      (*made)[i].set_paths(paths);
      (*made)[i].set_security(security, 50);
    }
    return made;
  };
  exchange(*make_cluster(kNodes), 0, 20'000);  // what a process takes only once
  const auto owned = make_cluster(kNodes);
  SimCluster& cluster = *owned;
  const std::size_t before = live_bytes;
  std::size_t kept_at_first = 0;
  for (std::uint64_t round = 0; round < 10; ++round) {
    exchange(cluster, 2 * round, 100);
    exchange(cluster, 2 * round + 1, 20'000);
    if (round == 1) kept_at_first = bytes_kept(cluster);
  }
  cluster.run(cluster.now() + 10 * kSecond, [] { return false; });
  const std::size_t all = live_bytes - before, kept = bytes_kept(cluster);
  const std::size_t sessions = kNodes * (kNodes - 1);
  // The matchers were there before. What is left out is a peer's place in its engine's tables and
  // the name that errors call it by.
  constexpr std::size_t kPlaceAndName = 160;
  const std::size_t each = (all - kept) / sessions + sizeof(Matcher) - kPlaceAndName;
  printf(
      "a session of %u paths with its matcher (%s): %zu bytes; an engine beside its %u sessions: "
      "%zu\n",
      paths, name_of(security), each, kNodes - 1, kept / kNodes);
  EXPECT_LE(each, 4096u + 1024 * paths + (security != Security::kNone ? kKeys : 0));
  EXPECT_LE(kept, 2 * kept_at_first);
}

TEST(SessionMemory, OfAnIdleSessionIsSmallAndWhatEnginesKeepForAllDoesNotGrow) {
  expect_little_memory(1);
}

TEST(SessionMemory, TheSameWithSeveralPaths) { expect_little_memory(4); }

TEST(SessionMemory, TheSameWithKeysThatHaveChanged) {
  ASSERT_TRUE(crypto_counted);
  for (const Security security : {Security::kAuth, Security::kEncrypt}) {
    expect_little_memory(1, security);
  }
}

// Two processes that once had thousands of messages open hold little more than those that never
// had; some of it is what the simulator keeps of its queues. Of the Matchers' tables alone, 16,384
// messages leave 4 MiB if nothing is given back.
TEST(SessionMemory, OfAPairThatHadManyMessagesOpenAtOnceIsSmallAgain) {
  constexpr std::size_t kMessages = 16'384;
  SimFaults faults;
  faults.receive_buffer = 8 << 20;
  SimCluster cluster(2, 1, faults);
  const std::size_t before = live_bytes;
  {
    std::vector<std::byte> source(2000), target(2000);
    std::deque<Pair> pairs(kMessages);
    for (Pair& pair : pairs) {
      pair.send.key = pair.recv.key = {1, reinterpret_cast<std::uintptr_t>(&pair)};
      pair.send.data = source.data();
      pair.send.bytes = pair.recv.max_bytes = source.size();
      pair.recv.sink = Sink::place(target.data());
      pair.send.context = pair.recv.context = &pair;
      pair.send.on_done = [](SendRequest& r, const Status&) {
        ++static_cast<Pair*>(r.context)->done;
      };
      pair.recv.on_done = [](RecvRequest& r, const Status&) {
        ++static_cast<Pair*>(r.context)->done;
      };
      cluster[1].recv(0, pair.recv);
      cluster[0].send(1, pair.send);
    }
    ASSERT_TRUE(cluster.run(cluster.now() + 20 * kSecond, [&] {
      return std::all_of(pairs.begin(), pairs.end(), [](const Pair& p) { return p.done == 2; });
    }));
  }
  cluster.run(cluster.now() + 5 * kSecond, [] { return false; });
  const std::size_t kept = live_bytes - before - bytes_kept(cluster);
  EXPECT_LE(kept, 512u * 1024);
  for (std::uint32_t i = 0; i < 2; ++i) {
    const Peer& peer = cluster[i].peer(1 - i);
    EXPECT_LE(peer.matcher.memory_bytes() + peer.session->memory_bytes(), 4096u + 1024);
  }
}

}  // namespace
}  // namespace taco::harp
