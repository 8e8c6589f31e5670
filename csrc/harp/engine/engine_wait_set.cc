#include "harp/engine/engine_wait_set.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "base/fork.h"

namespace taco::harp {

namespace {
Status system_failure(const char* what) {
  return Status(Code::kResource, std::string(what) + " failed: " + strerror(errno));
}
}  // namespace

Result<std::unique_ptr<WaitSet>> WaitSet::create() {
  std::unique_ptr<WaitSet> set(new WaitSet);
  set->epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  if (set->epoll_fd_ < 0) return system_failure("epoll_create1");
  close_on_fork(set->epoll_fd_);
  set->timer_fd_ = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  if (set->timer_fd_ < 0) return system_failure("timerfd_create");
  close_on_fork(set->timer_fd_);
  set->kick_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (set->kick_fd_ < 0) return system_failure("eventfd");
  close_on_fork(set->kick_fd_);
  TACO_RETURN_IF_ERROR(set->add(set->timer_fd_));
  TACO_RETURN_IF_ERROR(set->add(set->kick_fd_));
  return set;
}

WaitSet::~WaitSet() {
  for (int fd : descriptors()) {
    if (fd >= 0) close_now(fd);
  }
}

Status WaitSet::add(int fd, bool edge) {
  epoll_event event{};
  event.events = EPOLLIN | (edge ? static_cast<std::uint32_t>(EPOLLET) : 0u);
  event.data.fd = fd;
  if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) != 0) return system_failure("epoll_ctl");
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
  epoll_ctl(epoll_fd_, EPOLL_CTL_MOD, fd, &event);
}

void WaitSet::arm(Time deadline) {
  if (deadline == armed_) return;
  armed_ = deadline;
  itimerspec spec{};
  if (deadline != kNever) {
    // Zero would disarm the timer; a time long past fires at once.
    const Time at = std::max<Time>(deadline, 1);
    spec.it_value.tv_sec = at / kSecond;
    spec.it_value.tv_nsec = at % kSecond;
  }
  timerfd_settime(timer_fd_, TFD_TIMER_ABSTIME, &spec, nullptr);
}

void WaitSet::block() {
  epoll_event events[8];
  // Interrupted or not, the caller looks at everything again.
  const int count = epoll_wait(epoll_fd_, events, 8, -1);
  for (int i = 0; i < count; ++i) event_seen_ |= events[i].data.fd == event_fd_;
}

void WaitSet::kick() {
  if (kicked_.exchange(true)) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(kick_fd_, &one, sizeof one);
}

void WaitSet::consume_kicks() {
  // Flag first: a kick that comes in between writes again, which costs a spurious wake at most.
  if (!kicked_.load(std::memory_order_relaxed) || !kicked_.exchange(false)) return;
  std::uint64_t count;
  [[maybe_unused]] const ssize_t got = read(kick_fd_, &count, sizeof count);
}

}  // namespace taco::harp
