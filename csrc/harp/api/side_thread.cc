#include "harp/api/side_thread.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/descriptors.h"
#include "base/per_process.h"
#include "base/thread.h"
#include "harp/secret.h"

namespace harp {
namespace {

// Those that have not ended. Their own threads never ask.
struct Running {
  std::mutex mutex;
  std::vector<SideThread*> threads;  // guarded by mutex
};
constinit taco::PerProcess<Running> running;

bool is_for_later(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

// Rounded up, so that a wait never ends before its time.
int milliseconds_until(taco::Time deadline) {
  if (deadline == taco::kNever) return -1;
  const taco::Duration left = std::max<taco::Duration>(0, deadline - taco::monotonic_now());
  constexpr taco::Duration kLongest = 3600 * taco::kSecond;
  return static_cast<int>((std::min(left, kLongest) + taco::kMillisecond - 1) / taco::kMillisecond);
}

}  // namespace

// One that is not among them has not been started, or is over.
void SideThread::end() {
  {
    std::lock_guard lock(running().mutex);
    if (std::erase(running().threads, this) == 0) return;
  }
  join();
}

void SideThread::end_all() {
  std::lock_guard lock(running().mutex);
  for (SideThread* each : std::exchange(running().threads, {})) each->join();
}

void SideThread::join() {
  const std::uint64_t one = 1;
  (void)!write(end_.get(), &one, sizeof one);
  thread_.join();
}

taco::Status SideThread::start(const char* name, std::function<void()> body) {
  end_ = taco::OwnFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!end_) {
    return {taco::Code::kResource, "eventfd failed: " + taco::system_error_text(errno)};
  }
  auto started = taco::start_thread(name, [body = std::move(body)] {
    body();
    taco::harp::leave_crypto_library(taco::NoForkMeanwhile());
  });
  if (!started.ok()) return started.status();
  thread_ = std::move(started).value();
  [[maybe_unused]] static const int at_exit = std::atexit(end_all);
  std::lock_guard lock(running().mutex);
  running().threads.push_back(this);
  return {};
}

bool SideThread::await(std::span<pollfd> descriptors, taco::Time deadline) {
  std::vector<pollfd> all(descriptors.begin(), descriptors.end());
  all.push_back({end_.get(), POLLIN, 0});
  for (;;) {
    const int seen = poll(all.data(), all.size(), milliseconds_until(deadline));
    if (seen < 0 && errno == EINTR) continue;
    std::copy(all.begin(), all.end() - 1, descriptors.begin());
    return all.back().revents == 0;
  }
}

bool SideThread::await(int fd, short events, taco::Time deadline) {
  pollfd one{fd, events, 0};
  return await(std::span(&one, 1), deadline) && one.revents != 0;
}

bool SideThread::read_all(int fd, void* data, std::size_t bytes, taco::Time deadline) {
  auto* to = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const ssize_t got = recv(fd, to, bytes, MSG_DONTWAIT);
    if (got > 0) {
      to += got;
      bytes -= static_cast<std::size_t>(got);
    } else if (got == 0 || (errno != EINTR && !is_for_later(errno)) ||
               !await(fd, POLLIN, deadline)) {
      return false;
    }
  }
  return true;
}

bool SideThread::write_all(int fd, const void* data, std::size_t bytes, taco::Time deadline) {
  const auto* from = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const ssize_t put = send(fd, from, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (put > 0) {
      from += put;
      bytes -= static_cast<std::size_t>(put);
    } else if ((errno != EINTR && !is_for_later(errno)) || !await(fd, POLLOUT, deadline)) {
      return false;
    }
  }
  return true;
}

}  // namespace harp
