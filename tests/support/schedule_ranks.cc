#include "support/schedule_ranks.h"

#include <gtest/gtest.h>

#include "pg/execution/executor.h"
#include "pg/execution/signature.h"
#include "support/rank_threads.h"

namespace taco::testing {

namespace {

class ScheduleRank final : public pg::OperationRunner, public pg::ExecutionOwner {
 public:
  ScheduleRank(std::shared_ptr<harp::Stack> stack, int rank, int world) : stack_(std::move(stack)) {
    for (int peer = 0; peer < world; ++peer) peers_.push_back(LoopbackNetwork::peer_of(peer));
    view_.id = 0x5c4ed;
    view_.rank = rank;
    view_.world = world;
    view_.peers = &peers_;
    view_.gone.resize(world);
    view_.arrived.assign(world, 0);
    view_.sent.assign(world, 0);
  }

  RankResult run(const pg::Schedule& schedule, const pg::OperationSpec& spec,
                 std::uint64_t sequence) {
    schedule_ = std::make_shared<const pg::Schedule>(schedule);
    auto operation = std::make_shared<pg::OperationState>(spec, *this, stack_);
    operation->signature = pg::signature_of(spec);
    operation->set_sequence(sequence);
    operation->self = operation;
    stack_->engine().submit(*operation, false);
    RankResult result;
    result.status = operation->wait(20 * kSecond);
    EXPECT_TRUE(stack_->engine().wait(drained_, monotonic_now() + 20 * kSecond));
    result.bytes_received = operation->bytes_done;
    return result;
  }

  void take_st(pg::OperationState& operation, harp::Transport&) override {
    pool_.take().start_st(stack_->engine(), *this, view_, operation, schedule_,
                          pool_.scratch().take(schedule_->scratch_bytes));
  }
  void finished_st(pg::Execution&, pg::OperationState& operation) override {
    operation.complete(failure_, monotonic_now());
    stack_->engine().wake_waiters();
  }
  void drained_st(pg::Execution& execution) override {
    harp::Engine& engine = stack_->engine();  // whoever waits may end this object
    pool_.give(execution);
    drained_.set();
    engine.wake_waiters();
  }
  void broken_st(pg::Execution& execution, int rank, const Status& why) override {
    failure_ = why.with_prefix("rank " + std::to_string(rank) + ": ");
    execution.fail_st(failure_);
  }

 private:
  const std::shared_ptr<harp::Stack> stack_;
  std::vector<harp::PeerId> peers_;
  pg::GroupView view_;
  pg::ExecutionPool pool_;
  std::shared_ptr<const pg::Schedule> schedule_;
  Status failure_;
  harp::Event drained_;
};

}  // namespace

std::vector<RankResult> ScheduleRanks::run(const std::vector<pg::Schedule>& schedules,
                                           const std::vector<pg::OperationSpec>& specs) {
  ++sequence_;
  std::vector<RankResult> results(schedules.size());
  on_threads(options_.processes, [&](int rank) {
    ScheduleRank one(network_.stack(rank), rank, options_.processes);
    results[rank] = one.run(schedules[rank], specs[rank], sequence_);
  });
  return results;
}

}  // namespace taco::testing
