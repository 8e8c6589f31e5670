// The state that the links of one endpoint share. Owned by the endpoint, outlives its links; owner
// thread only, but for `stats`.
#pragma once

#include <memory>
#include <string>

#include "base/arena.h"
#include "base/clock.h"
#include "base/descriptors.h"
#include "base/own_fd.h"
#include "harp/shm/blocks.h"
#include "harp/shm/endpoint.h"
#include "harp/shm/layout.h"
#include "harp/shm/socket.h"

namespace taco::harp {

inline constexpr std::size_t kShmScratchBytes = 256 * 1024;

struct ShmHost {
  ShmAddress address;
  JobKey job_key;
  ShmPull pull = ShmPull::kWhereFaster;
  bool huge_pages = false;  // by default, for everybody's tensors
  bool watch_processes = true;
  Arena arena;    // shared: a ShmPage, then the blocks
  Arena scratch;  // pulled data on its way through a reducing sink
  OwnFd arena_fd, doorbell, events;
  ShmPage* page = nullptr;
  std::unique_ptr<ShmBlocks> blocks;
  std::uint64_t probe_word = 0;  // what peers read to find out whether they may pull
  std::string why_no_pull;       // of the last peer that it did not work with
  // A peer, for want of a descriptor. It only makes errors say more. For good: the one that was
  // refused has given this process up for good, too, and may be called at any time.
  bool has_refused = false;
  ShmStats stats;
  Time now = 0;

  // Tells who has called that there is no descriptor left for it.
  void refuse(int socket) {
    has_refused = true;
    shm_send_refusal(socket);
  }
  // A peer that was refused hangs up when it is called, and cannot say why.
  std::string refusals_text() const {
    if (!has_refused) return "";
    return "; this process had no file descriptor left for some peer: " + descriptor_limit_text();
  }
};

// Only the owner thread writes, so that no locked instruction is needed.
inline void shm_count(std::atomic<std::uint64_t>& counter, std::uint64_t by = 1) {
  counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
}

inline void shm_release(ShmHost& host, Staging& staging) {
  if (staging.block == nullptr) return;
  host.blocks->unstage(static_cast<ShmStaged*>(staging.block));
  staging.block = nullptr;
}

}  // namespace taco::harp
