#include "harp/drivers/frames/poll_alarm.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <string>

#include "base/descriptors.h"

namespace taco::harp {

Status PollAlarm::start(bool always) {
  always_ = always;
  last_traffic_ = monotonic_now();
  fd_ = OwnFd(always ? eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK)
                     : timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (fd_) return {};
  return Status(Code::kResource, "cannot make a timer to poll by: " + system_error_text(errno));
}

Duration PollAlarm::period_after(Duration idle) {
  return std::clamp(idle / kShare, kShortest, kLongest);
}

// One that has gone off stays readable until it is set again, which the next look after the sleep
// does. Traffic has it go off sooner than it was to.
void PollAlarm::set(Time now) {
  if (always_) return;
  const Duration period = period_after(now - last_traffic_);
  if (!woken_ && period >= set_to_) return;
  woken_ = false;
  set_to_ = period;
  const itimerspec spec{{0, 0}, {0, period}};
  timerfd_settime(fd_.get(), 0, &spec, nullptr);
}

}  // namespace taco::harp
