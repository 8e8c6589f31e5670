// The engine of a process: an EngineLoop with what it takes to live among threads. Tasks come from
// any of them, its own thread or a caller that waits drives the loop (duty.h says which), the clock
// is the system's, and shared memory is polled with every turn.
//
// Made and owned by the Stack. Functions that end in _st may be called only with the ownership
// token.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "base/cache_line.h"
#include "base/own_fd.h"
#include "harp/engine/duty.h"
#include "harp/engine/engine_loop.h"
#include "harp/engine/engine_wait_set.h"
#include "harp/engine/own_work.h"
#include "harp/engine/peer.h"
#include "harp/engine/placement.h"
#include "harp/engine/room_watch.h"
#include "harp/engine/stack.h"
#include "harp/engine/stat_publisher.h"
#include "harp/engine/submit_queue.h"
#include "harp/engine/token.h"
#include "harp/nic.h"
#include "harp/shm/endpoint.h"

namespace taco::harp {

struct EngineOptions : LoopOptions {
  std::int64_t spin_us = -1;  // -1: decided by the number of cores and local peers
  int number = 0;             // of the process's; its thread is called by it
  int core = -1;              // of its thread, which drives alone there; -1: none of its own
  statistics::About about;    // of its page of statistics
};

class alignas(kCacheLine) EngineCore final : public Engine, private Driven {
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
  bool poll() override;
  Transport& transport() override { return loop_; }
  bool in_engine() const override { return token_.held_by_me(); }

  // Any thread, but for what is behind it.
  EngineLoop& loop() { return loop_; }

  // Any thread.
  void set_observer(Service service, Observer* observer);
  StackStats stats();
  // The Nic's, as far as its sessions know of them.
  struct Addresses {
    std::vector<NicAddress> addresses;
    std::uint32_t missing = 0, late = 0;  // bit i: the i-th
  };
  Addresses addresses();
  // Somebody gave back the last reference to a peer.
  void peers_released();

  // Goodbye to everybody, at most `linger`; then the loop ends and everything open fails.
  void close(Duration linger);

 private:
  EngineCore(const EngineOptions& options, std::unique_ptr<Nic> nic,
             std::unique_ptr<ShmEndpoint> shm, PeerTable& peers);
  Status start();

  // Driven.
  bool turn_st(Who who) override;
  Time now_st() const override { return loop_.now(); }
  Time next_deadline_st() const override {
    const Time loop = loop_.next_deadline_st();
    return shm_ == nullptr ? loop : std::min(loop, shm_->next_deadline());
  }
  bool has_open_requests_st() const override { return loop_.has_open_requests_st(); }
  bool prepare_sleep_st() override;
  void cancel_sleep_st() override;
  bool prepare_doze_st(Time until) override;
  void leave_until_st(Time until) override { loop_.expect_turn_st(until); }
  bool queue_empty() const override { return queue_.empty(); }
  void arm_st(Time deadline) override { alarm_.set(deadline); }
  void arm_no_later_st(Time deadline) override { alarm_.set_no_later(deadline); }
  void block(Who who, Time deadline) override;
  void kick(Who who) override { set_of(who).kick(); }

  struct Released final : Task {
    EngineCore* engine = nullptr;
    std::atomic<bool> queued{false};
    void run_st(Transport& transport) override;
  };

  WaitSet& set_of(Who who) { return who == Who::kCaller ? *caller_set_ : *thread_set_; }
  void choose_spin();
  void keep_apart();
  bool run_submitted();
  void watch_for_room();
  Status watch_descriptors();
  void show_statistics();

  const EngineOptions options_;
  const std::unique_ptr<Nic> nic_;
  const std::unique_ptr<ShmEndpoint> shm_;
  PeerTable& peers_;
  OwnFd bell_;   // where there is no shared memory, which has one
  Alarm alarm_;  // of the engine's thread
  std::unique_ptr<WaitSet> thread_set_, caller_set_;
  SubmitQueue queue_;
  Token token_;
  Duty duty_;
  EngineLoop loop_;

  OwnWork own_work_;
  Released released_;
  std::size_t local_peers_ = 0;         // for whom choose_spin() has chosen
  bool asleep_ = false;                 // peers on this host have been told so
  std::atomic<bool> was_woken_{false};  // somebody has slept since the Nic was last told so
  RoomWatch room_watch_;
  std::size_t watched_ = 0;                    // of the Nic's descriptors
  Placement placement_;                        // of callers that drive
  Event* left_ = nullptr;                      // set when nobody is busy any more
  std::unique_ptr<StatPublisher> statistics_;  // null: the page could not be made

  std::atomic<bool> closed_{false};
  std::thread thread_;
  const std::uint32_t generation_;
};

}  // namespace taco::harp
