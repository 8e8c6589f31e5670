// Plays the schedules of a whole world in virtual time under the cost parameters: how long would
// this take, on this topology? The closed forms of the cost model are checked against it, and it
// answers what-if questions about worlds that nobody has at hand. Pure function; any thread.
//
// The model: a rank's processor does one thing at a time (messages, copies, arithmetic), in the
// order in which they become possible; a host's interface sends one message at a time, its
// receivers taking turns, and receives one at a time; a message has arrived when all of it has.
// Processors of a crowded host are shared evenly.
#pragma once

#include <vector>

#include "pg/planning/cost_model.h"
#include "pg/planning/schedule.h"
#include "pg/planning/topology.h"

namespace taco::pg {

struct Simulation {
  double seconds = 0;                   // until the last rank has finished
  std::vector<double> rank_seconds;     // until each rank's caller could go on
  std::vector<double> host_sent_bytes;  // over each host's interface
  std::vector<double> host_received_bytes;
  bool finished = false;  // false: the schedules do not fit together
};

// `schedules` by rank.
Simulation simulate(const std::vector<Schedule>& schedules, const Topology& topology,
                    const CostParameters& parameters);

// One of several collectives that run side by side.
struct Started {
  std::vector<Schedule> schedules;  // by rank
  double seconds = 0;               // when all ranks start it
};
Simulation simulate(const std::vector<Started>& collectives, const Topology& topology,
                    const CostParameters& parameters);

}  // namespace taco::pg
