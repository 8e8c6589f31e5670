// One process of a simulated cluster: the EngineLoop that runs in production, over a SimNic, driven
// turn by turn in virtual time as EngineCore drives it in real time. Test support.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "harp/engine/engine_loop.h"
#include "harp/engine/peer.h"
#include "harp/engine/token.h"
#include "support/sim_network.h"

namespace taco::harp {

class SimProcess {
 public:
  // Processes of one cluster must be made in order, so that their node numbers agree.
  SimProcess(SimNetwork& network, std::uint64_t seed, const SimNicOptions& nic = {});
  SimProcess(const SimProcess&) = delete;
  SimProcess& operator=(const SimProcess&) = delete;

  // To be called once every process exists. Peers are numbered by node.
  void know(const std::vector<std::unique_ptr<SimProcess>>& cluster);

  // As a program's operations do: the engine watches over the peer's life meanwhile.
  void send(std::uint32_t node, SendRequest& request) {
    begin_turn();
    loop_.send_st(peer(node).id, request);
  }
  void recv(std::uint32_t node, RecvRequest& request) {
    begin_turn();
    loop_.recv_st(peer(node).id, request);
  }
  // Past the engine, for tests of sessions alone.
  Matcher& matcher(std::uint32_t node);  // makes the session on first use
  Session* session(std::uint32_t node) { return peer(node).session.get(); }  // null: not used yet
  Peer& peer(std::uint32_t node) { return *peers_.find(others_[node].id); }

  // One turn of the loop. Does nothing while stalled.
  void turn(Time now);
  void stall_until(Time when) { stalled_until_ = when; }
  Time stalled_until() const { return stalled_until_; }
  // From now on it has so much work of its own in every turn, and never sleeps; 0: not any more.
  void set_turn_time(Duration each) { turn_time_ = each; }
  // When the next turn has something to do.
  Time next_event() const;
  // That it wanted, for a timer, an arrival or something to do.
  std::uint64_t turns() const { return turns_; }
  bool has_started() const { return started_; }
  bool busy() { return loop_.any_link_busy_st() || !loop_.matching().completions.empty(); }
  void leave() { loop_.leave_st(); }

  EngineLoop& loop() { return loop_; }
  PeerTable& peers() { return peers_; }
  SimNic& sim_nic() { return nic_; }
  const ProtocolCounters& counters() const { return loop_.counters(); }
  CreditPool& credit() { return loop_.credit(); }
  // Free blocks and message objects, for messages to come.
  std::size_t bytes_kept();
  void set_now(Time now) { loop_.set_now(now); }
  std::uint64_t incarnation() const { return options_.own.incarnation; }
  const Secret& secret() const { return options_.own.secret; }

  // For sessions to come.
  void set_congestion(const CongestionOps* ops) { options_.congestion = ops; }
  void set_peer_timeout(Duration timeout) { options_.peer_timeout = timeout; }
  void set_security(Security security, std::uint64_t packets_per_key = kPacketsPerKey) {
    options_.security = security;
    options_.packets_per_key = packets_per_key;
  }
  void set_checksum(wire::Checksum checksum) { options_.checksum = checksum; }
  void set_job_key(const JobKey& key) { options_.job_key = key; }
  // Which of its Nic's addresses it says hello from, and which of the others' to.
  void set_address(std::uint32_t address);
  // How many of them, from that one on, sessions may use as paths.
  void set_paths(std::uint32_t paths);

  // Its session and all that goes with it is gone, as in a process that has been started again.
  void drop(std::uint32_t node);
  // The process of that node has died and another one has taken its place, as the store has told.
  void replace_peer(std::uint32_t node, const SimProcess& successor);
  PeerId id_of(std::uint32_t node) const { return others_[node].id; }
  // Dies: its ports are nobody's from now on.
  void die();
  bool is_dead() const { return dead_; }
  // Its clock is ahead of the simulation's, by this much more from now on.
  void jump_clock(Duration by);
  // Datagrams, as if they had come from the network.
  void inject(const RxPacket& packets) { loop_.on_packets_st(packets); }

 private:
  struct Other {
    Identity identity;
    const SimNic* nic = nullptr;
    PeerId id = 0;
  };
  void add_peer(std::uint32_t node);
  void add_peers_anew();
  // Requests are posted in a turn.
  void begin_turn() { loop_.begin_turn_st(network_.now() + clock_ahead_, worked_); }

  const SimNetwork& network_;
  SimNic nic_;
  SimRandom random_;
  LoopOptions options_;
  Token token_;  // held for good
  EngineLoop loop_;
  PeerTable peers_;  // goes before the loop, to which its sessions refer
  std::vector<Other> others_;
  std::uint32_t address_ = 0, paths_ = 1;
  Time stalled_until_ = 0, works_until_ = 0;
  Duration clock_ahead_ = 0;
  Duration turn_time_ = 0, worked_ = 0;  // a turn; since the last one began
  std::uint64_t turns_ = 0;
  bool dead_ = false, started_ = false;
  bool awake_ = false;  // the last turn left work behind
};

}  // namespace taco::harp
