// A program of several ranks that submit named requests in orders of their own, with changing
// shapes, requests that do not fit each other, ranks that join, and a cache of any size, all of it
// from one seed. What the ranks are told to run is compared with what they submitted.
#pragma once

#include <cstdint>
#include <string>

namespace taco::pg::controller {

struct SimulatedProgram {
  std::uint64_t seed = 1;
  int world = 0;  // 0: by the seed
  int epochs = 2, steps = 6;
};

// "" or the first thing that was wrong.
std::string failure_of(const SimulatedProgram& program);

}  // namespace taco::pg::controller
