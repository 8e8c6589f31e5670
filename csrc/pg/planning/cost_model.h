// Closed-form predictions of each algorithm's time from the block of parameters that all ranks of a
// group share (cost_parameters.h). Pure functions; any thread.
//
// The model is alpha-beta-gamma by link class: a message costs processor time at both ends and a
// latency between them, bytes cost time on the link and on the processors, and the ranks of a host
// share its processors and its network interfaces.
#pragma once

#include <cstdint>

#include "pg/cost.h"
#include "pg/planning/cost_parameters.h"
#include "pg/planning/topology.h"

namespace taco::pg {

// The workload of an algorithm, in closed form: the share of the busiest rank, and of the busiest
// host's wire. Messages and bytes count both directions; a send to several ranks of the own host
// counts its bytes once, since they read one staged copy.
struct Workload {
  double shared_hops = 0, network_hops = 0;          // one after the other on the longest way
  double shared_messages = 0, network_messages = 0;  // not yet cut into chunks
  double shared_bytes = 0, network_bytes = 0;
  double copied_bytes = 0, reduced_bytes = 0;  // by local steps
  double coding_seconds = 0;                   // of a processor, at the codec's speed
  double coded_messages = 0;                   // between groups of ranks; not cut into chunks
  double wire_bytes = 0;                       // of one host, in its busier direction
  bool incast = false;                         // a rank hears several other hosts at a time
  bool in_turn = false;                        // or one after the other
  double message_bytes = 0;                    // the longest message, before it is cut in chunks
  double parallel = 1;  // messages of one rank under way at a time: they overlap each other
  // Hops on which ranks other than the busiest pass a chunk on before it can go on.
  double shared_relays = 0, network_relays = 0;
  bool length_unknown = false;  // to some ranks: the chunk must not depend on it
  // How many parts follow each other through all stages, where these are no chunks; 0: chunks.
  double turns = 0;
  // How many chains of hops of one host are under way side by side: while one waits for a message,
  // the others keep the wire busy. 0: its hops keep all of it waiting.
  double chains = 0;
};

// The chunk that balances the cost of a message against the time until a pipeline has filled. The
// same on all ranks, for it depends on nothing that only one rank knows.
std::uint64_t chunk_for(const Workload& work, const Topology& topology,
                        const CostParameters& parameters);

Cost cost_of(const Workload& work, const Topology& topology, const CostParameters& parameters);
// The seconds of cost_of() alone.
double predict(const Workload& work, const Topology& topology, const CostParameters& parameters);

}  // namespace taco::pg
