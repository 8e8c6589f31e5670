// What things cost, as the planner assumes it: one block of parameters, the same on all ranks of a
// group (its hash is part of every operation's signature), and closed-form predictions of each
// algorithm's time from it. Pure functions; any thread.
//
// The model is alpha-beta-gamma by link class: a message costs processor time at both ends and a
// latency between them, bytes cost time on the link and on the processors, and the ranks of a host
// share its processors and its network interfaces.
#pragma once

#include <cstdint>

#include "pg/topology.h"

namespace taco::pg {

struct LinkCost {
  double latency = 0;      // seconds from a send's start to the receiver's step, nothing else busy
  double message_cpu = 0;  // processor seconds a message costs each end
  double bytes_per_second = 0;  // of one rank's processor moving payload, each end
};

struct CostParameters {
  LinkCost shared{4e-6, 0.6e-6, 9e9};    // inside a host
  LinkCost network{20e-6, 3e-6, 4e9};    // between hosts, besides the wire itself
  double copy_bytes_per_second = 9e9;    // one processor, out of cache
  double reduce_bytes_per_second = 8e9;  // one processor, bytes of one operand
  double wire_efficiency = 0.956;        // payload share of a packet, framing included
  // Of a link whose receiver hears several senders at a time, or one after the other; measured with
  // 4 hosts at 1 Gbit/s: 0.83-0.87 and 0.95-0.99.
  double incast_efficiency = 0.85;
  double in_turn_efficiency = 0.96;
  double default_gbits = 10;                // of a host that does not know its interface's speed
  double processors_per_host = 0;           // 0: one for each rank
  std::uint64_t max_chunk_bytes = 1 << 20;  // TACO_CHUNK_BYTES
  std::uint64_t hash() const;
};

// What an algorithm does, in closed form: the share of the busiest rank, and of the busiest host's
// wire. Messages and bytes count both directions; a send to several ranks of the own host counts
// its bytes once, since they read one staged copy.
struct Work {
  double shared_hops = 0, network_hops = 0;          // one after the other on the longest way
  double shared_messages = 0, network_messages = 0;  // not yet cut into chunks
  double shared_bytes = 0, network_bytes = 0;
  double copied_bytes = 0, reduced_bytes = 0;  // by local steps
  double wire_bytes = 0;                       // of one host, in its busier direction
  bool incast = false;                         // a rank hears several other hosts at a time
  bool in_turn = false;                        // or one after the other
  double message_bytes = 0;                    // the longest message, before it is cut in chunks
  double parallel = 1;  // messages of one rank under way at a time: they overlap each other
  // Hops on which ranks other than the busiest pass a chunk on before it can go on.
  double shared_relays = 0, network_relays = 0;
  bool length_unknown = false;  // to some ranks: the chunk must not depend on it
};

// The chunk that balances the cost of a message against the time until a pipeline has filled. The
// same on all ranks, for it depends on nothing that only one rank knows.
std::uint64_t chunk_for(const Work& work, const Topology& topology,
                        const CostParameters& parameters);

// Seconds from the moment all ranks have started to the last one's end.
double predict(const Work& work, const Topology& topology, const CostParameters& parameters);

}  // namespace taco::pg
