// all_reduce, direct scatter: rank j owns shard j of the message. It reduces everybody's operand of
// it, straight from the senders, and gives the result to all at once. Two hops whatever the world
// size, and the least memory traffic inside a host, where a result is staged once for all readers.
//
// The shards are worked through in chunks small enough to stay in the processors' caches between
// sender and receiver. The results of a chunk are given away while the next chunks are being
// reduced, and consecutive chunks take their operands in rotated order, so that all links are busy.
#include <algorithm>

#include "pg/algorithms/list.h"
#include "pg/algorithms/phases.h"
#include "pg/algorithms/shape.h"

namespace taco::pg::algorithms {

namespace {

// Chunks being reduced before the first result is given away. A chunk takes one operand at a time,
// so between hosts so many are under way that their open receives cover the wire and its queues.
int lead_of(const Topology& topology, std::uint64_t chunk) {
  constexpr std::uint64_t kUnderWay = 4 << 20;
  if (topology.hosts() == 1) return 2;
  return static_cast<int>(std::clamp<std::uint64_t>(kUnderWay / chunk, 2, 64));
}

void build_all_reduce_direct_scatter(ScheduleBuilder& builder, const Topology& topology) {
  const Team team = whole_world(builder.rank(), builder.world());
  const Slice own = builder.input(), result = builder.output();
  const std::uint32_t element = builder.problem().element_bytes;
  const Partition shards(result.bytes, team.size(), element);
  const int chunks = pieces_of(shards.longest(), builder.chunk());
  const auto piece = [&](const Slice& whole, int place, int chunk) {
    const Slice shard = shards.of(whole, place);
    return Partition(shard.bytes, chunks, element).of(shard, chunk);
  };
  const int lead = lead_of(topology, builder.chunk());
  for (int turn = 0; turn < chunks + lead; ++turn) {
    if (turn < chunks) {
      const Slice sum = piece(result, team.me, turn);
      direct_reduce_scatter(
          builder, team, [&](int place) { return piece(own, place, turn); }, sum, turn);
      builder.finish_reduction(sum);
    }
    if (turn >= lead) {
      direct_all_gather(builder, team,
                        [&](int place) { return piece(result, place, turn - lead); });
    }
  }
}

Workload work_all_reduce_direct_scatter(const Problem& problem, const Topology& topology) {
  const Shape shape(topology);
  const double shard = static_cast<double>(problem.bytes) / shape.world;
  Workload work;
  shape.exchange(work, 2 * shape.near * shard, 2 * shape.far * shard);
  shape.exchange(work, (1 + shape.near) * shard, 2 * shape.far * shard);
  work.wire_bytes = 2 * shape.local * shape.far * shard;
  work.message_bytes = shard;
  return work;
}

}  // namespace

const Algorithm all_reduce_direct_scatter{Kind::kAllReduce, "direct_scatter", always_fit,
                                          build_all_reduce_direct_scatter,
                                          work_all_reduce_direct_scatter};

}  // namespace taco::pg::algorithms
