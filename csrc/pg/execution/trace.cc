#include "pg/execution/trace.h"

#include <array>
#include <atomic>
#include <cstdio>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "pg/communicator.h"
#include "pg/execution/signature.h"

namespace taco::pg {
namespace trace {
namespace {

struct Total {
  std::uint64_t calls = 0, bytes = 0;
  Duration time = 0;
};

struct Recorder {
  std::mutex mutex;
  std::array<Record, kRecords> last;
  std::uint64_t recorded = 0;
  std::deque<Record> operations;  // of the timeline
  std::deque<Wait> waits;
  std::map<std::pair<Kind, std::string_view>, Total> totals;
  std::atomic<bool> timeline{false};
};

Recorder& recorder() {
  static Recorder* const instance = new Recorder;  // engines may outlive static destruction
  return *instance;
}

std::string quoted(const std::string& text) {
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

const char* state_of(Code code) {
  switch (code) {
    case Code::kOk:
      return "completed";
    case Code::kTimeout:
      return "timed out";
    case Code::kPeerLost:
      return "peer lost";
    case Code::kMismatch:
      return "mismatch";
    case Code::kAborted:
      return "aborted";
    default:
      return "failed";
  }
}

std::string event(const std::string& name, int process, const std::string& track, Time start,
                  Time end, const std::string& arguments) {
  char times[96];
  std::snprintf(times, sizeof times, "\"ts\":%.3f,\"dur\":%.3f", start / 1e3, (end - start) / 1e3);
  return "{\"ph\":\"X\",\"name\":" + quoted(name) + ",\"pid\":" + std::to_string(process) +
         ",\"tid\":" + quoted(track) + "," + times + ",\"args\":{" + arguments + "}}";
}

}  // namespace

bool timeline_enabled() { return recorder().timeline.load(std::memory_order_relaxed); }

void enable_timeline(bool enabled) {
  Recorder& r = recorder();
  std::lock_guard lock(r.mutex);
  if (enabled) {
    r.operations.clear();
    r.waits.clear();
  }
  r.timeline.store(enabled, std::memory_order_relaxed);
}

void add(const Record& record) {
  Recorder& r = recorder();
  std::lock_guard lock(r.mutex);
  r.last[r.recorded++ % kRecords] = record;
  if (record.code == Code::kOk) {
    Total& total = r.totals[{record.kind, record.algorithm}];
    ++total.calls;
    total.bytes += record.bytes;
    total.time += record.ended - record.submitted;
  }
  if (!r.timeline) return;
  if (r.operations.size() == kTimelineEvents) r.operations.pop_front();
  r.operations.push_back(record);
}

void add_wait(const Wait& wait) {
  Recorder& r = recorder();
  std::lock_guard lock(r.mutex);
  if (r.waits.size() == kTimelineEvents) r.waits.pop_front();
  r.waits.push_back(wait);
}

std::string flight_recorder_json() {
  Recorder& r = recorder();
  std::lock_guard lock(r.mutex);
  std::string out = "{\"version\":\"taco-1\",\"entries\":[";
  const std::uint64_t first = r.recorded > kRecords ? r.recorded - kRecords : 0;
  for (std::uint64_t i = first; i < r.recorded; ++i) {
    const Record& record = r.last[i % kRecords];
    char numbers[320];
    std::snprintf(numbers, sizeof numbers,
                  "\"record_id\":%llu,\"rank\":%d,\"sequence\":%llu,\"bytes\":%llu,"
                  "\"submitted_ns\":%lld,\"started_ns\":%lld,\"ended_ns\":%lld",
                  static_cast<unsigned long long>(i), record.rank,
                  static_cast<unsigned long long>(record.sequence),
                  static_cast<unsigned long long>(record.bytes),
                  static_cast<long long>(record.submitted), static_cast<long long>(record.started),
                  static_cast<long long>(record.ended));
    if (i != first) out += ',';
    out += std::string("{") + numbers + ",\"group\":" + quoted(record.group) +
           ",\"kind\":" + quoted(name_of(record.kind)) +
           ",\"signature\":" + quoted(describe_signature(record.signature)) +
           ",\"algorithm\":" + quoted(record.algorithm) +
           ",\"state\":" + quoted(state_of(record.code)) + "}";
  }
  return out + "]}";
}

std::string chrome_trace_json() {
  Recorder& r = recorder();
  std::lock_guard lock(r.mutex);
  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  bool first = true;
  auto append = [&](const std::string& text) {
    if (!std::exchange(first, false)) out += ",\n";
    out += text;
  };
  std::map<std::uint64_t, std::string> names;
  for (const Record& record : r.operations) {
    names[record.group_id] = record.group;
    append(event(std::string("taco:") + name_of(record.kind), record.rank, "group " + record.group,
                 record.submitted, record.ended,
                 "\"sequence\":" + std::to_string(record.sequence) + ",\"bytes\":" +
                     std::to_string(record.bytes) + ",\"algorithm\":" + quoted(record.algorithm) +
                     ",\"state\":" + quoted(state_of(record.code)) +
                     ",\"signature\":" + quoted(describe_signature(record.signature))));
  }
  for (const Wait& wait : r.waits) {
    const std::string group = names.count(wait.group_id) ? names[wait.group_id] : "?";
    append(event("from rank " + std::to_string(wait.peer), wait.rank,
                 "waits of " + group + " on rank " + std::to_string(wait.peer), wait.started,
                 wait.ended,
                 "\"sequence\":" + std::to_string(wait.sequence) +
                     ",\"bytes\":" + std::to_string(wait.bytes)));
  }
  return out + "]}";
}

}  // namespace trace

std::vector<AlgorithmStats> algorithm_stats() {
  trace::Recorder& r = trace::recorder();
  std::lock_guard lock(r.mutex);
  std::vector<AlgorithmStats> rows;
  for (const auto& [key, total] : r.totals) {
    rows.push_back({std::string(name_of(key.first)) + "/" + std::string(key.second), total.calls,
                    total.bytes, static_cast<double>(total.time) / kSecond});
  }
  return rows;
}

}  // namespace taco::pg
