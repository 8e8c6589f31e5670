#include "pg/algorithms/gradient_shard.h"

#include "pg/algorithms/partition.h"

namespace taco::pg {

Shard gradient_shard(std::uint64_t bytes, std::uint32_t element_bytes, const Topology& topology,
                     int rank) {
  const Topology& groups = topology.groups();
  const int owners = groups.min_ranks_per_host(), place = groups.local_index_of(rank);
  if (groups.hosts() == 1 || place >= owners) return {};
  const Partition shards(bytes, owners, element_bytes);
  return {shards.offset(place), shards.offset(place + 1) - shards.offset(place)};
}

}  // namespace taco::pg
