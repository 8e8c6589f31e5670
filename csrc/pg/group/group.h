// The Communicator's implementation. start() checks and numbers an operation on the caller's
// thread; everything else of its life happens on the engine, in the functions that end in _st.
//
// A group that has failed stays failed: its ranks no longer agree about what comes next. A failure
// ends the collective at which it arose and all later ones, on every rank; earlier ones go on,
// since no rank refuses its part in them: each rank tells from which sequence number on it takes no
// part, and the least that anybody has told counts for all. Sends and receives have no place in
// that order. They end with the first failure, and then this rank vouches for those collectives
// only that it has started: its program may stop where it hears of it. The group's error is the
// first failure.
//
// Spread over several files: group.cc (making), group_start.cc (the caller's side),
// group_engine.cc (the engine's side), group_failure.cc (what goes wrong), group_queries.cc (what
// members ask each other), group_closing.cc (leaving). What has states and timers of its own is a
// machine beside it: deadlines.h, check_up.h, withdrawals.h, departures.h, farewell.h,
// monitored_barrier.h, roll_call.h.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/assert.h"
#include "base/cache_line.h"
#include "base/list.h"
#include "pg/communicator.h"
#include "pg/execution/executor.h"
#include "pg/execution/operation_state.h"
#include "pg/group/arrivals.h"
#include "pg/group/check_up.h"
#include "pg/group/deadlines.h"
#include "pg/group/departures.h"
#include "pg/group/farewell.h"
#include "pg/group/membership.h"
#include "pg/group/monitored_barrier.h"
#include "pg/group/notice.h"
#include "pg/group/point_to_point.h"
#include "pg/group/roll_call.h"
#include "pg/group/running_collectives.h"
#include "pg/group/withdrawals.h"
#include "pg/planning/planner.h"
#include "pg/window/window.h"

namespace taco::pg {

class alignas(kCacheLine) Group final : public Communicator,
                                        public OperationRunner,
                                        private ExecutionOwner,
                                        private PointToPointOwner,
                                        private Deadlines::Owner,
                                        private CheckUp::Owner,
                                        private Withdrawals::Owner,
                                        private Departures::Owner,
                                        private Farewell::Owner,
                                        private WindowOwner,
                                        public std::enable_shared_from_this<Group> {
 public:
  Group(std::shared_ptr<harp::Stack> stack, GroupOptions options, std::unique_ptr<Planner> planner);
  ~Group() override;
  // Joins the Stack's groups. Once, before anything else.
  Status enlist();

  // Communicator: any thread.
  Result<OperationPtr> start(OperationSpec spec) override;
  // Checks that start() makes first: of the call, which this completes, and of the process.
  Status check(OperationSpec& spec) const;
  Status check_usable(Kind kind) const;
  void abort(const Status& why) override;
  Status close(Duration linger) override;
  Status close_window(const Status& why) override;
  void close_when_idle(Duration linger) override;
  Status error() const override;
  std::uint64_t sequence() const override;
  void set_timeout(Duration timeout) override;
  const GroupOptions& options() const override { return options_; }
  const Topology& topology() const override { return planner_->topology(); }
  Cost predict_average(std::uint64_t bytes,
                       const std::shared_ptr<const Codec>& codec) const override;
  Result<Cost> predict(OperationSpec spec) const override;
  void on_failure(std::function<void()> callback) override;
  Status roll_call(std::uint64_t digest, Duration timeout) override;
  Status monitored_barrier(Duration timeout, bool report_all) override;
  GroupReport report() const override;

  // The groups of other engines that fail as this one does, from the same number on.
  void join(std::vector<std::weak_ptr<Group>> others);
  // Returns when this has heard what those who have joined it have told so far.
  void hear_others();
  // As fail_st() does, telling the members. Any thread.
  void fail_from(const Status& why, std::uint64_t from);

  // From here on: the engine.
  void take_st(OperationState& operation, harp::Transport& transport) override;
  void heard_st(harp::PeerId peer, const harp::MessageKey& key, std::uint64_t signature,
                bool is_send);
  void mismatch_st(harp::PeerId peer, const harp::MessageKey& key, std::uint64_t ours,
                   std::uint64_t theirs);
  void peer_gone_st(harp::PeerId peer, const Status& unreached);
  void notice_st(harp::PeerId peer, const Notice& notice);
  // Ends with `why` the collectives from the sequence number `from` on, and all sends and receives,
  // and refuses new ones. May be called again; does nothing but for a lower `from`. `tell`: the
  // members too.
  void fail_st(const Status& why, std::uint64_t from, bool tell);
  // Fails this group because its parent has failed, or the parent's root has.
  void parent_failed_st(const Group& parent);
  // Another engine's group that this one has joined has failed, and tells all.
  void other_failed_st(const Status& why, std::uint64_t from);
  // The group's text and PeerLoss for a lost member.
  Status loss_of(int rank, const PeerLoss& details, const std::string& reason,
                 const std::string& accuser) const;

  int rank_of(harp::PeerId peer) const;  // -1: no member
  int rank_of_incarnation(std::uint64_t incarnation) const;
  std::uint64_t incarnation_of(int rank) const { return incarnations_[rank]; }
  std::string describe_rank(int rank) const;  // "rank 2 (global rank 5)"
  bool has_failed_st() const { return failed_st_; }
  std::uint32_t newest_sequence_st() const { return newest_sequence_; }
  const Status& failure_st() const { return failure_; }
  void tell_st(int rank, const Notice& notice) { tell_process_st(options_.peers[rank], notice); }
  void tell_process_st(harp::PeerId peer, const Notice& notice) {
    stack_->engine().transport().notify_st(peer, encode(notice));
  }
  // Beyond what has been started here.
  std::uint64_t next_sequence_st() const { return full(newest_sequence_) + 1; }
  void wake_st() override { stack_->engine().wake_waiters(); }
  void tell_members_st(const Notice& notice);
  std::vector<OpenOperation> open_operations_st() const;

 private:
  std::optional<std::vector<OpenOperation>> open_operations() const;
  struct Word;

  static constexpr std::uint64_t kEverything = 0;  // for fail_st: sequence numbers begin at 1

  void assert_owner() const {
    TACO_ASSERT(stack_->engine().in_engine(), "without the engine's token");
  }

  // group_closing.cc
  Status leave(Duration linger);
  Status destroyed() const;
  void stop_window_st(const Status& why);
  void check_drained_st();
  void ask_receivers_st(harp::Transport& transport);
  void tell_of_leaving_st();
  void left_st(int rank, const Notice& notice);
  void nothing_more_from_st(int rank) override;
  void introduce_st(int rank) override { tell_st(rank, query_st(0, 0)); }
  void window_stopped_st() override;

  // group.cc; of a group of one rank, which has no engine
  void fail_alone(const Status& why);
  void set_error(const Status& why);  // with the lock held
  bool descends_from(const Group& other) const;

  // group_start.cc
  std::uint64_t next_number(const OperationState& operation) const;  // with the lock held
  Result<OperationPtr> run_alone(OperationSpec spec);
  Status run_one_sided_alone(const OperationSpec& spec);
  void put_here(const OperationSpec& spec) const;
  Result<bool> next_stage(OperationState& operation) const;  // is there one?
  std::shared_ptr<OperationState> make(OperationSpec spec);

  // group_engine.cc
  void run_st(OperationState& operation);
  void finish_st(OperationState& operation, const Status& status);
  void start_queued_st();
  static Problem problem_of(const OperationSpec& spec, bool in_place);
  Status stray_block_st(const OperationState& operation) const;
  void finished_st(Execution& execution, OperationState& operation) override;
  void drained_st(Execution& execution) override;
  void message_done_st(OperationState& operation, const Status& status) override;
  void one_sided_done_st(OperationState& operation, const Status& status) override {
    finish_st(operation, status);
  }

  // group_failure.cc
  bool has_left_st(int rank, const Status& why) const;
  void break_open_st(int rank, std::uint64_t after);
  void broken_st(Execution& execution, int rank, const Status& why) override;
  void message_broken_st(OperationState& operation, int rank, const Status& why) override;
  void one_sided_broken_st(OperationState& operation, int rank, const Status& why) override {
    message_broken_st(operation, rank, why);
  }
  void incoming_broken_st(int rank, const Status& why) override;
  void broken_request_st(OperationState* operation, std::uint64_t sequence, int rank,
                         const Status& why);
  void fail_at_st(OperationState* operation, std::uint64_t sequence, const Status& why);
  bool is_ended_by(const OperationState& operation, std::uint64_t from) const;
  bool has_failed_at_st(std::uint64_t sequence) const {
    return failed_st_ && sequence >= failed_from_;
  }
  Notice failure_notice() const;
  void end_from_st(std::uint64_t from, const Status& why);
  void fail_operation_st(OperationState& operation, const Status& why);
  void failed_elsewhere_st(int rank, const Notice& notice);
  std::uint64_t full(std::uint32_t sequence) const;  // of the wire's 32 bits
  bool has_ended_st(std::uint32_t sequence) const;
  bool has_drained_st(std::uint32_t sequence) const;  // and is every send of it acknowledged
  void conflict_st(const Arrivals::Conflict& conflict);
  void tell_others_st(const Status& why, std::uint64_t from);
  void unexplained_st(const Status& why, std::uint64_t from) override;

  // group_queries.cc
  Notice query_st(std::uint64_t number, std::uint64_t sequence) const;
  void watch_st(const OperationState& operation);
  OperationState* overdue_st(Time now, Time* next) override;
  void ask_members_st(const OperationState& operation, std::uint64_t number) override;
  void timed_out_st(const TimeoutReport& report) override;
  std::optional<CheckUp::Waiting> longest_waiting_st() const override;
  OperationState* collective_st(
      std::uint64_t sequence) const;  // open; null: none of that sequence number
  void ask_awaited_st(std::uint64_t sequence) override;
  void ask_receiver_st(int rank) override;
  void answer_query_st(int rank, const Notice& query);
  void report_st(int rank, const Notice& answer);
  void check_answer_st(int rank, const Notice& answer);
  void closing_answer_st(int rank, const Notice& answer);

  const GroupOptions options_;
  const std::shared_ptr<harp::Stack> stack_;
  std::shared_ptr<Membership> membership_;
  std::unique_ptr<Planner> planner_;
  std::vector<std::uint64_t> incarnations_;                 // by rank
  std::vector<std::pair<harp::PeerId, int>> rank_by_peer_;  // sorted
  const int process_;                                       // a forked child is another one

  mutable std::mutex mutex_;  // guards what follows, for start() and the engine
  std::uint64_t sequence_ = 0;
  Status error_;
  std::uint64_t refused_from_ = kEverything;  // collectives, once error_ is set
  bool closed_ = false;
  bool left_membership_ = false;
  std::vector<std::function<void()>> on_failure_;
  std::vector<std::weak_ptr<Group>> others_;  // of other engines (join)
  std::uint64_t own_signals_ = 0;             // of a group of one rank, which has no engine
  std::atomic<Duration> timeout_;
  std::atomic<bool> reported_{false};  // an operation has carried the group's failure

  // The engine's.
  GroupView view_;
  Arrivals arrivals_;
  PointToPoint point_to_point_;
  std::optional<Window> window_;  // of few groups
  harp::Event window_stopped_;
  MonitoredBarrier barrier_;
  RollCall roll_call_;
  List<OperationState, &OperationState::links> operations_;  // open ones, in order of arrival
  RunningCollectives running_;
  List<Execution, &Execution::links> executions_;  // all that have not drained yet, newest first
  std::uint32_t newest_sequence_ = 0;
  std::uint64_t newest_signature_ = 0;
  bool failed_st_ = false;
  std::uint64_t failed_from_ = kEverything;
  Status failure_;
  Deadlines deadlines_;
  CheckUp check_up_;
  Withdrawals withdrawals_;
  Departures departures_;
  Farewell farewell_;
};

}  // namespace taco::pg
