#include "pg/controller/timeline.h"

#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "base/log.h"
#include "base/names.h"
#include "base/thread.h"
#include "base/timeline.h"
#include "pg/controller/agreement.h"

namespace taco::pg::controller {
namespace {

constexpr std::size_t kMaxQueuedEvents = 1 << 17;  // while the disk is slow
constexpr std::size_t kMaxTensorsKnown = 1 << 16;
constexpr char kClosing[] = "\n]\n";

// "dtype": "float32", "shape": "[2, 3]"; of a grouped call, of all its tensors.
std::string arguments_of(const Request& request) {
  if (request.shapes.empty()) return {};
  std::string shapes;
  for (const Shape& shape : request.shapes) append_name(shapes, shape_text(shape));
  return std::string("\"dtype\": \"") + kernels::name_of(request.dtype) + "\", \"shape\": \"" +
         shapes + "\"";
}

std::int64_t microseconds_since_epoch() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * 1'000'000 + now.tv_nsec / 1'000;
}

// Two events for each process: its name, or what else there is to say of it, and its place.
std::string process_text(std::uint32_t process, const std::string& arguments) {
  const std::string number = std::to_string(process);
  return "{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": " + number + ", \"args\": {" +
         arguments + "}},\n{\"name\": \"process_sort_index\", \"ph\": \"M\", \"pid\": " + number +
         ", \"args\": {\"sort_index\": " + number + "}}";
}

// errno's text, or nothing once all is written.
std::string write_at(int fd, std::int64_t offset, const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t wrote = pwrite(fd, text.data() + done, text.size() - done,
                                 offset + static_cast<std::int64_t>(done));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return wrote < 0 ? strerror(errno) : "nothing was written";
    done += static_cast<std::size_t>(wrote);
  }
  return {};
}

Status cannot_write(const std::string& path, const std::string& why) {
  return invalid("the timeline " + printable(path) + " cannot be written: " + why +
                 "; name a file in a folder that is there and may be written to");
}

}  // namespace

Result<std::shared_ptr<Timeline>> Timeline::start(const std::string& path, bool mark_cycles) {
  OwnFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file) return cannot_write(path, strerror(errno));
  // A forked child has a copy, and no writer: to end it would be to wait for that.
  const auto end = [](const Timeline* each) {
    if (each->generation_ == fork_generation()) delete each;
  };
  std::shared_ptr<Timeline> timeline(new Timeline(std::move(file), path, mark_cycles), end);
  const std::string head = "[\n" + process_text(0, "\"start_time_since_epoch_in_micros\": " +
                                                       std::to_string(microseconds_since_epoch()));
  if (std::string why = write_at(timeline->file_.get(), 0, head + kClosing); !why.empty()) {
    return cannot_write(path, why);
  }
  timeline->end_ = static_cast<std::int64_t>(head.size());
  Result<std::thread> writer =
      start_thread("taco-timeline", [self = timeline.get()] { self->write_until_stopped(); });
  if (!writer.ok()) return writer.status();
  timeline->writer_ = std::move(*writer);
  return timeline;
}

Timeline::Timeline(OwnFd file, std::string path, bool mark_cycles)
    : path_(std::move(path)),
      mark_cycles_(mark_cycles),
      started_(monotonic_now()),
      generation_(fork_generation()),
      file_(std::move(file)) {}

Timeline::~Timeline() {
  if (const Status status = stop(); !status.ok()) {
    TACO_LOG_WARNING("controller", "%s", status.message().c_str());
  }
}

Status Timeline::stop() {
  if (generation_ != fork_generation()) return {};
  std::lock_guard stopping(joining_);
  {
    std::lock_guard lock(mutex_);
    stops_ = true;
  }
  told_.notify_one();
  if (writer_.joinable()) writer_.join();
  std::lock_guard lock(mutex_);
  return failure_;
}

void Timeline::add(Event event) {
  std::lock_guard lock(mutex_);
  if (stops_ || !failure_.ok()) return;
  if (events_.size() >= kMaxQueuedEvents) {
    ++lost_;
    return;
  }
  events_.push_back(std::move(event));
  if (events_.size() == 1) told_.notify_one();
}

// Names that have nothing going on are forgotten when there are too many, as in a program that
// gives each operation a name of its own.
void Timeline::forget_idle() {
  for (auto& [room, tensors] : tensors_) {
    tensors_known_ -=
        std::erase_if(tensors, [](const auto& each) { return each.second.phase == Phase::kNone; });
  }
  std::erase_if(tensors_, [](const auto& each) { return each.second.empty(); });
}

// A name that is not known gets a process.
Timeline::Tensor& Timeline::tensor(int set, const Request& request) {
  const Room room{set, request.kind == Kind::kJoin};
  if (const auto known = tensors_.find(room); known != tensors_.end()) {
    const auto tensor = known->second.find(request.name);
    if (tensor != known->second.end()) return tensor->second;
  }
  if (tensors_known_ >= kMaxTensorsKnown) forget_idle();
  Tensor& made = tensors_[room][request.name];
  ++tensors_known_;
  made.process = ++processes_;
  const std::string of = set == 0 ? "" : " (process set " + std::to_string(set) + ")";
  add({.phase = 'M', .process = made.process, .text = printable(request.name) + of});
  return made;
}

void Timeline::begin(Tensor& tensor, const char* name, Phase phase, Time now) {
  tensor.phase = phase;
  add({.phase = 'B', .process = tensor.process, .name = name, .when = now});
}

void Timeline::end(Tensor& tensor, Time now, std::string arguments) {
  add({.phase = 'E', .process = tensor.process, .when = now, .text = std::move(arguments)});
}

void Timeline::negotiating(int set, const Request& request, Time now) {
  Tensor& each = tensor(set, request);
  if (each.phase != Phase::kNone) return;
  begin(each, names_of(request.kind).negotiating, Phase::kNegotiating, now);
}

void Timeline::agreed(int set, const Response& response, Time now) {
  for (const Request& request : response.requests) {
    Tensor& each = tensor(set, request);
    if (each.phase == Phase::kNegotiating) end(each, now);
    const bool runs = response.error.ok();
    begin(each, runs ? names_of(request.kind).running : "ERROR", Phase::kRunning, now);
  }
}

void Timeline::activity(int set, const Response& response, const char* what, Time now) {
  for (const Request& request : response.requests) {
    Tensor& each = tensor(set, request);
    if (each.phase == Phase::kInActivity) end(each, now);
    if (each.phase == Phase::kRunning || each.phase == Phase::kInActivity) {
      begin(each, what, Phase::kInActivity, now);
    }
  }
}

void Timeline::ended(int set, const Response& response, Time now) {
  for (const Request& request : response.requests) given_up(set, request, now);
}

// Ends whatever is going on.
void Timeline::given_up(int set, const Request& request, Time now) {
  Tensor& each = tensor(set, request);
  if (each.phase == Phase::kInActivity) end(each, now);
  if (each.phase != Phase::kNone) end(each, now, arguments_of(request));
  each.phase = Phase::kNone;
}

void Timeline::cycle(Time now) {
  if (mark_cycles_) add({.phase = 'i', .name = "CYCLE_START", .when = now});
}

void Timeline::write_until_stopped() {
  std::vector<Event> events;
  for (bool goes_on = true; goes_on;) {
    std::uint64_t lost = 0;
    {
      std::unique_lock lock(mutex_);
      told_.wait(lock, [&] { return stops_ || !events_.empty(); });
      // Events come in bursts; one write takes them all.
      told_.wait_for(lock, std::chrono::nanoseconds(kTimelineDelay), [&] { return stops_; });
      goes_on = !stops_;
      events.swap(events_);
      lost = std::exchange(lost_, 0);
      if (!failure_.ok()) events.clear();
    }
    if (!events.empty()) write(events, lost);
    events.clear();
  }
}

void Timeline::write(const std::vector<Event>& events, std::uint64_t lost) {
  std::string text;
  for (const Event& event : events) append(text, event);
  const std::string note = "LOST " + count_text(lost, "event");
  if (lost > 0) {
    append(text, {.phase = 'i', .name = note.c_str(), .when = events.back().when});
  }
  const auto bytes = static_cast<std::int64_t>(text.size());
  text += kClosing;
  const std::string why = write_at(file_.get(), end_, text);
  if (why.empty()) {
    end_ += bytes;
    return;
  }
  // A part may have been written: the file ends where it was whole.
  if (ftruncate(file_.get(), end_) == 0) write_at(file_.get(), end_, kClosing);
  std::lock_guard lock(mutex_);
  failure_ = Status(Code::kResource, "the timeline " + printable(path_) + " lacks events: " + why);
}

void Timeline::append(std::string& text, const Event& event) const {
  text += ",\n";
  if (event.phase == 'M') {
    text += process_text(event.process, "\"name\": " + timeline::quoted(event.text));
    return;
  }
  text += std::string("{\"ph\": \"") + event.phase + "\"";
  if (event.name != nullptr) text += ", \"name\": " + timeline::quoted(event.name);
  text += ", \"ts\": " + std::to_string((event.when - started_) / kMicrosecond);
  text += event.phase == 'i' ? ", \"s\": \"g\"" : ", \"pid\": " + std::to_string(event.process);
  if (!event.text.empty()) text += ", \"args\": {" + event.text + "}";
  text += "}";
}

}  // namespace taco::pg::controller
