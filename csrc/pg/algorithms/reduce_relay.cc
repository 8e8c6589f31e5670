// reduce, for long messages, with relays: the broadcast with relays (broadcast_relay.cc) run
// backwards. Every chunk is summed by one relay, relays taking turns, and only the finished sum
// travels to the root. So every link carries the message once.
//
// scatter_gather takes every rank for a host of its own. hierarchical adds up inside each host
// first, with one of its ranks in turn, and sends one sum a host.
#include "pg/algorithms/list.h"
#include "pg/algorithms/phases.h"
#include "pg/algorithms/relay_groups.h"
#include "pg/algorithms/shape.h"

namespace taco::pg::algorithms {

namespace {

// One chunk's way: inside each host to its collector (the root, in the root's host); from the
// collectors to the relay, one of them; from the relay to the root. hosts[0] holds the root.
class ReduceRelay {
 public:
  ReduceRelay(ScheduleBuilder& builder, Groups groups)
      : builder_(builder), hosts_(std::move(groups)), own_(builder.input()) {
    my_host_ = group_of(hosts_, builder.rank());
    chunks_ = relay_pieces(own_.bytes, builder.chunk(), hosts() - 1);
    const bool needs_sum = hosts() > 2 || hosts_[my_host_].size() > 1;
    sum_ = is_root() ? builder.output() : needs_sum ? builder.scratch(own_.bytes) : own_;
  }

  void build() {
    for (int turn = 0; turn < chunks_ + 2; ++turn) {
      if (turn < chunks_) collect(turn);
      if (turn >= 1 && turn - 1 < chunks_) relay(turn - 1);
      if (turn >= 2) finish(turn - 2);
    }
  }

 private:
  int hosts() const { return static_cast<int>(hosts_.size()); }
  bool is_root() const { return builder_.rank() == builder_.problem().root; }
  int relay_host(int chunk) const { return 1 + chunk % (hosts() - 1); }
  int collector(int host, int chunk) const {
    if (host == 0) return builder_.problem().root;
    const auto ranks = static_cast<int>(hosts_[host].size());
    return hosts_[host][chunk / std::max(1, hosts() - 1) % ranks];
  }
  bool collects(int chunk) const { return collector(my_host_, chunk) == builder_.rank(); }
  Slice piece(const Slice& whole, int chunk) const {
    return Partition(own_.bytes, chunks_, builder_.problem().element_bytes).of(whole, chunk);
  }

  // This rank's operand of the chunk, before anything has been added to it in its own host.
  Slice collected(int chunk) const {
    return piece(hosts_[my_host_].size() > 1 ? sum_ : own_, chunk);
  }

  void collect(int chunk) {
    if (!collects(chunk)) {
      return builder_.send(piece(own_, chunk), collector(my_host_, chunk));
    }
    Slice left = piece(own_, chunk);
    for (const int rank : hosts_[my_host_]) {
      if (rank == builder_.rank()) continue;
      builder_.receive_reduce(piece(sum_, chunk), left, rank);
      left = piece(sum_, chunk);
    }
  }

  void relay(int chunk) {
    if (hosts() == 1 || my_host_ == 0 || !collects(chunk)) return;
    const int target = relay_host(chunk);
    if (my_host_ != target) return builder_.send(collected(chunk), collector(target, chunk));
    Slice left = collected(chunk);
    for (int host = 1; host < hosts(); ++host) {
      if (host == target) continue;
      builder_.receive_reduce(piece(sum_, chunk), left, collector(host, chunk));
      left = piece(sum_, chunk);
    }
  }

  void finish(int chunk) {
    const int relay = hosts() == 1 ? -1 : collector(relay_host(chunk), chunk);
    if (is_root()) {
      const Slice sum = piece(sum_, chunk);
      if (relay >= 0) {
        builder_.receive_reduce(sum, collected(chunk), relay);
      } else if (hosts_[0].size() == 1) {
        builder_.copy(sum, piece(own_, chunk));
      }
      builder_.finish_reduction(sum);
    } else if (relay == builder_.rank()) {
      builder_.send(hosts() > 2 ? piece(sum_, chunk) : collected(chunk), builder_.problem().root);
    }
  }

  ScheduleBuilder& builder_;
  const Groups hosts_;
  const Slice own_;
  Slice sum_;
  int my_host_ = 0;
  int chunks_ = 1;
};

void build_reduce_flat(ScheduleBuilder& builder, const Topology& topology) {
  ReduceRelay(builder, ranks_apart(topology, builder.problem().root)).build();
}

void build_reduce_hierarchical(ScheduleBuilder& builder, const Topology& topology) {
  ReduceRelay(builder, ranks_by_host(topology, builder.problem().root)).build();
}

Workload work_reduce_flat(const Problem& problem, const Topology& topology) {
  Workload work = relay_work(topology, static_cast<double>(problem.bytes), false);
  // A relay has its last operand later than a broadcast's relay has the chunk.
  (topology.hosts() > 1 ? work.network_relays : work.shared_relays) += 1;
  return work;
}

Workload work_reduce_hierarchical(const Problem& problem, const Topology& topology) {
  Workload work = relay_work(topology, static_cast<double>(problem.bytes), true);
  work.network_bytes = static_cast<double>(problem.bytes);
  // Inside a host operands are no longer one staged copy: the root reads each of its host's.
  work.shared_bytes =
      std::max<double>(topology.max_ranks_per_host() - 1, 2) * static_cast<double>(problem.bytes);
  return work;
}

}  // namespace

const Algorithm reduce_scatter_gather{Kind::kReduce, "scatter_gather", unfit_for_relays,
                                      build_reduce_flat, work_reduce_flat};
const Algorithm reduce_hierarchical{Kind::kReduce, "hierarchical", unfit_for_hierarchy,
                                    build_reduce_hierarchical, work_reduce_hierarchical};

}  // namespace taco::pg::algorithms
