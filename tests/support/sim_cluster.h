// Several SimProcesses on one SimNetwork, and the clock that drives them. Test support.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "support/sim_process.h"

namespace taco::harp {

class SimCluster {
 public:
  SimCluster(std::uint32_t nodes, std::uint64_t seed, const SimFaults& faults,
             const SimNicOptions& nic = {})
      : network_(seed, faults), nic_(nic) {
    for (std::uint32_t i = 0; i < nodes; ++i) {
      processes_.push_back(std::make_unique<SimProcess>(network_, seed * 1000003 + i + 1, nic));
    }
    for (auto& process : processes_) process->know(processes_);
  }

  SimNetwork& network() { return network_; }
  SimProcess& operator[](std::uint32_t node) { return *processes_[node]; }
  std::uint32_t size() const { return static_cast<std::uint32_t>(processes_.size()); }
  Time now() const { return network_.now(); }

  // A dead process's successor, at the same addresses and ports.
  SimProcess& restart(std::uint32_t node, std::uint64_t seed) {
    SimNicOptions nic = nic_;
    nic.node = node;
    auto successor = std::make_unique<SimProcess>(network_, seed, nic);
    processes_[node].swap(successor);
    processes_[node]->know(processes_);
    for (std::uint32_t i = 0; i < size(); ++i) {
      if (i != node) processes_[i]->replace_peer(node, *processes_[node]);
    }
    return *processes_[node];
  }

  // Ends all processes, whatever they are in the middle of: before the memory of their messages.
  void end() { processes_.clear(); }

  // Come back at that time at the latest, even if nothing happens before.
  void wake_at(Time when) { wake_at_ = std::min(wake_at_, when); }

  // Runs until `done` or until virtual time `limit`. `disturb` is asked before every step and may
  // stall processes or kill links. Returns done().
  bool run(Time limit, const std::function<bool()>& done,
           const std::function<void()>& disturb = nullptr) {
    while (!done()) {
      Time next = std::min(network_.next_arrival(), wake_at_);
      if (wake_at_ <= now()) wake_at_ = kNever;
      for (auto& process : processes_) next = std::min(next, process->next_event());
      next = std::max(next, now());
      if (next > limit) return false;
      network_.advance(next);
      if (disturb) disturb();
      for (auto& process : processes_) process->turn(now());
      network_.advance(now() + kTurnCost);
    }
    return true;
  }

 private:
  static constexpr Duration kTurnCost = 2 * kMicrosecond;  // so that time always moves
  SimNetwork network_;
  const SimNicOptions nic_;
  Time wake_at_ = kNever;
  std::vector<std::unique_ptr<SimProcess>> processes_;
};

}  // namespace taco::harp
