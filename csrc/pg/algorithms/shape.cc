#include "pg/algorithms/shape.h"

namespace taco::pg {

Work ring_work(const Topology& topology, double laps, double block) {
  const Shape shape(topology);
  const double rounds = laps * (shape.world - 1);
  Work work;
  work.message_bytes = block;
  if (!shape.across) {
    work.shared_hops = rounds;
    work.shared_messages = 2 * rounds;
    work.shared_bytes = 2 * rounds * block;
    return work;
  }
  // All ranks go round in step, so each round takes as long as the slowest link.
  work.network_hops = rounds;
  const double far_ends = shape.local > 1 ? 1 : 2;  // of the two links of a rank
  work.network_messages = far_ends * rounds;
  work.network_bytes = far_ends * rounds * block;
  work.shared_messages = (2 - far_ends) * rounds;
  work.shared_bytes = (2 - far_ends) * rounds * block;
  work.wire_bytes = rounds * block;
  return work;
}

Work binomial_work(const Topology& topology, double bytes, bool reduces) {
  const Shape shape(topology);
  const double near_rounds = rounds_for(shape.local);
  const double far_rounds = rounds_for(shape.hosts);
  Work work;
  work.shared_hops = near_rounds;
  work.network_hops = far_rounds;
  work.shared_messages = near_rounds;
  work.network_messages = far_rounds;
  // Readers of a broadcast share a staged copy; operands of a reduction are one a child.
  work.shared_bytes = near_rounds == 0 ? 0 : (reduces ? near_rounds + 1 : 2) * bytes;
  work.network_bytes = far_rounds * bytes;
  work.wire_bytes = far_rounds * bytes;
  work.message_bytes = bytes;
  return work;
}

Work relay_work(const Topology& topology, double bytes, bool by_host) {
  const Shape shape(topology);
  Work work;
  work.message_bytes = bytes;
  if (!shape.across) {
    work.shared_hops = 2;
    work.shared_messages = shape.world;
    work.shared_bytes = 3 * bytes;
  } else if (by_host) {
    work.shared_hops = 1;
    work.network_hops = 2;
    work.shared_messages = shape.near;
    work.shared_bytes = 2 * bytes;
    work.network_messages = shape.hosts;
    work.network_bytes = 2 * bytes;
    work.wire_bytes = bytes;
  } else {
    work.network_hops = 2;
    work.network_messages = shape.world;
    work.network_bytes = 2 * bytes;
    work.wire_bytes = std::max(1.0, shape.local * shape.far / shape.world) * bytes;
  }
  work.incast = shape.hosts > 2;
  return work;
}

}  // namespace taco::pg
