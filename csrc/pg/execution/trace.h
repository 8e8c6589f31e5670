// Records what happened: always, the last operations (flight recorder) and calls, bytes and time
// per algorithm; while switched on, a timeline of every operation with its waits for peers.
//
// One of each for the whole process. Engines write and any thread reads, under a mutex that is
// rarely contended.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pg/operation.h"

namespace taco::pg::trace {

// One finished operation.
struct Record {
  std::string group;
  std::uint64_t group_id = 0;
  int rank = 0;
  std::uint64_t sequence = 0;
  std::uint64_t signature = 0;
  std::uint64_t bytes = 0;
  Time submitted = 0, started = 0, ended = 0;
  const char* algorithm = "";
  Kind kind = Kind::kBarrier;
  Code code = Code::kOk;
};

// A receive that was open from `started` to `ended`: the time spent waiting on `peer`.
struct Wait {
  std::uint64_t group_id = 0;
  std::uint64_t sequence = 0;
  std::uint64_t bytes = 0;
  Time started = 0, ended = 0;
  int rank = 0;
  int peer = 0;
};

inline constexpr std::size_t kRecords = 512;             // the flight recorder's length
inline constexpr std::size_t kTimelineEvents = 1 << 18;  // the oldest go first

bool timeline_enabled();
void enable_timeline(bool enabled);  // switching on forgets what was there

void add(const Record& record);
void add_wait(const Wait& wait);  // kept while the timeline is on

// The last operations, oldest first: {"version", "entries": [{"group", "sequence", "kind", ...}]}.
std::string flight_recorder_json();
// Chrome's and Perfetto's trace format: one process a rank, one track a group, one for the waits.
std::string chrome_trace_json();

}  // namespace taco::pg::trace
