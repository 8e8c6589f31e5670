// A process group of Stacks for tests: every rank acquires its Stack, learns of all others through
// the Fellowship, and has an Observer that takes notes.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "harp/engine/stack.h"
#include "support/processes.h"

namespace taco::testing {

class NoteTaker final : public harp::Observer {
 public:
  void on_unmatched_st(harp::PeerId, const harp::MessageKey&, std::uint64_t, bool) override {}
  void on_mismatch_st(harp::PeerId, const harp::MessageKey&, std::uint64_t,
                      std::uint64_t) override {}
  void on_peer_lost_st(harp::PeerId, const Status&) override { ++lost; }
  void on_peer_left_st(harp::PeerId) override { ++left; }
  void on_notice_st(harp::PeerId, std::span<const std::byte>) override { ++notices; }
  std::atomic<int> lost{0}, left{0}, notices{0};
};

struct StackWorld {
  StackWorld(Fellowship& fellowship, const harp::StackOptions& options);
  ~StackWorld();
  harp::PeerId peer(int rank) const { return peers[rank]; }

  NoteTaker notes;
  std::shared_ptr<harp::Stack> stack;
  std::vector<harp::PeerId> peers;  // by rank; the own one is unused
  std::vector<pid_t> pids;
};

// How processes of one host reach each other in a test: by shared memory or as between hosts, there
// also by several paths, on which packets overtake each other.
struct Way {
  const char* name;
  harp::StackOptions::Force transport;
  const char* paths;
};
inline const Way kWays[] = {{"shm", harp::StackOptions::Force::kShm, "1"},
                            {"udp", harp::StackOptions::Force::kUdp, "1"},
                            {"udp by four paths", harp::StackOptions::Force::kUdp, "4"}};

// Makes the stack of a process that has none yet.
inline std::shared_ptr<harp::Stack> stack_by(const Way& way) {
  setenv("TACO_PATHS", way.paths, 1);
  auto made = harp::Stack::acquire({.transport = way.transport});
  EXPECT_TRUE(made.ok()) << made.status().message();
  return std::move(made).value();
}

// Bytes that tell where they belong.
std::vector<std::byte> pattern(std::size_t bytes, std::uint64_t seed);

}  // namespace taco::testing
