#include "harp/drivers/xdp/wake_alarm.h"

#include <errno.h>
#include <sys/timerfd.h>

#include <string>

#include "base/descriptors.h"

namespace taco::harp {

Status WakeAlarm::start() {
  timer_ = OwnFd(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (timer_) return {};
  return Status(Code::kResource,
                "cannot make a timer for rings and queues: " + system_error_text(errno));
}

void WakeAlarm::set(Duration time) {
  set_timer(time);
  is_set_ = true;
}

void WakeAlarm::clear() {
  if (!is_set_) return;
  set_timer(0);
  is_set_ = false;
}

void WakeAlarm::set_timer(Duration time) {
  const itimerspec spec{{0, 0}, {time / kSecond, time % kSecond}};
  timerfd_settime(timer_.get(), 0, &spec, nullptr);
}

}  // namespace taco::harp
