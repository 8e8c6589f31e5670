// The engine: one progress loop over submitted tasks, shared-memory links, packets, timers and
// sessions that have something to transmit. engine_loop.cc is that loop; engine_core.cc is how
// others reach it. Who runs the loop, its own thread or a caller that waits, is duty.h's part.
//
// Made and owned by the Stack. Functions that end in _st may be called only with the ownership
// token.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "harp/address.h"
#include "harp/engine/duty.h"
#include "harp/engine/engine_liveness.h"
#include "harp/engine/engine_wait_set.h"
#include "harp/engine/peer.h"
#include "harp/engine/placement.h"
#include "harp/engine/stack.h"
#include "harp/engine/submit_queue.h"
#include "harp/engine/timer_heap.h"
#include "harp/matching/matcher.h"
#include "harp/nic.h"
#include "harp/session/session_host.h"
#include "harp/session/stray_packets.h"
#include "harp/shm/endpoint.h"

namespace taco::harp {

struct EngineOptions {
  Identity own;
  Duration peer_timeout = 10 * kSecond;
  std::int64_t spin_us = -1;                  // -1: decided by the number of cores and local peers
  const CongestionOps* congestion = nullptr;  // null: the default
};

class EngineCore final : public Engine,
                         public Transport,
                         private Driven,
                         private SessionHost,
                         private StrayPackets::Peers {
 public:
  // `shm` may be null. The table outlives the engine.
  static Result<std::unique_ptr<EngineCore>> create(const EngineOptions& options,
                                                    std::unique_ptr<Nic> nic,
                                                    std::unique_ptr<ShmEndpoint> shm,
                                                    PeerTable& peers);
  ~EngineCore() override;

  // Engine.
  void submit(Task& task, bool caller_will_wait) override;
  bool wait(const Event& event, Time deadline) override;
  void wake_waiters() override { duty_.wake_waiters(); }
  Transport& transport() override { return *this; }
  bool in_engine() const override { return duty_.held_by_me(); }

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
  Time now_st() const override { return now(); }
  void arm_st(Timer& timer, Time deadline) override;
  void disarm_st(Timer& timer) override;
  bool is_local_st(PeerId peer) const override;

  // Any thread.
  MatcherHost& matcher_host() { return matcher_host_; }
  void set_observer(Observer* observer);
  StackStats stats();
  void peers_changed();  // how long to poll depends on how many share this host

  // Runs `work` on the engine and waits for it.
  template <class Work>
  void run_and_wait(const Work& work);

  // Goodbye to everybody, at most `linger`; then the loop ends and everything open fails.
  void close(Duration linger);

  // Somebody gave back the last reference to a peer. Any thread.
  void peers_released();

  void open_link_st(Peer& peer);
  std::string shm_pages() const { return shm_ ? shm_->pages() : ""; }
  std::string why_no_pull() const { return shm_ ? shm_->why_no_pull() : ""; }

 private:
  EngineCore(const EngineOptions& options, std::unique_ptr<Nic> nic,
             std::unique_ptr<ShmEndpoint> shm, PeerTable& peers);
  Status start();

  // Driven.
  bool turn_st() override;
  Time next_deadline_st() const override;
  bool has_open_requests_st() const override;
  bool prepare_sleep_st() override;
  void cancel_sleep_st() override;
  bool prepare_doze_st(Time until) override;
  bool queue_empty() const override { return queue_.empty(); }
  void arm_st(Who who, Time deadline) override { set_of(who).arm(deadline); }
  void arm_no_later_st(Who who, Time deadline) override { set_of(who).arm_no_later(deadline); }
  void block(Who who) override;
  void kick(Who who) override { set_of(who).kick(); }

  // SessionHost.
  void arm(Timer& timer, Time deadline) override { session_timers_.arm(timer, deadline); }
  void disarm(Timer& timer) override { session_timers_.disarm(timer); }
  std::uint64_t random() override;

  // StrayPackets::Peers.
  std::optional<PairKey> key_with(std::uint64_t incarnation) override;
  Session& session_with(std::uint64_t incarnation) override;
  Session* begin_anew(std::uint64_t incarnation) override;
  void on_reset(Session& session) override;

  // engine_peers.cc
  struct Released final : Task {
    EngineCore* engine = nullptr;
    std::atomic<bool> queued{false};
    void run_st(Transport& transport) override;
  };
  static void on_idle_timer(Timer& timer, Time now);
  void look_at_idle_soon();
  Time examine_idle(Peer& peer, Time now);
  void end_peer(Peer& peer);

  void assert_owner() const;
  Peer* peer_of(PeerId id) const;
  Link& link_of(Peer& peer);
  void open_session(Peer& peer);
  void forget_session(const Peer& peer);
  WaitSet& set_of(Who who) { return who == Who::kCaller ? *caller_set_ : *thread_set_; }

  Duration note_time();
  void extend_deadlines(Duration gap);
  void keep_apart();
  bool run_submitted();
  bool receive_burst(bool* full);
  void dispatch(const RxPacket& packets);
  Session* session_of(std::uint64_t connection);
  void watch_for_room();
  bool any_link_busy() const;

  const EngineOptions options_;
  const std::unique_ptr<Nic> nic_owner_;
  std::unique_ptr<ShmEndpoint> shm_;
  PeerTable& peers_;
  BytePool buffers_;
  MatcherHost matcher_host_;
  std::unique_ptr<WaitSet> thread_set_, caller_set_;
  SubmitQueue queue_;
  Timer idle_timer_;
  TimerHeap timers_;          // of the Transport's users
  TimerHeap session_timers_;  // which the sessions themselves keep in step with stalls
  Duty duty_;
  Liveness liveness_;
  StrayPackets strays_;

  std::vector<Peer*> linked_;  // peers whose link is open
  SelfLink* self_ = nullptr;   // of the one among them that is this process
  std::vector<Peer*> idle_;    // peers that nobody refers to
  Released released_;
  std::unordered_map<std::uint64_t, Peer*> by_connection_;
  std::uint64_t recent_connection_ = 0;
  Peer* recent_peer_ = nullptr;
  Time expected_back_ = 0;  // when the next turn was due to begin
  bool asleep_ = false;     // peers on this host have been told so
  bool watching_room_ = false;
  Placement placement_;    // of callers that drive
  Event* left_ = nullptr;  // set when nobody is busy any more

  std::atomic<bool> closed_{false};
  StackStats last_stats_;  // after close
  std::thread thread_;
  const std::uint32_t generation_;
};

template <class Work>
void EngineCore::run_and_wait(const Work& work) {
  if (in_engine()) {
    work();
    return;
  }
  struct Once final : Task {
    const Work* work;
    EngineCore* engine;
    Event done;
    void run_st(Transport&) override {
      (*work)();
      // Once the event is set, the waiter may return and end this task's life.
      EngineCore* const owner = engine;
      done.set();
      owner->wake_waiters();
    }
  } once;
  once.work = &work;
  once.engine = this;
  submit(once, true);
  wait(once.done, kNever);
}

}  // namespace taco::harp
