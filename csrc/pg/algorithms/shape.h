// The few numbers of a topology that the algorithms' closed-form costs are written in.
#pragma once

#include <algorithm>
#include <bit>

#include "pg/planning/cost_model.h"
#include "pg/planning/topology.h"

namespace taco::pg {

struct Shape {
  double world, hosts;
  double local;  // ranks of the fullest host
  double near;   // other ranks of that host
  double far;    // ranks of all other hosts
  bool across;   // is there another host?

  explicit Shape(const Topology& topology)
      : world(topology.world()),
        hosts(topology.hosts()),
        local(topology.max_ranks_per_host()),
        near(local - 1),
        far(world - local),
        across(topology.hosts() > 1) {}

  // One exchange with every other rank, `near_bytes` and `far_bytes` in all, both directions.
  void exchange(Workload& work, double near_bytes, double far_bytes) const {
    (across ? work.network_hops : work.shared_hops) += 1;
    work.shared_messages += 2 * near;
    work.network_messages += 2 * far;
    work.shared_bytes += near_bytes;
    work.network_bytes += far_bytes;
    work.incast = work.incast || far > 1;
    work.parallel = std::max(1.0, near + far);
  }
};

// Rounds that double what is known of `count` ranks.
inline double rounds_for(double count) { return std::bit_width(static_cast<unsigned>(count) - 1u); }

// The depth of a binomial tree of `count` nodes.
inline double depth_for(double count) { return std::bit_width(static_cast<unsigned>(count)) - 1; }

// How a recursive-doubling exchange, folded where the world is no power of two, meets the borders
// between hosts. Counts of messages are those that leave the busiest host.
struct Crossing {
  double rounds = 0;    // in which some pair is on two hosts
  double messages = 0;  // over all rounds, whole messages
  double halved = 0;    // the same in units of the message, when it is halved round by round
  double folds = 0;     // pairs of the fold
};
Crossing crossing_of(const Topology& topology);

// `laps` times round a ring in the order of the hosts, a block a round.
Workload ring_work(const Topology& topology, double laps, double block);

// One message along a binomial tree, from the root or to it.
Workload binomial_work(const Topology& topology, double bytes, bool reduces);

// One message through relays, from the root or to it; `by_host` where it crosses to a host once.
Workload relay_work(const Topology& topology, double bytes, bool by_host);

}  // namespace taco::pg
