// The common part of the benchmarks of kernels: rounds that all threads begin together, memory, and
// the STREAM triad, the physical limit that rows are held to.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <functional>
#include <memory>

namespace taco::bench {

// Seconds of the fastest of `repeat` rounds in which every thread does its part once.
double fastest(int threads, int repeat, const std::function<void(int)>& part);

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<unsigned char, Free>;
// Work on one piece of what the given thread goes over, both counted from 0.
using Piece = std::function<void(std::size_t, int)>;
struct Seconds {
  double row, limit;
};
// How long a row and its limit take over all pieces of the slowest thread. They go over the pieces
// by turns, `repeat` times each, and of each piece the fastest turn counts: others' work on the
// machine falls on neither.
Seconds by_turns(int threads, int repeat, std::size_t pieces, const Piece& row, const Piece& limit);

// A multiple of 4096 bytes, all touched.
Memory allocate(std::size_t bytes, unsigned char value);

// a = b + 3 c
void triad(float* a, const float* b, const float* c, std::size_t count);

}  // namespace taco::bench
