#include "pg/execution/whole_call.h"

#include <algorithm>
#include <utility>

namespace taco::pg {

WholeCall::WholeCall(int parts, std::uint64_t bytes, Ended ended_st,
                     std::unique_ptr<std::byte[]> inputs)
    : parts_(parts),
      bytes_(bytes),
      ended_st_(std::move(ended_st)),
      inputs_(std::move(inputs)),
      left_(parts) {}

void WholeCall::part_ended(const trace::Record& part, const Status& status) {
  std::lock_guard lock(mutex_);
  if (!record_) {
    record_ = part;
    record_->engines = parts_;
    record_->bytes = bytes_;
  }
  record_->submitted = std::min(record_->submitted, part.submitted);
  record_->started = std::min(record_->started, part.started);
  record_->ended = std::max(record_->ended, part.ended);
  count(status);
}

void WholeCall::part_refused(const Status& why) {
  std::lock_guard lock(mutex_);
  count(why);
}

void WholeCall::count(const Status& status) {
  if (status_.ok()) status_ = status;
  if (--left_ > 0 || !record_) return;
  record_->code = status_.code();
  trace::add(*record_);
  if (ended_st_) ended_st_(status_, record_->ended - record_->submitted);
}

}  // namespace taco::pg
