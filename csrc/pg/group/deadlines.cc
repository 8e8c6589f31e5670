#include "pg/group/deadlines.h"

#include <utility>

namespace taco::pg {

void Deadlines::on_deadline_st(Time now) {
  next_ = kNever;
  OperationState* const overdue = owner_.overdue_st(now, &next_);
  if (overdue == nullptr) {
    if (next_ != kNever) timer_.again_st(next_);
    return;
  }
  report_ = std::make_unique<TimeoutReport>();
  report_->operation = overdue->self;
  report_->number = ++questions_;
  report_->missing = world_ - 1;
  report_->answered.assign(world_, false);
  report_->answers.resize(world_);
  patience_.arm_st(timer_.transport(), now + kPatience);
  owner_.ask_members_st(*overdue, report_->number);
}

void Deadlines::answered_st(int rank, const Notice& answer) {
  if (report_ == nullptr || answer.number != report_->number || report_->answered[rank]) return;
  report_->answered[rank] = true;
  report_->answers[rank] = answer;
  if (--report_->missing == 0) owner_.timed_out_st(*resume_st());
}

void Deadlines::on_patience_over_st(Time) {
  if (report_ != nullptr) owner_.timed_out_st(*resume_st());
}

std::unique_ptr<TimeoutReport> Deadlines::resume_st() {
  patience_.disarm_st();
  next_ = timer_.transport().now_st();
  timer_.again_st(next_);
  return std::move(report_);
}

}  // namespace taco::pg
