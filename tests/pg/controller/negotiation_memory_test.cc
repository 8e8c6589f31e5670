// A steady state takes memory for what it hands out, and for little else.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "support/negotiating_ranks.h"

namespace {
std::atomic<std::size_t> allocations{0};
std::atomic<std::ptrdiff_t> held{0};
}  // namespace

void* operator new(std::size_t bytes) {
  void* block = std::malloc(bytes);
  if (block == nullptr) throw std::bad_alloc();
  ++allocations;
  ++held;
  return block;
}
// Inlined, they look to a compiler as if they did not belong together.
[[gnu::noinline]] void operator delete(void* block) noexcept {
  if (block != nullptr) --held;
  std::free(block);
}
[[gnu::noinline]] void operator delete(void* block, std::size_t) noexcept {
  operator delete(block);
}

namespace taco::pg::controller {
namespace {

std::vector<Request> gradients(std::size_t count) {
  std::vector<Request> requests;
  for (std::size_t i = 0; i < count; ++i) {
    requests.push_back(make_request(Kind::kAllReduce, "gradient of layer " + std::to_string(i),
                                    {{static_cast<std::int64_t>(i), 3}}));
  }
  return requests;
}

TEST(NegotiationMemory, ASteadyRoundAllocatesAFewTimesWhateverItsLength) {
  std::vector<std::size_t> taken;
  for (const std::size_t count : {20u, 200u}) {
    Negotiation alone({});
    std::size_t before = 0;
    for (int step = 0; step < 3; ++step) {
      std::vector<Request> requests = gradients(count);
      before = allocations;
      for (Request& request : requests) ASSERT_TRUE(alone.submit(std::move(request)).ok());
      const bool follow = alone.words_follow(alone.bits());
      EXPECT_EQ(follow, step == 0);
      const std::string words = follow ? alone.words() : std::string();
      EXPECT_TRUE(!follow || alone.hear({words}).ok());
      EXPECT_EQ(alone.responses()[0].requests.size(), count);
    }
    taken.push_back(allocations - before);
  }
  EXPECT_EQ(taken[0], taken[1]);
  EXPECT_LE(taken[1], 12u);
}

TEST(NegotiationMemory, NamesThatDoNotComeAgainLeaveNothing) {
  NegotiatingRanks ranks(2, {.cache_slots = 16});
  std::ptrdiff_t before = 0;
  for (int i = 1000; i < 5000; ++i) {
    if (i == 2000) before = held;
    ranks.submit(make_request(Kind::kAllReduce, "a name of its own." + std::to_string(i), {{1}}));
    ASSERT_EQ(ranks.round()[1].size(), 1u);
  }
  EXPECT_EQ(ranks.failure(), "");
  EXPECT_FALSE(ranks[0].wants_round());
  EXPECT_LE(held, before + 8) << "containers may hold a block more or less";
  EXPECT_EQ(ranks[0].bits().size(), 1u);
}

}  // namespace
}  // namespace taco::pg::controller
