// The costs that the planner assumes: one block of parameters, the same on all ranks of a group,
// which rank 0 hands out at the rendezvous. The defaults are the table; TACO_TUNE=1 measures some
// of them (tuning.h). Values; any thread.
#pragma once

#include <cstdint>

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
  // The efficiency of a link whose receiver hears several senders at a time, or one after the
  // other; measured with 4 hosts at 1 Gbit/s: 0.83-0.87 and 0.95-0.99.
  double incast_efficiency = 0.85;
  double in_turn_efficiency = 0.96;
  double default_gbits = 10;       // of a host that does not know its interface's speed
  double wire_gbits = 0;           // measured: what a host really gets; 0: as its interface says
  double processors_per_host = 0;  // 0: one for each rank
  std::uint64_t max_chunk_bytes = 1 << 20;  // TACO_CHUNK_BYTES
  std::uint64_t hash() const;
};

}  // namespace taco::pg
