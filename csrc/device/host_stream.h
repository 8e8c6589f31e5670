// Streams of a host that plays the device: each is a thread with a queue, and a copy is a real one.
// So what is missing between two streams goes wrong here as it would on a device; to make it go
// wrong every time, a test gives `before_each`, which delays operations as it likes.
//
// In a forked child, which has no such threads, a stream's end waits for nothing; nothing else may
// be called there.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "base/condition.h"
#include "device/device.h"

namespace taco::device {

class HostEvent : public Event {
 public:
  HostEvent() : progress_(std::make_shared<Progress>()) {}

  bool done() const override;
  void synchronize() const override;

 private:
  friend class HostStream;

  // Shared with the queues, which may hold it longer than the event lives.
  struct Progress {
    std::mutex mutex;
    Condition reached;
    std::uint64_t recorded = 0;
    std::uint64_t done = 0;  // all records up to this one

    void reach(std::uint64_t record);
    void wait_for(std::uint64_t record);
  };

  std::shared_ptr<Progress> progress_;
};

class HostStream : public Stream {
 public:
  // `before_each` (may be empty) runs on the stream's thread before each copy and function.
  static Result<std::unique_ptr<Stream>> start(const char* name, std::function<void()> before_each);
  ~HostStream() override;

  void copy(void* dst, const void* src, std::size_t bytes) override;
  void run(std::function<void()> function) override;
  void record(Event& event) override;
  void wait(const Event& event) override;
  void synchronize() override;

 private:
  struct State {
    std::mutex mutex;
    Condition changed;
    std::deque<std::function<void()>> queue;
    bool ending = false;
    std::thread thread;
  };

  explicit HostStream(std::function<void()> before_each) : before_each_(std::move(before_each)) {}

  void enqueue(std::function<void()> operation);
  static void loop(State& state);

  const pid_t process_ = getpid();
  const std::function<void()> before_each_;
  std::unique_ptr<State> state_ = std::make_unique<State>();
};

}  // namespace taco::device
