// harp-perf for benchmarks: two ranks or more that find each other through files, wherever a script
// has put them, and measure in step. Two ranks: the half round trip of small messages and the
// one-way throughput of large ones, beside the processor time they cost. More: the time of a round
// in which everybody sends to everybody.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace taco::harp::perf {

struct RankSettings {
  std::string transport = "auto";
  std::string files;  // each rank writes one, called so and by its rank
  std::string master;
  std::int64_t rank = -1;  // -1: all of them, by forking, on this host
  std::int64_t ranks = 2;
  std::size_t bytes = std::size_t{8} << 20;
  std::size_t small = 8;
  std::int64_t rounds = 20'000;
  double seconds = 2;
  std::int64_t window = 4;
  // Only the first message of a session; rank 1 asks for it so many microseconds after rank 0 has
  // sent it. -1: not that.
  std::int64_t first_us = -1;
  double start = 0;  // of throughput, s on the monotonic clock
};

// The exit status. Prints what it finds.
int measure_ranks(const RankSettings& settings);

}  // namespace taco::harp::perf
