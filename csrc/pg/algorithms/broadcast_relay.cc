// broadcast, for long messages, with relays: the root sends every chunk to one relay only, which
// passes it on to all others; relays take turns. So the root sends the message once, every other
// rank forwards its share of it, and the last byte is two hops behind the first, whatever the world
// size.
//
// scatter_all_gather takes every rank for a host of its own. hierarchical lets a chunk enter a host
// once, through one of its ranks in turn, which hands it on inside the host.
#include "pg/algorithms/list.h"
#include "pg/algorithms/phases.h"
#include "pg/algorithms/relay_groups.h"
#include "pg/algorithms/shape.h"

namespace taco::pg::algorithms {

namespace {

// One chunk's way: root -> (relay, the root's host) -> (entries of all other hosts, the relay's
// host) -> the entries' hosts. `hosts` are groups of ranks; the first holds the root.
class BroadcastRelay {
 public:
  BroadcastRelay(ScheduleBuilder& builder, Groups groups)
      : builder_(builder), hosts_(std::move(groups)), message_(builder.output()) {
    my_host_ = group_of(hosts_, builder.rank());
    chunks_ = relay_pieces(message_.bytes, builder.chunk(), hosts() - 1);
  }

  void build() {
    for (int turn = 0; turn < chunks_ + 2; ++turn) {
      if (turn < chunks_) leave_root(turn);
      if (turn >= 1 && turn - 1 < chunks_) leave_relay(turn - 1);
      if (turn >= 2) enter_hosts(turn - 2);
    }
  }

 private:
  int hosts() const { return static_cast<int>(hosts_.size()); }
  int root() const { return builder_.problem().root; }
  int relay_host(int chunk) const { return 1 + chunk % (hosts() - 1); }
  int entry(int host, int chunk) const {
    const auto ranks = static_cast<int>(hosts_[host].size());
    return hosts_[host][chunk / std::max(1, hosts() - 1) % ranks];
  }
  Slice piece(int chunk) const {
    return Partition(message_.bytes, chunks_, builder_.problem().element_bytes).of(message_, chunk);
  }
  void add_host(std::vector<int>& targets, int host, int except) const {
    for (const int rank : hosts_[host]) {
      if (rank != except) targets.push_back(rank);
    }
  }
  // `from` sends the chunk to `targets`, as far as this rank has part in it.
  void hop(int from, const std::vector<int>& targets, int chunk) {
    if (from == builder_.rank()) return builder_.send(piece(chunk), targets);
    if (std::find(targets.begin(), targets.end(), builder_.rank()) != targets.end()) {
      builder_.receive(piece(chunk), from);
    }
  }

  void leave_root(int chunk) {
    std::vector<int> targets;
    if (hosts() > 1) targets.push_back(entry(relay_host(chunk), chunk));
    add_host(targets, 0, root());
    hop(root(), targets, chunk);
  }

  void leave_relay(int chunk) {
    if (hosts() == 1) return;
    const int relay = entry(relay_host(chunk), chunk);
    std::vector<int> targets;
    for (int host = 1; host < hosts(); ++host) {
      if (host != relay_host(chunk)) targets.push_back(entry(host, chunk));
    }
    add_host(targets, relay_host(chunk), relay);
    hop(relay, targets, chunk);
  }

  void enter_hosts(int chunk) {
    if (my_host_ == 0 || my_host_ == relay_host(chunk)) return;
    std::vector<int> targets;
    add_host(targets, my_host_, entry(my_host_, chunk));
    hop(entry(my_host_, chunk), targets, chunk);
  }

  ScheduleBuilder& builder_;
  const Groups hosts_;
  const Slice message_;
  int my_host_ = 0;
  int chunks_ = 1;
};

void build_broadcast_flat(ScheduleBuilder& builder, const Topology& topology) {
  BroadcastRelay(builder, ranks_apart(topology, builder.problem().root)).build();
}

void build_broadcast_hierarchical(ScheduleBuilder& builder, const Topology& topology) {
  BroadcastRelay(builder, ranks_by_host(topology, builder.problem().root)).build();
}

Workload work_broadcast_flat(const Problem& problem, const Topology& topology) {
  return relay_work(topology, static_cast<double>(problem.bytes), false);
}

Workload work_broadcast_hierarchical(const Problem& problem, const Topology& topology) {
  return relay_work(topology, static_cast<double>(problem.bytes), true);
}

}  // namespace

const Algorithm broadcast_scatter_all_gather{Kind::kBroadcast, "scatter_all_gather",
                                             unfit_for_relays, build_broadcast_flat,
                                             work_broadcast_flat};
const Algorithm broadcast_hierarchical{Kind::kBroadcast, "hierarchical", unfit_for_hierarchy,
                                       build_broadcast_hierarchical, work_broadcast_hierarchical};

}  // namespace taco::pg::algorithms
