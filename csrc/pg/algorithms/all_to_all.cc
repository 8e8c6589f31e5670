// all_to_all: direct, and hierarchical for short blocks.
//
// Direct: in round k every rank sends to the rank k places on and receives from the rank k places
// before, so that in each round every rank hears one sender. Needs to know no other rank's splits.
//
// Hierarchical: the blocks that one host's ranks have for another host travel as one
// message. For each other host one rank collects them inside (the rank with local index: that host
// modulo the ranks here), sends them to its opposite number over there, which hands them out. Three
// hops and more copies, for n * n times fewer messages between hosts with n ranks. All blocks must
// be equally long, and every rank must know that they are.
//
// It knows when the program gave no split sizes. A rank that gives some cannot tell whether the
// others do, not even when all of its own are equal: its row may be even where another's is not. So
// where this algorithm is chosen, ranks with split sizes and ranks without do not match, and are
// told so (pg/execution/signature.cc). Nothing a rank knows beforehand decides for all alike but
// the layout of the hosts, and by that alone it would have to be this one for every length or for
// none; agreeing first would cost every call with split sizes a round trip more. What would be
// lost: blocks of 16 B, 8 ranks on 2 hosts 151 us against 235, on 4 hosts 190 against 286 (2
// cores), and such are what programs exchange to learn the sizes of what follows. From about 1 KiB
// on both are equal, the planner takes the direct one, and split sizes mix freely.
#include <cmath>

#include "pg/algorithms/list.h"
#include "pg/algorithms/phases.h"
#include "pg/algorithms/relay_groups.h"
#include "pg/algorithms/shape.h"

namespace taco::pg::algorithms {

namespace {

void build_all_to_all_direct(ScheduleBuilder& builder, const Topology& topology) {
  const Team team = whole_world(builder.rank(), builder.world());
  for (int distance = 1; distance < team.size(); ++distance) {
    const Slice block = builder.input(team.place(distance));
    builder.send(detached(builder, block, topology.hosts() > 1), team.peer(distance));
    builder.receive(builder.output(team.place(-distance)), team.peer(-distance));
  }
  builder.copy(builder.output(team.me), builder.input(team.me));
}

const char* all_to_all_hierarchical_unfit(const Problem& problem, const Topology& topology) {
  constexpr std::uint64_t kLongestBlock = 256 << 10;
  if (!problem.equal_splits) return "the ranks do not know each other's splits";
  if (problem.bytes > kLongestBlock) return "it copies every block three times";
  return unfit_for_hierarchy(problem, topology);
}

class HierarchicalAllToAll {
 public:
  HierarchicalAllToAll(ScheduleBuilder& builder, const Topology& topology)
      : builder_(builder),
        topology_(topology),
        block_(builder.problem().bytes),
        my_host_(topology.host_of(builder.rank())) {
    local_.ranks = topology.ranks_of(my_host_);
    local_.me = topology.local_index_of(builder.rank());
  }

  void build() {
    for (int distance = 1; distance < local_.size(); ++distance) {
      const int to = local_.peer(distance), from = local_.peer(-distance);
      builder_.send(detached(builder_, builder_.input(to), true), to);
      builder_.receive(builder_.output(from), from);
    }
    builder_.copy(builder_.output(builder_.rank()), builder_.input(builder_.rank()));
    for (int distance = 1; distance < topology_.hosts(); ++distance) {
      const int to = (my_host_ + distance) % topology_.hosts();
      const int from = (my_host_ - distance + topology_.hosts()) % topology_.hosts();
      leave(to);
      enter(from);
    }
  }

 private:
  int agent(int host, int other) const {
    const std::vector<int>& ranks = topology_.ranks_of(host);
    return ranks[other % static_cast<int>(ranks.size())];
  }
  Slice blocks(const Slice& run, std::size_t first, std::size_t count) const {
    return run.part(first * block_, count * block_);
  }

  // Collected by source, then by destination.
  void leave(int host) {
    const std::vector<int>& there = topology_.ranks_of(host);
    const int collector = agent(my_host_, host);
    const Slice mine = builder_.scratch(there.size() * block_);
    const bool collects = collector == builder_.rank();
    const Slice all = collects ? builder_.scratch(local_.ranks.size() * mine.bytes) : mine;
    const Slice own = collects ? blocks(all, local_.me * there.size(), there.size()) : mine;
    for (std::size_t i = 0; i < there.size(); ++i) {
      builder_.copy(blocks(own, i, 1), builder_.input(there[i]));
    }
    if (!collects) return builder_.send(own, collector);
    for (int source = 0; source < local_.size(); ++source) {
      if (source == local_.me) continue;
      builder_.receive(blocks(all, source * there.size(), there.size()), local_.ranks[source]);
    }
    builder_.send(all, agent(host, my_host_));
  }

  void enter(int host) {
    const std::vector<int>& there = topology_.ranks_of(host);
    const int distributor = agent(my_host_, host);
    const Slice mine = builder_.scratch(there.size() * block_);
    if (distributor != builder_.rank()) {
      builder_.receive(mine, distributor);
    } else {
      hand_out(there, agent(host, my_host_), mine);
    }
    for (std::size_t source = 0; source < there.size(); ++source) {
      builder_.copy(builder_.output(there[source]), blocks(mine, source, 1));
    }
  }

  void hand_out(const std::vector<int>& there, int sender, const Slice& mine) {
    const std::size_t here = local_.ranks.size();
    const Slice all = builder_.scratch(there.size() * here * block_);
    builder_.receive(all, sender);
    for (std::size_t destination = 0; destination < here; ++destination) {
      const bool to_me = static_cast<int>(destination) == local_.me;
      const Slice pack = to_me ? mine : builder_.scratch(mine.bytes);
      for (std::size_t source = 0; source < there.size(); ++source) {
        builder_.copy(blocks(pack, source, 1), blocks(all, source * here + destination, 1));
      }
      if (!to_me) builder_.send(pack, local_.ranks[destination]);
    }
  }

  ScheduleBuilder& builder_;
  const Topology& topology_;
  const std::uint64_t block_;
  const int my_host_;
  Team local_;
};

void build_all_to_all_hierarchical(ScheduleBuilder& builder, const Topology& topology) {
  HierarchicalAllToAll(builder, topology).build();
}

Workload work_all_to_all_direct(const Problem& problem, const Topology& topology) {
  const Shape shape(topology);
  const double block = problem.equal_splits ? static_cast<double>(problem.bytes) : 0;
  Workload work;
  shape.exchange(work, 2 * shape.near * block, 2 * shape.far * block);
  work.incast = false;
  work.in_turn = shape.far > 1;
  work.copied_bytes = block;
  work.wire_bytes = shape.local * shape.far * block;
  work.message_bytes = block;
  work.length_unknown = true;
  return work;
}

Workload work_all_to_all_hierarchical(const Problem& problem, const Topology& topology) {
  const Shape shape(topology);
  const auto block = static_cast<double>(problem.bytes);
  const double hosts = shape.hosts - 1;
  Workload work;
  work.shared_hops = 2;
  work.network_hops = 1;
  work.shared_messages = 2 * shape.near + 4 * hosts;
  work.shared_bytes = (2 * shape.near + 4 * shape.far) * block;
  work.network_messages = 2 * std::ceil(hosts / shape.local);
  work.network_bytes = 2 * shape.far * block;
  work.copied_bytes = (1 + 3 * shape.far) * block;
  work.wire_bytes = shape.local * shape.far * block;
  work.incast = hosts > 1;
  work.message_bytes = shape.local * shape.local * block;
  return work;
}

}  // namespace

const Algorithm all_to_all_direct{Kind::kAllToAll, "direct", always_fit, build_all_to_all_direct,
                                  work_all_to_all_direct};
const Algorithm all_to_all_hierarchical{
    Kind::kAllToAll, "hierarchical", all_to_all_hierarchical_unfit, build_all_to_all_hierarchical,
    work_all_to_all_hierarchical};

}  // namespace taco::pg::algorithms
