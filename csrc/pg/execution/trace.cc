#include "pg/execution/trace.h"

#include <array>
#include <cstdio>
#include <map>
#include <mutex>
#include <utility>

#include "base/per_process.h"
#include "base/timeline.h"
#include "pg/communicator.h"
#include "pg/execution/signature.h"

namespace taco::pg {
namespace trace {
namespace {

using timeline::quoted;

struct Total {
  std::uint64_t calls = 0, bytes = 0;
  Duration time = 0;
};

struct Recorder {
  std::mutex mutex;
  std::array<Record, kRecords> last;
  std::uint64_t recorded = 0;
  std::map<std::pair<Kind, std::string_view>, Total> totals;
};

constinit PerProcess<Recorder> recorder;

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

void show(const Record& record) {
  timeline::add({std::string("taco:") + name_of(record.kind), "group " + record.group, record.rank,
                 record.submitted, record.ended,
                 "\"sequence\":" + std::to_string(record.sequence) + ",\"bytes\":" +
                     std::to_string(record.bytes) + ",\"algorithm\":" + quoted(record.algorithm) +
                     ",\"state\":" + quoted(state_of(record.code)) +
                     ",\"engines\":" + std::to_string(record.engines) +
                     ",\"signature\":" + quoted(describe_signature(record.signature))});
}

}  // namespace

void add(const Record& record) {
  if (timeline::enabled()) show(record);
  Recorder& r = recorder();
  std::lock_guard lock(r.mutex);
  r.last[r.recorded++ % kRecords] = record;
  if (record.code == Code::kOk) {
    Total& total = r.totals[{record.kind, record.algorithm}];
    ++total.calls;
    total.bytes += record.bytes;
    total.time += record.ended - record.submitted;
  }
}

void add_wait(const Wait& wait) {
  const std::string rank = "rank " + std::to_string(wait.peer);
  timeline::add({"from " + rank, "waits of " + wait.group + " on " + rank, wait.rank, wait.started,
                 wait.ended,
                 "\"sequence\":" + std::to_string(wait.sequence) +
                     ",\"bytes\":" + std::to_string(wait.bytes)});
}

void add_coded(const CodedBlock& block) {
  timeline::add({block.step, "coding of " + block.group, block.rank, block.started, block.ended,
                 "\"sequence\":" + std::to_string(block.sequence) +
                     ",\"bytes\":" + std::to_string(block.bytes) + ",\"coded_bytes\":" +
                     std::to_string(block.coded_bytes) + ",\"codec\":" + quoted(block.codec)});
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
                  "\"submitted_ns\":%lld,\"started_ns\":%lld,\"ended_ns\":%lld,\"engines\":%d",
                  static_cast<unsigned long long>(i), record.rank,
                  static_cast<unsigned long long>(record.sequence),
                  static_cast<unsigned long long>(record.bytes),
                  static_cast<long long>(record.submitted), static_cast<long long>(record.started),
                  static_cast<long long>(record.ended), record.engines);
    if (i != first) out += ',';
    out += std::string("{") + numbers + ",\"group\":" + quoted(record.group) +
           ",\"kind\":" + quoted(name_of(record.kind)) +
           ",\"signature\":" + quoted(describe_signature(record.signature)) +
           ",\"algorithm\":" + quoted(record.algorithm) +
           ",\"state\":" + quoted(state_of(record.code)) + "}";
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
