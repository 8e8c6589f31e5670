#include "pg/algorithms/two_dimensions.h"

#include "pg/algorithms/phases.h"
#include "pg/codec.h"

namespace taco::pg {

const char* unfit_for_groups(const Problem&, const Topology& topology) {
  const Topology& groups = topology.groups();
  const bool hosts = &groups == &topology;
  if (groups.hosts() == 1) return hosts ? "all ranks share one host" : "all ranks are one group";
  if (groups.max_ranks_per_host() == 1)
    return hosts ? "no host has two ranks" : "no group has two ranks";
  return nullptr;
}

const char* unfit_for_coding(const Problem& problem, const Topology& topology) {
  if (problem.codec == nullptr) return "nothing may be coded";
  const Topology& groups = topology.groups();
  if (groups.hosts() > 1) return nullptr;
  return &groups == &topology ? "all ranks share one host" : "all ranks are one group";
}

TwoDimensions::TwoDimensions(ScheduleBuilder& builder, const Topology& topology)
    : builder_(builder),
      own_(builder.input()),
      result_(builder.output()),
      element_(builder.problem().element_bytes),
      owners_(topology.groups().min_ranks_per_host()),
      shards_(result_.bytes, owners_, element_) {
  const Topology& groups = topology.groups();
  local_.ranks = groups.ranks_of(groups.host_of(builder.rank()));
  local_.me = groups.local_index_of(builder.rank());
  if (!owns_shard()) return;
  for (int group = 0; group < groups.hosts(); ++group) {
    across_.ranks.push_back(groups.ranks_of(group)[local_.me]);
  }
  across_.me = groups.host_of(builder.rank());
}

Slice TwoDimensions::piece_of(const Slice& whole, int owner, int turn) const {
  const Slice shard = shards_.of(whole, owner);
  return Partition(shard.bytes, turns_, element_).of(shard, turn);
}

void TwoDimensions::reduce_inside(int turn) {
  Slice left = own_;
  for (int distance = 1; distance < local_.size(); ++distance) {
    const int owner = local_.place(distance);
    if (is_owner(owner)) builder_.send(piece_of(own_, owner, turn), local_.peer(distance));
    if (owns_shard()) {
      builder_.receive_reduce(piece(turn), piece_of(left, local_.me, turn), local_.peer(-distance));
      left = result_;
    }
  }
}

void TwoDimensions::gather_inside(int turn) {
  direct_all_gather(builder_, local_, [&](int place) {
    return is_owner(place) ? piece_of(result_, place, turn) : Slice{};
  });
}

GroupLegs::GroupLegs(const Topology& topology)
    : groups(topology.groups().hosts()), owners(topology.groups().min_ranks_per_host()) {
  const Topology& grouped = topology.groups();
  std::vector<double> operands(topology.hosts()), results(topology.hosts());
  std::vector<double> direct(topology.hosts()), ring(topology.hosts());
  for (int rank = 0; rank < topology.world(); ++rank) {
    const int host = topology.host_of(rank), group = grouped.host_of(rank);
    const int place = grouped.local_index_of(rank);
    const auto elsewhere = [&](int other) { return topology.same_host(rank, other) ? 0.0 : 1.0; };
    const bool owner = place < grouped.min_ranks_per_host();
    double away = 0, away_owners = 0;
    for (const int member : grouped.ranks_of(group)) {
      away += elsewhere(member);
      if (grouped.local_index_of(member) < grouped.min_ranks_per_host())
        away_owners += elsewhere(member);
    }
    const auto others = static_cast<double>(grouped.ranks_of(group).size() - 1);
    operands[host] += away_owners;
    far = std::max(far, away);
    near = std::max(near, others - away);
    if (!owner) continue;
    results[host] += away;
    double away_groups = 0;
    for (int other = 0; other < grouped.hosts(); ++other) {
      away_groups += elsewhere(grouped.ranks_of(other)[place]);
    }
    const auto neighbour = [&](int distance) {
      const int other = (group + distance + grouped.hosts()) % grouped.hosts();
      return elsewhere(grouped.ranks_of(other)[place]);
    };
    direct[host] += away_groups;
    ring[host] += neighbour(1);
    far_groups = std::max(far_groups, away_groups);
    near_groups = std::max(near_groups, groups - 1 - away_groups);
    ring_far = std::max(ring_far, neighbour(1) + neighbour(-1));
  }
  operands_leave = *std::max_element(operands.begin(), operands.end());
  results_leave = *std::max_element(results.begin(), results.end());
  direct_leaves = *std::max_element(direct.begin(), direct.end());
  ring_leaves = *std::max_element(ring.begin(), ring.end());
}

void GroupLegs::add_reduce_inside(Workload& work, double shard) const {
  (far > 0 ? work.network_hops : work.shared_hops) += 1;
  work.shared_messages += 2 * near;
  work.network_messages += 2 * far;
  work.shared_bytes += (std::min(owners - 1, near) + near) * shard;
  work.network_bytes += 2 * far * shard;
  work.wire_bytes += operands_leave * shard;
  work.incast = work.incast || far > 1;
}

// A block that an owner sends is staged once for all ranks that read it.
void GroupLegs::add_gather_inside(Workload& work, double bytes, double messages) const {
  (far > 0 ? work.network_hops : work.shared_hops) += 1;
  work.shared_messages += 2 * near * messages;
  work.network_messages += 2 * far * messages;
  work.shared_bytes += (1 + std::min(owners - 1, near)) * bytes;
  work.network_bytes += 2 * far * bytes;
  work.wire_bytes += results_leave * bytes;
  work.incast = work.incast || far > 1;
}

}  // namespace taco::pg
