// Records what operations have done: always, the last of them (flight recorder) and calls, bytes
// and time per algorithm; while the process's timeline is on (base/timeline.h), every operation
// there, with its waits for peers and the blocks it codes.
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
  int rank = 0;
  std::uint64_t sequence = 0;
  std::uint64_t signature = 0;
  std::uint64_t bytes = 0;
  Time submitted = 0, started = 0, ended = 0;
  const char* algorithm = "";
  Kind kind = Kind::kBarrier;
  Code code = Code::kOk;
  int engines = 1;  // that ran a part of it each
};
inline constexpr std::size_t kRecords = 512;  // the flight recorder's length

void add(const Record& record);

// A receive that was open from `started` to `ended`: the time spent waiting on `peer`.
struct Wait {
  const std::string& group;
  std::uint64_t sequence = 0;
  std::uint64_t bytes = 0;
  Time started = 0, ended = 0;
  int rank = 0;
  int peer = 0;
};
void add_wait(const Wait& wait);  // while the timeline is on

// A block that was encoded or decoded, other work in between included.
struct CodedBlock {
  const std::string& group;
  std::uint64_t sequence = 0;
  const char* step = "";  // "encode", "decode", "decode_reduce"
  const char* codec = "";
  std::uint64_t bytes = 0, coded_bytes = 0;
  Time started = 0, ended = 0;
  int rank = 0;
};
void add_coded(const CodedBlock& block);  // while the timeline is on

// The last operations, oldest first: {"version", "entries": [{"group", "sequence", "kind", ...}]}.
std::string flight_recorder_json();

}  // namespace taco::pg::trace
