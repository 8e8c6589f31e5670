#include "support/stack_world.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <random>

namespace taco::testing {

StackWorld::StackWorld(Fellowship& fellowship, const harp::StackOptions& options)
    : peers(fellowship.world()) {
  auto made = harp::Stack::acquire(options);
  EXPECT_TRUE(made.ok()) << made.status().message();
  if (!made.ok()) _exit(4);
  stack = std::move(made).value();
  stack->set_observer(harp::Service::kCollectives, &notes);
  const auto addresses = fellowship.all_gather(stack->address());
  for (const std::string& pid : fellowship.all_gather(std::to_string(getpid()))) {
    pids.push_back(pid.empty() ? -1 : std::stoi(pid));
  }
  for (int rank = 0; rank < fellowship.world(); ++rank) {
    if (rank == fellowship.rank()) continue;
    const auto added = stack->add_peer(addresses[rank]);
    EXPECT_TRUE(added.ok()) << added.status().message();
    if (!added.ok()) _exit(5);
    peers[rank] = added.value();
  }
}

StackWorld::~StackWorld() { stack->close(); }

std::vector<std::byte> pattern(std::size_t bytes, std::uint64_t seed) {
  std::vector<std::byte> made(bytes);
  std::mt19937_64 random(seed * 7919 + bytes);
  std::size_t at = 0;
  for (; at + 8 <= bytes; at += 8) {
    const std::uint64_t word = random();
    __builtin_memcpy(made.data() + at, &word, 8);
  }
  for (; at < bytes; ++at) made[at] = static_cast<std::byte>(random());
  return made;
}

}  // namespace taco::testing
