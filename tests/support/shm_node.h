// One end of shared memory with real matchers and a small loop in place of an engine. Several may
// live in one process, or one in each of several forked ones: everything passes through the kernel
// the same way.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "harp/matching/matcher.h"
#include "harp/shm/endpoint.h"

namespace taco::harp {

// Everything that a node heard from its observer.
struct ShmHeard final : Observer {
  void on_unmatched_st(PeerId, const MessageKey& key, std::uint64_t, bool is_send) override {
    (is_send ? sends : wants).push_back(key);
  }
  void on_mismatch_st(PeerId, const MessageKey&, std::uint64_t ours,
                      std::uint64_t theirs) override {
    mismatches.push_back({ours, theirs});
  }
  void on_peer_lost_st(PeerId peer, const Status& why) override { lost.push_back({peer, why}); }
  void on_peer_left_st(PeerId peer) override { left.push_back(peer); }
  void on_notice_st(PeerId, std::span<const std::byte> bytes) override {
    notices.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (on_notice) on_notice();
  }
  std::vector<MessageKey> sends, wants;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> mismatches;
  std::vector<std::pair<PeerId, Status>> lost;
  std::vector<PeerId> left;
  std::vector<std::string> notices;
  std::function<void()> on_notice;
};

class ShmNode {
 public:
  explicit ShmNode(bool pull = true, std::size_t arena_bytes = std::size_t{16} << 20,
                   bool watch_processes = true, const JobKey& job_key = {});
  ~ShmNode();
  ShmNode(const ShmNode&) = delete;
  ShmNode& operator=(const ShmNode&) = delete;

  const ShmAddress& address() const { return endpoint->address(); }
  PeerId join(const ShmAddress& peer);  // opens a link; ids count from 0
  Matcher& matcher(PeerId peer) { return *matchers[peer]; }

  // One turn of the loop; true when something happened.
  bool turn();
  // Turns until `done`, sleeping as an engine would when nothing happens. False at the deadline.
  bool run_until(const std::function<bool()>& done, Duration within = 20 * kSecond);
  bool run_until_idle();  // a few turns in which nothing happens

  std::unique_ptr<ShmEndpoint> endpoint;
  ShmHeard heard;
  MatcherHost host;
  std::vector<ShmLink*> links;
  std::vector<std::unique_ptr<Matcher>> matchers;
  int spins = 50;  // idle turns before sleeping

 private:
  int epoll_ = -1;
};

// A request with its own outcome.
struct ShmSend : SendRequest {
  ShmSend(MessageKey message_key, const void* bytes_from, std::size_t length);
  bool done = false;
  Status status;
};
struct ShmReceive : RecvRequest {
  ShmReceive(MessageKey message_key, Sink into, std::size_t most);
  bool done = false;
  Status status;
};

// Turns all nodes of this process, round about, until `done`.
bool run_all(const std::vector<ShmNode*>& nodes, const std::function<bool()>& done,
             Duration within = 20 * kSecond);

std::vector<std::byte> shm_pattern(std::size_t bytes, std::uint64_t seed);

}  // namespace taco::harp
