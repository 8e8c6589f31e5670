#include "harp/engine/engine_wait_set.h"

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "base/descriptors.h"

namespace taco::harp {

namespace {

Status system_failure(const char* what) {
  return Status(Code::kResource, std::string(what) + " failed: " + system_error_text(errno));
}

timespec timespec_of(Duration time) {
  timespec spec{};
  spec.tv_sec = time / kSecond;
  spec.tv_nsec = time % kSecond;
  return spec;
}

}  // namespace

Result<std::unique_ptr<WaitSet>> WaitSet::create(int bell) {
  std::unique_ptr<WaitSet> set(new WaitSet(bell));
  set->epoll_ = OwnFd(epoll_create1(EPOLL_CLOEXEC));
  if (!set->epoll_) return system_failure("epoll_create1");
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  event.data.fd = bell;
  if (epoll_ctl(set->epoll_.get(), EPOLL_CTL_ADD, bell, &event) != 0)
    return system_failure("epoll_ctl");
  return set;
}

Status WaitSet::add(int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return system_failure("epoll_ctl");
  return {};
}

Status WaitSet::add_event(int fd) {
  event_fd_ = fd;
  return add(fd);
}

void WaitSet::watch_writable(int fd, bool watch) {
  epoll_event event{};
  event.events = EPOLLIN | (watch ? static_cast<std::uint32_t>(EPOLLOUT) : 0u);
  event.data.fd = fd;
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

// epoll_wait counts milliseconds, which is too coarse.
void WaitSet::block(Time deadline) {
  if (deadline != kNever) {
    pollfd set{epoll_.get(), POLLIN, 0};
    const timespec left = timespec_of(std::max<Duration>(deadline - monotonic_now(), 0));
    ppoll(&set, 1, &left, nullptr);
  }
  epoll_event events[8];
  // Interrupted or not, the caller looks at everything again.
  const int count = epoll_wait(epoll_.get(), events, 8, deadline == kNever ? -1 : 0);
  for (int i = 0; i < count; ++i) event_seen_ |= events[i].data.fd == event_fd_;
}

void WaitSet::kick() {
  if (kicked_.exchange(true)) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(bell_, &one, sizeof one);
}

Status Alarm::start() {
  timer_ = OwnFd(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  return timer_ ? Status() : system_failure("timerfd_create");
}

void Alarm::set(Time when) {
  if (when == set_) return;
  set_ = when;
  itimerspec spec{};
  // Zero would disarm the timer; a time long past fires at once.
  if (when != kNever) spec.it_value = timespec_of(std::max<Time>(when, 1));
  timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &spec, nullptr);
}

}  // namespace taco::harp
