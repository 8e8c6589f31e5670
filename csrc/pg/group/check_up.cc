#include "pg/group/check_up.h"

#include <algorithm>

namespace taco::pg {

void CheckUp::look_st(Time now) {
  const std::optional<Waiting> waiting = owner_.longest_waiting_st();
  if (!waiting) {
    interval_ = 0;
    return;
  }
  interval_ = waiting->sequence == checked_ ? std::min(2 * interval_, kLongest) : kFirst;
  timer_.again_st(now + interval_);
  if (now - waiting->since < kFirst) return;
  checked_ = waiting->sequence;
  owner_.ask_awaited_st(waiting->sequence);
}

}  // namespace taco::pg
