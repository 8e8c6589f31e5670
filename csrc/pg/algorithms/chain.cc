// broadcast and reduce, for long messages between hosts, along a chain: the message crosses each
// host's cable once, and every host hears one other only. So no cable is shared, unlike with
// relays, at the price of one hop for each host: a chunk later each.
//
// A chunk enters a host through one of its ranks, which passes it on to the next host and to the
// ranks beside it. A reduction runs the same way back: the entry adds its host's operands and what
// comes from beyond it.
#include "pg/algorithms/list.h"
#include "pg/algorithms/phases.h"
#include "pg/algorithms/relay_groups.h"
#include "pg/algorithms/shape.h"

namespace taco::pg::algorithms {

namespace {

const char* chain_unfit(const Problem&, const Topology& topology) {
  return topology.hosts() == 1 ? "all ranks share one host" : nullptr;
}

// The hosts in the chain's order, and this rank's place in it.
struct Chain {
  Groups hosts;
  int me;  // my host

  Chain(const ScheduleBuilder& builder, const Topology& topology)
      : hosts(ranks_by_host(topology, builder.problem().root)),
        me(group_of(hosts, builder.rank())),
        root_(builder.problem().root) {}

  bool is_last() const { return me + 1 == static_cast<int>(hosts.size()); }
  int entry(int host) const { return host == 0 ? root_ : hosts[host].front(); }
  std::vector<int> beside_entry() const {
    std::vector<int> ranks;
    for (const int rank : hosts[me]) {
      if (rank != entry(me)) ranks.push_back(rank);
    }
    return ranks;
  }

 private:
  int root_;
};

void build_broadcast(ScheduleBuilder& builder, const Topology& topology) {
  const Chain chain(builder, topology);
  const Slice message = builder.output();
  const int entry = chain.entry(chain.me);
  if (builder.rank() != entry) return builder.receive(message, entry);
  if (chain.me > 0) builder.receive(message, chain.entry(chain.me - 1));
  std::vector<int> targets = chain.beside_entry();
  if (!chain.is_last()) targets.insert(targets.begin(), chain.entry(chain.me + 1));
  if (!targets.empty()) builder.send(message, targets);
}

void build_reduce(ScheduleBuilder& builder, const Topology& topology) {
  const Chain chain(builder, topology);
  const Slice own = builder.input();
  const int entry = chain.entry(chain.me);
  if (builder.rank() != entry) return builder.send(own, entry);
  std::vector<int> sources = chain.beside_entry();
  if (!chain.is_last()) sources.push_back(chain.entry(chain.me + 1));
  const bool is_root = chain.me == 0;
  const Slice sum = is_root ? builder.output() : sources.empty() ? own : builder.scratch(own.bytes);
  Slice left = own;
  for (const int source : sources) {
    builder.receive_reduce(sum, left, source);
    left = sum;
  }
  if (is_root) return builder.finish_reduction(sum);
  builder.send(sum, chain.entry(chain.me - 1));
}

Workload work_of(const Problem& problem, const Topology& topology, bool reduces) {
  const Shape shape(topology);
  const auto bytes = static_cast<double>(problem.bytes);
  Workload work;
  work.network_hops = shape.hosts - 1;
  work.network_relays = shape.hosts - 2;
  work.network_messages = std::min(2.0, work.network_hops);
  work.network_bytes = work.network_messages * bytes;
  work.wire_bytes = bytes;
  work.message_bytes = bytes;
  if (shape.near == 0) return work;
  work.shared_hops = work.shared_relays = 1;
  work.shared_messages = shape.near;
  // Readers of a broadcast share a staged copy; operands of a reduction are one a rank.
  work.shared_bytes = (reduces ? shape.near + 1 : 2) * bytes;
  return work;
}

Workload work_broadcast(const Problem& problem, const Topology& topology) {
  return work_of(problem, topology, false);
}

Workload work_reduce(const Problem& problem, const Topology& topology) {
  return work_of(problem, topology, true);
}

}  // namespace

const Algorithm broadcast_chain{Kind::kBroadcast, "chain", chain_unfit, build_broadcast,
                                work_broadcast};
const Algorithm reduce_chain{Kind::kReduce, "chain", chain_unfit, build_reduce, work_reduce};

}  // namespace taco::pg::algorithms
