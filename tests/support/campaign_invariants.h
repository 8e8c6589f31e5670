// Checks what must hold in a campaign scenario at every moment, and once nothing is under way. Test
// support.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/campaign_plan.h"
#include "support/seen_nonces.h"
#include "support/sim_cluster.h"

namespace taco::harp {

class Invariants {
 public:
  explicit Invariants(SimCluster& cluster);
  ~Invariants();
  Invariants(const Invariants&) = delete;
  Invariants& operator=(const Invariants&) = delete;

  // At every step of the simulation.
  void step();
  // Called for every datagram that leaves, in part or whole.
  void see(const SimNetwork::Departure& sent);
  // The process of that node dies: the others may lose it, and nobody else.
  void on_death(std::uint32_t node);
  void on_restart(std::uint32_t node);
  // Nothing is under way and nobody wants anything: from here, and until here.
  void begin_idle();
  void end_idle();

  const std::string& failure() const { return failure_; }
  std::size_t max_session_bytes() const { return max_session_bytes_; }
  std::size_t max_idle_bytes() const { return max_idle_bytes_; }
  std::uint64_t max_silent_steps() const { return max_silent_steps_; }
  std::uint64_t losses() const { return losses_; }  // of peers that had died
  std::uint64_t sealed_in_part() const { return nonces_.in_part(); }

 private:
  // Hears what a process is told about its peers.
  class Witness final : public Observer {
   public:
    Witness(Invariants& all, std::uint32_t node) : all_(all), node_(node) {}
    void on_unmatched_st(PeerId, const MessageKey&, std::uint64_t, bool) override {}
    void on_mismatch_st(PeerId, const MessageKey&, std::uint64_t, std::uint64_t) override {}
    void on_peer_lost_st(PeerId peer, const Status& why) override {
      all_.on_lost(node_, peer, why);
    }
    void on_peer_left_st(PeerId) override {}
    void on_notice_st(PeerId, std::span<const std::byte>) override {}

   private:
    Invariants& all_;
    const std::uint32_t node_;
  };

  void watch(std::uint32_t node);
  void on_lost(std::uint32_t node, PeerId peer, const Status& why);
  void check_credit(std::uint32_t node, std::uint32_t other);
  void check_credit_used_up(std::uint32_t node, std::uint32_t other);
  void check_pool(std::uint32_t node);
  void check_open(std::uint32_t node);
  void check_idle_memory(std::uint32_t node, std::uint32_t other);
  void check_pace();
  void fail(const std::string& text) {
    if (failure_.empty()) failure_ = text;
  }

  SimCluster& cluster_;
  SeenNonces nonces_;
  std::size_t from_nowhere_ = 0, to_nowhere_ = 0;        // bytes
  std::vector<std::unique_ptr<Witness>> witnesses_;      // by node
  std::set<std::pair<std::uint32_t, PeerId>> mourners_;  // who may lose whom
  std::uint64_t steps_ = 0;
  std::uint64_t packets_ = 0, silent_steps_ = 0, max_silent_steps_ = 0;
  std::vector<std::uint64_t> turns_before_;  // idling began, by node
  Time idle_since_ = 0;
  std::size_t max_session_bytes_ = 0, max_idle_bytes_ = 0;
  std::uint64_t losses_ = 0;
  std::string failure_;
};

}  // namespace taco::harp
