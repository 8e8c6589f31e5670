// A process group of Stacks for tests: every rank acquires its Stack, learns of all others through
// the Fellowship, and has an Observer that takes notes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
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

// Bytes that tell where they belong.
std::vector<std::byte> pattern(std::size_t bytes, std::uint64_t seed);

}  // namespace taco::testing
