#include "base/timeline.h"

#include <atomic>
#include <cstdio>
#include <deque>
#include <mutex>
#include <utility>

#include "base/per_process.h"

namespace taco::timeline {
namespace {

struct Recorder {
  std::atomic<bool> enabled{false};
  std::mutex mutex;
  std::deque<Event> events;  // guarded by mutex
};

constinit PerProcess<Recorder> recorder;

std::string json_of(const Event& event) {
  char times[96];
  std::snprintf(times, sizeof times, "\"ts\":%.3f,\"dur\":%.3f", event.started / 1e3,
                (event.ended - event.started) / 1e3);
  return "{\"ph\":\"X\",\"name\":" + timeline::quoted(event.name) +
         ",\"pid\":" + std::to_string(event.process) + ",\"tid\":" + timeline::quoted(event.track) +
         "," + times + ",\"args\":{" + event.arguments + "}}";
}

}  // namespace

bool enabled() { return recorder().enabled.load(std::memory_order_relaxed); }

void enable(bool enabled) {
  Recorder& r = recorder();
  std::lock_guard lock(r.mutex);
  if (enabled) r.events.clear();
  r.enabled.store(enabled, std::memory_order_relaxed);
}

void add(Event event) {
  if (!enabled()) return;
  Recorder& r = recorder();
  std::lock_guard lock(r.mutex);
  if (r.events.size() == kMaxEvents) r.events.pop_front();
  r.events.push_back(std::move(event));
}

std::string chrome_json() {
  Recorder& r = recorder();
  std::lock_guard lock(r.mutex);
  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  bool first = true;
  for (const Event& event : r.events) {
    if (!std::exchange(first, false)) out += ",\n";
    out += json_of(event);
  }
  return out + "]}";
}

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", c);
      out += escape;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

}  // namespace taco::timeline
