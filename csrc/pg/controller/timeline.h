// A timeline of requests in the format that Horovod's users know: an array of Chrome's trace events
// in a file, which chrome://tracing and Perfetto show. Every tensor is a "process", named after its
// request and, where that is not the global one, its process set; in it stand NEGOTIATE_ALLREDUCE,
// ALLREDUCE, and within that the parts of its work. CYCLE_START marks rounds, where that is asked
// for. Times are microseconds since the start.
//
// A thread of its own writes what it is told within kTimelineDelay; the file is a whole JSON text
// after each of its writes. Without events it sleeps.
//
// Shared by whoever started it and the controller, on whose thread Listener's functions are called;
// stop() on any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/condition.h"
#include "base/own_fd.h"
#include "pg/controller/listener.h"

namespace taco::pg::controller {

inline constexpr Duration kTimelineDelay = 20 * kMillisecond;

class Timeline final : public Listener {
 public:
  // kInvalidArgument: the file cannot be written; the text names it and says why. A file that is
  // there is replaced.
  static Result<std::shared_ptr<Timeline>> start(const std::string& path, bool mark_cycles);
  ~Timeline() override;

  // Writes what is there and ends the thread; what is told later is not heard. The first failure to
  // write, if any: from there on the file lacks events. Idempotent.
  Status stop();

  void negotiating(int set, const Request& request, Time now) override;
  void agreed(int set, const Response& response, Time now) override;
  void activity(int set, const Response& response, const char* what, Time now) override;
  void ended(int set, const Response& response, Time now) override;
  void given_up(int set, const Request& request, Time now) override;
  void cycle(Time now) override;

 private:
  enum class Phase : std::uint8_t { kNone, kNegotiating, kRunning, kInActivity };
  struct Tensor {
    std::uint32_t process = 0;
    Phase phase = Phase::kNone;
  };
  struct Event {
    char phase = 'E';  // 'B', 'E'; 'i': a mark; 'M': a new process, `text` its name
    std::uint32_t process = 0;
    const char* name = nullptr;  // null: none
    Time when = 0;
    std::string text;  // 'E': arguments, or nothing
  };

  Timeline(OwnFd file, std::string path, bool mark_cycles);
  void add(Event event);
  Tensor& tensor(int set, const Request& request);
  void forget_idle();
  void begin(Tensor& tensor, const char* name, Phase phase, Time now);
  void end(Tensor& tensor, Time now, std::string arguments = {});
  void write_until_stopped();
  void write(const std::vector<Event>& events, std::uint64_t lost);
  void append(std::string& text, const Event& event) const;

  const std::string path_;
  const bool mark_cycles_;
  const Time started_;
  const std::uint32_t generation_;

  // The controller's thread's. A set's tensors by their names; those of its joins, which may have
  // the name of another request, are apart.
  using Room = std::pair<int, bool>;  // the set, and whether it is of its joins
  std::map<Room, std::unordered_map<std::string, Tensor>> tensors_;
  std::size_t tensors_known_ = 0;
  std::uint32_t processes_ = 0;

  // The writer's, and start()'s before it.
  OwnFd file_;
  std::int64_t end_ = 0;  // of the events in the file: the bracket that closes them follows

  std::mutex mutex_;
  Condition told_;  // of events, or to stop
  std::vector<Event> events_;
  std::uint64_t lost_ = 0;  // events for which there was no room
  bool stops_ = false;
  Status failure_;

  std::mutex joining_;  // one stop() at a time
  std::thread writer_;
};

}  // namespace taco::pg::controller
