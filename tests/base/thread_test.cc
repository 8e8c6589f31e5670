#include "base/thread.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <thread>

namespace taco {
namespace {

// The turn of this thread, in ns, as sched_getattr tells it; before Linux 6.12 an ordinary thread
// has none.
std::uint64_t turn() {
  std::array<std::byte, 48> attributes{};
  EXPECT_EQ(syscall(SYS_sched_getattr, 0, attributes.data(), attributes.size(), 0), 0);
  std::uint64_t runtime = 0;
  std::memcpy(&runtime, attributes.data() + 24, sizeof runtime);
  return runtime;
}

TEST(Thread, TakesShortTurnsForAsLongAsItIsAskedTo) {
  const std::uint64_t before = turn();
  if (before == 0) GTEST_SKIP() << "this kernel does not let threads choose their turns";
  {
    const ShortTurns turns;
    EXPECT_EQ(turn(), 100'000u);
    std::uint64_t elsewhere = 0;
    std::thread([&] {
      const ShortTurns own;
      elsewhere = turn();
    }).join();
    EXPECT_EQ(elsewhere, 100'000u);
    EXPECT_EQ(turn(), 100'000u) << "what another thread does is its own";
  }
  EXPECT_EQ(turn(), before);
}

}  // namespace
}  // namespace taco
