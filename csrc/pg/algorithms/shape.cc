#include "pg/algorithms/shape.h"

#include "pg/algorithms/fold.h"
#include "pg/algorithms/relay_groups.h"

namespace taco::pg {

Workload ring_work(const Topology& topology, double laps, double block) {
  const Shape shape(topology);
  const double rounds = laps * (shape.world - 1);
  Workload work;
  work.message_bytes = block;
  if (!shape.across) {
    work.shared_hops = rounds;
    work.shared_messages = 2 * rounds;
    work.shared_bytes = 2 * rounds * block;
    return work;
  }
  // A block meets each border between hosts once a lap.
  const double borders = std::min(rounds, laps * shape.hosts);
  work.network_hops = borders;
  work.shared_hops = rounds - borders;
  const double far_ends = shape.local > 1 ? 1 : 2;  // of the two links of a rank
  work.network_messages = far_ends * rounds;
  work.network_bytes = far_ends * rounds * block;
  work.shared_messages = (2 - far_ends) * rounds;
  work.shared_bytes = (2 - far_ends) * rounds * block;
  work.wire_bytes = rounds * block;
  work.parallel = shape.local;  // ranks at a border fall behind the others, who queue for them
  return work;
}

Crossing crossing_of(const Topology& topology) {
  const Fold fold(0, topology.world());
  std::vector<int> leaving(topology.hosts());
  const auto busiest = [&](int pairs, auto a_of, auto b_of) {
    std::fill(leaving.begin(), leaving.end(), 0);
    for (int pair = 0; pair < pairs; ++pair) {
      const int a = topology.host_of(a_of(pair)), b = topology.host_of(b_of(pair));
      if (a != b) ++leaving[a];
    }
    return static_cast<double>(*std::max_element(leaving.begin(), leaving.end()));
  };
  Crossing crossing;
  for (int mask = 1; mask < fold.active(); mask *= 2) {
    const double messages = busiest(
        fold.active(), [&](int index) { return fold.place_at(index); },
        [&](int index) { return fold.place_at(index ^ mask); });
    crossing.rounds += messages > 0 ? 1 : 0;
    crossing.messages += messages;
    crossing.halved += messages * mask / fold.active();
  }
  crossing.folds = busiest(
      topology.world() - fold.active(), [](int pair) { return 2 * pair; },
      [](int pair) { return 2 * pair + 1; });
  return crossing;
}

Workload binomial_work(const Topology& topology, double bytes, bool reduces) {
  const Shape shape(topology);
  const double near_children = rounds_for(shape.local), far_children = rounds_for(shape.hosts);
  Workload work;
  work.shared_hops = depth_for(shape.local);
  work.network_hops = depth_for(shape.hosts);
  work.shared_relays = std::max(0.0, work.shared_hops - (shape.across ? 0 : 1));
  work.network_relays = std::max(0.0, work.network_hops - 1);
  work.shared_messages = near_children;
  work.network_messages = far_children;
  // Readers of a broadcast share a staged copy; operands of a reduction are one a child.
  work.shared_bytes = near_children == 0 ? 0 : (reduces ? near_children + 1 : 2) * bytes;
  work.network_bytes = far_children * bytes;
  work.wire_bytes = far_children * bytes;
  work.message_bytes = bytes;
  return work;
}

Workload relay_work(const Topology& topology, double bytes, bool by_host) {
  const Shape shape(topology);
  const double relays = (by_host ? shape.hosts : shape.world) - 1;
  // A short message has fewer chunks than there are relays, and one relay has a whole chunk to give
  // to everybody.
  const double chunk = std::min(bytes, std::max(bytes / relays, double{kShortestRelayChunk}));
  const double forwarded = std::max(bytes, chunk * relays);
  const double chunks = chunk > 0 ? bytes / chunk : 1;
  Workload work;
  work.message_bytes = std::max(chunk, bytes / relays);
  work.parallel = relays;
  work.incast = shape.hosts > 2;
  if (!shape.across) {
    work.shared_hops = 2;
    work.shared_relays = 1;
    work.shared_messages = relays + 2 * chunks;
    work.shared_bytes = bytes + forwarded;
    return work;
  }
  work.network_hops = 2;
  work.network_relays = 1;
  work.network_bytes = bytes + forwarded;
  if (by_host) {
    work.shared_hops = 1;
    work.shared_relays = 1;
    work.shared_messages = shape.near * chunks;
    work.shared_bytes = 2 * bytes;
    work.network_messages = relays + 2 * chunks;
    work.wire_bytes = forwarded;
  } else {
    work.network_messages = relays + 2 * chunks;
    work.wire_bytes = std::max(1.0, shape.local * shape.far / shape.world) * forwarded;
  }
  return work;
}

}  // namespace taco::pg
