#include "harp/drivers/xdp/room_alarm.h"

#include <errno.h>
#include <string.h>
#include <sys/timerfd.h>

#include <string>

namespace taco::harp {

Status RoomAlarm::start() {
  timer_ = OwnFd(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (timer_) return {};
  return Status(Code::kResource,
                std::string("cannot make a timer for rings that are full: ") + strerror(errno));
}

void RoomAlarm::set() {
  settle(kPeriod);
  is_set_ = true;
}

void RoomAlarm::clear() {
  if (!is_set_) return;
  settle(0);
  is_set_ = false;
}

void RoomAlarm::settle(Duration time) {
  const itimerspec spec{{0, 0}, {0, time}};
  timerfd_settime(timer_.get(), 0, &spec, nullptr);
}

}  // namespace taco::harp
