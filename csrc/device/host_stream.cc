#include "device/host_stream.h"

#include <string.h>

#include <algorithm>
#include <utility>

#include "base/thread.h"

namespace taco::device {

void HostEvent::Progress::reach(std::uint64_t record) {
  std::lock_guard lock(mutex);
  done = std::max(done, record);
  reached.notify_all();
}

void HostEvent::Progress::wait_for(std::uint64_t record) {
  std::unique_lock lock(mutex);
  reached.wait(lock, [&] { return done >= record; });
}

bool HostEvent::done() const {
  std::lock_guard lock(progress_->mutex);
  return progress_->done >= progress_->recorded;
}

void HostEvent::synchronize() const {
  // A reference of its own: a child that is forked meanwhile must not destroy what is waited on.
  const std::shared_ptr<Progress> progress = progress_;
  std::unique_lock lock(progress->mutex);
  const std::uint64_t record = progress->recorded;
  progress->reached.wait(lock, [&] { return progress->done >= record; });
}

Result<std::unique_ptr<Stream>> HostStream::start(const char* name,
                                                  std::function<void()> before_each) {
  std::unique_ptr<HostStream> stream(new HostStream(std::move(before_each)));
  auto thread = start_thread(name, [state = stream->state_.get()] { loop(*state); });
  if (!thread.ok()) return thread.status();
  stream->state_->thread = std::move(thread).value();
  return std::unique_ptr<Stream>(std::move(stream));
}

HostStream::~HostStream() {
  if (!state_->thread.joinable()) return;
  if (getpid() != process_) {
    // The thread is the parent's; to destroy what it sleeps on would be to wait for it.
    static_cast<void>(state_.release());
    return;
  }
  {
    std::lock_guard lock(state_->mutex);
    state_->ending = true;
  }
  state_->changed.notify_all();
  state_->thread.join();
}

void HostStream::enqueue(std::function<void()> operation) {
  std::lock_guard lock(state_->mutex);
  state_->queue.push_back(std::move(operation));
  state_->changed.notify_all();
}

void HostStream::loop(State& state) {
  std::unique_lock lock(state.mutex);
  while (true) {
    state.changed.wait(lock, [&] { return state.ending || !state.queue.empty(); });
    if (state.queue.empty()) return;
    std::function<void()> operation = std::move(state.queue.front());
    state.queue.pop_front();
    lock.unlock();
    operation();
    operation = nullptr;  // what it holds is released outside the lock too
    lock.lock();
  }
}

void HostStream::copy(void* dst, const void* src, std::size_t bytes) {
  run([=] { memcpy(dst, src, bytes); });
}

void HostStream::run(std::function<void()> function) {
  enqueue([this, function = std::move(function)] {
    if (before_each_) before_each_();
    function();
  });
}

void HostStream::record(Event& event) {
  const auto progress = static_cast<HostEvent&>(event).progress_;
  std::uint64_t record;
  {
    std::lock_guard lock(progress->mutex);
    record = ++progress->recorded;
  }
  enqueue([progress, record] { progress->reach(record); });
}

void HostStream::wait(const Event& event) {
  const auto progress = static_cast<const HostEvent&>(event).progress_;
  std::uint64_t record;
  {
    std::lock_guard lock(progress->mutex);
    record = progress->recorded;
  }
  enqueue([progress, record] { progress->wait_for(record); });
}

void HostStream::synchronize() {
  HostEvent event;
  record(event);
  event.synchronize();
}

}  // namespace taco::device
