// all_gather, hierarchical: every block enters a host once. A rank sends its block to its own host
// and to one rank of every other host, which hands it on to the rest of that host.
//
// The block of the j-th rank of a host enters another host through the rank with local index j
// (modulo that host's ranks), so that all ranks of a host share the work.
#include "pg/algorithms/list.h"
#include "pg/algorithms/phases.h"
#include "pg/algorithms/relay_groups.h"
#include "pg/algorithms/shape.h"

namespace taco::pg::algorithms {

namespace {

class HierarchicalAllGather {
 public:
  HierarchicalAllGather(ScheduleBuilder& builder, const Topology& topology)
      : builder_(builder), topology_(topology), my_host_(topology.host_of(builder.rank())) {
    local_.ranks = topology.ranks_of(my_host_);
    local_.me = topology.local_index_of(builder.rank());
    for (int rank = 0; rank < builder.world(); ++rank) {
      chunks_ = std::max(chunks_, pieces_of(builder.output(rank).bytes, builder.chunk()));
    }
    for (int distance = 1; distance < topology.hosts(); ++distance) {
      const int host = (my_host_ + distance) % topology.hosts();
      entries_.push_back(entry_of(builder.rank(), host));
    }
    const std::vector<int> neighbours = local_.others();
    targets_ = entries_;
    targets_.insert(targets_.end(), neighbours.begin(), neighbours.end());
  }

  void build() {
    const Slice own = builder_.input();
    builder_.copy(builder_.output(builder_.rank()), own);
    const Slice source = detached(builder_, own, true);
    for (int turn = 0; turn < chunks_ + 1; ++turn) {
      if (turn < chunks_) spread(source, turn);
      if (turn >= 1) hand_on(turn - 1);
    }
  }

 private:
  int entry_of(int rank, int host) const {
    const std::vector<int>& ranks = topology_.ranks_of(host);
    return ranks[topology_.local_index_of(rank) % static_cast<int>(ranks.size())];
  }
  bool enters_here(int rank) const {
    return topology_.host_of(rank) != my_host_ && entry_of(rank, my_host_) == builder_.rank();
  }
  Slice piece(const Slice& block, int chunk) const {
    return Partition(block.bytes, chunks_, builder_.problem().element_bytes).of(block, chunk);
  }

  void spread(const Slice& source, int chunk) {
    builder_.send(piece(source, chunk), targets_);
    for (int distance = 1; distance < builder_.world(); ++distance) {
      const int rank = (builder_.rank() - distance + builder_.world()) % builder_.world();
      if (topology_.host_of(rank) == my_host_ || enters_here(rank)) {
        builder_.receive(piece(builder_.output(rank), chunk), rank);
      }
    }
  }

  void hand_on(int chunk) {
    for (int rank = 0; rank < builder_.world(); ++rank) {
      if (topology_.host_of(rank) == my_host_) continue;
      const Slice block = piece(builder_.output(rank), chunk);
      if (enters_here(rank)) {
        builder_.send(block, local_.others());
      } else {
        builder_.receive(block, entry_of(rank, my_host_));
      }
    }
  }

  ScheduleBuilder& builder_;
  const Topology& topology_;
  const int my_host_;
  Team local_;
  std::vector<int> entries_, targets_;
  int chunks_ = 1;
};

void build_all_gather_hierarchical(ScheduleBuilder& builder, const Topology& topology) {
  HierarchicalAllGather(builder, topology).build();
}

Workload work_all_gather_hierarchical(const Problem& problem, const Topology& topology) {
  const Shape shape(topology);
  const auto block = static_cast<double>(longest_block(problem));
  const double entering = shape.far / shape.local;  // blocks this rank hands on
  Workload work;
  work.shared_hops = 1;
  work.network_hops = 1;
  work.shared_messages = (2 + entering) * shape.near + shape.far - entering;
  work.shared_bytes = (1 + entering + shape.near + shape.far - entering) * block;
  work.network_messages = shape.hosts - 1 + entering;
  work.network_bytes = work.network_messages * block;
  work.copied_bytes = block;
  work.wire_bytes = std::max(shape.far, shape.local * (shape.hosts - 1)) * block;
  work.incast = shape.hosts > 2;
  work.parallel = shape.hosts - 1 + shape.near;
  work.message_bytes = block;
  return work;
}

}  // namespace

const Algorithm all_gather_hierarchical{Kind::kAllGather, "hierarchical", unfit_for_hierarchy,
                                        build_all_gather_hierarchical,
                                        work_all_gather_hierarchical};

}  // namespace taco::pg::algorithms
