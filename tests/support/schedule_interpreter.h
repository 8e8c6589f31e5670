// Runs the schedules of a whole world without a network, as unkindly as their promises allow, and
// says which promise was broken. Every choice comes from a seed.
//
// Unkind means: ranks start at random times; any ready step may be next; a message is delivered in
// fragments, in any order and at any later time; a send's acknowledgement comes arbitrarily late,
// and until then its source is read again (a retransmission) and must not have changed; the
// destination of an open receive holds garbage. A window limits open sends and receives to the
// lowest-numbered unfinished ones.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pg/codec.h"
#include "pg/planning/schedule.h"
#include "support/collective_reference.h"

namespace taco::pg::testing {

enum class Mood : std::uint8_t {
  kRandom,       // any event may be next
  kLateAcks,     // acknowledgements only when nothing else can happen
  kOneSlow,      // one rank acts only when no other can
  kNewestFirst,  // what became possible last happens first
  kOldestFirst,
};
inline constexpr int kMoods = 5;

struct InterpreterOptions {
  std::uint64_t seed = 1;
  Mood mood = Mood::kRandom;
  std::uint32_t window = 0;  // 0: no limit
  Arithmetic arithmetic = Arithmetic::kAdd;
};

struct InterpreterResult {
  std::string failure;                      // empty: every promise was kept
  std::vector<std::vector<Bytes>> outputs;  // by rank and piece
  std::vector<Feedback> feedback;           // by rank, as the codec has left it
  std::uint64_t messages = 0;
  std::uint64_t retransmissions_checked = 0;
};

// `problems` and `schedules` by rank, and `feedback` where the codec has a memory. Checks
// everything but the final contents of the outputs and of the feedback.
InterpreterResult interpret(const std::vector<Problem>& problems,
                            const std::vector<Schedule>& schedules,
                            const InterpreterOptions& options, std::vector<Feedback> feedback = {});

}  // namespace taco::pg::testing
