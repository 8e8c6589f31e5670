// The loop of an engine. A turn takes in what has arrived or was refused, runs timers and
// completions, and transmits. The loop owns the peers in contact, their links and sessions, from
// first use to last. It knows no thread, no clock and nothing to sleep on: its driver says what
// time it is. That is EngineCore in a process (engine_core.h); tests drive the same loop through
// virtual time (tests/support/sim_process.h).
//
// Every function needs the ownership token.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/assert.h"
#include "harp/engine/engine_liveness.h"
#include "harp/engine/excuses.h"
#include "harp/engine/path_reports.h"
#include "harp/engine/peer.h"
#include "harp/engine/services.h"
#include "harp/engine/stack.h"
#include "harp/engine/timer_heap.h"
#include "harp/engine/token.h"
#include "harp/matching/matcher.h"
#include "harp/network.h"
#include "harp/nic.h"
#include "harp/session/sealing.h"
#include "harp/session/session_host.h"
#include "harp/session/stray_packets.h"
#include "harp/shm/endpoint.h"
#include "harp/stat/stat_page.h"

namespace taco::harp {

struct LoopOptions {
  Identity own;
  std::function<std::uint64_t()> random;  // unguessable
  std::function<RouteLookup()> routes;    // see Network
  Duration peer_timeout = 10 * kSecond;
  const CongestionOps* congestion = nullptr;  // null: the default
  Security security = Security::kNone;
  wire::Checksum checksum = wire::Checksum::kCrc32c;
  std::uint64_t packets_per_key = kPacketsPerKey;
  JobKey job_key;
};

class EngineLoop final : public Transport,
                         public PathSource,
                         public SessionHost,
                         private StrayPackets::Peers {
 public:
  // The objects referred to outlive the loop. `shm`, which opens the links inside the host, may be
  // null; to poll it is the driver's part.
  EngineLoop(const LoopOptions& options, const Token& token, Nic& nic, ShmEndpoint* shm,
             PeerTable& peers);

  // A turn begins with the time; then the driver adds what it has (tasks, shared memory); then
  // comes everything else. True when anything happened.
  // `worked`: of the time by which it begins late, what went into the last turn's own work.
  void begin_turn_st(Time now, Duration worked = 0);
  bool turn_st();
  // Small messages that the driver has added leave before anybody looks for arrivals, which costs
  // a system call.
  void transmit_eager_st();

  // Nothing is left to do but what timers, arrivals or room in the Nic bring.
  bool may_sleep_st() const;
  // Nor is there anything under way.
  bool is_quiet_st();
  // The next turn is due then; one that begins much later was kept away, and blames nobody for it.
  void expect_turn_st(Time when) {
    assert_owner();
    expected_back_ = when;
  }
  // So late would a turn begin now that it matters why.
  bool is_late_st(Time now) const;
  Time next_deadline_st() const;
  bool has_open_requests_st() const;
  bool any_link_busy_st();

  // Takes packets from the network that nobody has looked at yet.
  void on_packets_st(const RxPacket& packets);

  // Makes the link on first use.
  void open_link_st(Peer& peer);
  // Somebody gave back the last reference to a peer.
  void take_released_st();
  // The peer goes, and everything it had a part in; unless somebody has come to need it.
  void end_peer_st(Peer& peer);

  // Goodbye to everybody.
  void leave_st();
  // Everything open fails, and nobody is reached from here any more.
  void end_st(const Status& why);

  MatcherHost& matching() { return matching_; }
  Security security() const { return options_.security; }  // same for as long as it runs
  Services& services() { return services_; }
  void add_to_st(StackStats& stats);
  // Fills in what other processes read of the engine, but for shared memory, in an empty `state`.
  void describe_st(statistics::State& state);
  // A number that changes whenever describe_st() has something new to say of traffic or peers.
  std::uint64_t activity_st() const;

  // Transport.
  void send_st(PeerId peer, SendRequest& request) override;
  void recv_st(PeerId peer, RecvRequest& request) override;
  void cancel_st(SendRequest& request, const Status& why) override;
  void cancel_st(RecvRequest& request, const Status& why) override;
  void release_st(Staging& staging) override;
  bool has_unmatched_st(PeerId peer, const MessageKey& key) const override;
  void solicit_st(PeerId peer, const MessageKey& key) override;
  void forget_group_st(std::uint64_t group) override;
  void notify_st(PeerId peer, std::span<const std::byte> bytes) override;
  bool is_idle_st(PeerId peer) const override;
  Time now_st() const override {
    assert_owner();
    return now();
  }
  void arm_st(Timer& timer, Time deadline) override;
  void disarm_st(Timer& timer) override;
  bool is_local_st(PeerId peer) const override;
  Status loss_st(PeerId peer) const override;

  // PathSource.
  std::vector<PathReport> paths_st() const override;

  // SessionHost.
  void arm(Timer& timer, Time deadline) override { session_timers_.arm(timer, deadline); }
  void disarm(Timer& timer) override { session_timers_.disarm(timer); }
  std::uint64_t random() override { return options_.random(); }
  std::vector<std::uint32_t> ways_to(const Endpoint& remote) override;
  std::vector<std::vector<std::uint32_t>> ways_to_each(std::span<const Endpoint> remotes) override;
  std::vector<Endpoint> published_by(std::uint64_t incarnation) override;
  void on_paths_opened(const Session& session) override;

 private:
  // StrayPackets::Peers.
  std::optional<PairKey> key_with(std::uint64_t incarnation) override;
  Session& session_with(std::uint64_t incarnation) override;
  Session* begin_anew(std::uint64_t incarnation) override;
  void on_reset(Session& session) override;

  // engine_loop.cc
  void extend_deadlines(Duration late, Duration away);
  static void on_trim_timer(Timer& timer, Time now);
  bool receive_burst(bool* full);
  void assert_owner() const { TACO_ASSERT(token_.held_by_me(), "without the engine's token"); }
  Peer* peer_of(PeerId id) const;

  // engine_sessions.cc
  Link& link_of(Peer& peer);
  void open_session(Peer& peer);
  PairKey key_of(const Address& peer) const;
  void forget_session(const Peer& peer);
  Session* session_of(std::uint64_t connection);
  Peer* peer_at(const Session& session) const;
  Peer* addressee_of(std::span<const std::byte> quoted) const;
  void look_at_addresses();
  void tell_sessions(std::size_t most);
  void prefetch_untold() const;
  std::uint32_t note_new_addresses();
  void tell_of_addresses(std::uint32_t added, std::uint32_t changed) const;

  // engine_statistics.cc
  void add_rows(const Peer& peer, std::vector<statistics::Row>& rows) const;

  // engine_peers.cc
  static void on_idle_timer(Timer& timer, Time now);
  void look_at_idle_soon();
  Time examine_idle(Peer& peer, Time now);

  // News of the Nic's addresses, and how many of linked_, from the front, have yet to hear them.
  struct AddressNews {
    std::uint32_t missing = 0, changed = 0, added = 0;
    RouteLookup routes;  // of that moment
    std::size_t untold = 0;
  };

  const LoopOptions& options_;
  const Token& token_;
  ShmEndpoint* const shm_;
  PeerTable& peers_;
  BytePool buffers_;
  Services services_;
  MatcherHost matching_;
  Timer idle_timer_, trim_timer_;
  TimerHeap timers_;          // of the Transport's users
  TimerHeap session_timers_;  // which the sessions themselves keep in step with stalls
  Liveness liveness_;
  StrayPackets strays_;

  std::vector<Peer*> linked_;  // peers whose link is open
  std::vector<Peer*> near_;    // those among them on this host
  SelfLink* self_ = nullptr;   // of the one among them that is this process
  std::vector<Peer*> idle_;    // peers that nobody refers to
  std::unordered_map<std::uint64_t, Peer*> by_connection_;
  std::uint64_t recent_connection_ = 0;
  Peer* recent_peer_ = nullptr;
  RouteLookup routes_now_;       // while many are asked for: those of one moment
  std::uint32_t missing_ = 0;    // of the Nic's addresses, as the sessions are to know
  std::uint64_t arrivals_;       // that the Nic had told of then,
  std::vector<Endpoint> hosts_;  // and its addresses, without ports
  AddressNews news_;
  const Peer* told_ = nullptr;           // whose session is told of them at this moment
  std::vector<std::size_t> paths_told_;  // hashes of hosts to which people know the paths
  std::size_t burst_ = 1;                // how much to ask the Nic for
  Time expected_back_ = kNever;          // when the next turn is due to begin
  Excuses excuses_;
  Duration gap_ = 0;  // how late this one began
};

}  // namespace taco::harp
