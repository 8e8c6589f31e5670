// Ends operations whose time is up, one after the other, and not before the members have been asked
// what they run: the error names who is missing. Engine only; one per group.
//
//   state    event                                 then
//   idle     an operation is watched               armed for its deadline
//   armed    one with an earlier deadline is       armed for that
//   armed    the time has come, none is overdue    armed for the next deadline, or idle
//   armed    the time has come for one             asking
//   asking   all have answered, or kPatience over  it is ended; armed for this moment, for others
//                                                  may be overdue as well
//   asking   it ends by itself                     armed for this moment
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "pg/execution/operation_state.h"
#include "pg/group/machine_timer.h"
#include "pg/group/notice.h"

namespace taco::pg {

// An operation whose time is up, and what the members have answered.
struct TimeoutReport {
  std::shared_ptr<OperationState> operation;
  std::uint64_t number = 0;     // of the question
  int missing = 0;              // answers
  std::vector<bool> answered;   // by rank
  std::vector<Notice> answers;  // by rank
};

class Deadlines {
 public:
  class Owner {
   public:
    virtual ~Owner() = default;
    // The oldest open operation that is overdue; or null, and in `next` the earliest deadline.
    virtual OperationState* overdue_st(Time now, Time* next) = 0;
    // Every answer will carry `number`.
    virtual void ask_members_st(const OperationState& operation, std::uint64_t number) = 0;
    virtual void timed_out_st(const TimeoutReport& report) = 0;
  };
  static constexpr Duration kPatience = 200 * kMillisecond;

  Deadlines(Owner& owner, int world) : owner_(owner), world_(world) {}

  // One timer a group, armed for the earliest deadline; operations that end in time do not touch
  // it.
  void watch_st(harp::Transport& transport, Time deadline) {
    if (deadline >= next_ || report_ != nullptr) return;
    next_ = deadline;
    timer_.arm_st(transport, deadline);
  }
  void answered_st(int rank, const Notice& answer);
  void ended_st(const OperationState& operation) {
    if (report_ != nullptr && report_->operation.get() == &operation) resume_st();
  }
  void stop_st() {
    timer_.disarm_st();
    patience_.disarm_st();
  }

 private:
  void on_deadline_st(Time now);
  void on_patience_over_st(Time now);
  std::unique_ptr<TimeoutReport> resume_st();

  Owner& owner_;
  const int world_;
  Time next_ = kNever;  // what timer_ is armed for
  std::uint64_t questions_ = 0;
  std::unique_ptr<TimeoutReport> report_;  // while asking
  MachineTimer<Deadlines> timer_{*this, &Deadlines::on_deadline_st};
  MachineTimer<Deadlines> patience_{*this, &Deadlines::on_patience_over_st};
};

}  // namespace taco::pg
