// reduce_scatter, hierarchical: the operands of a block are first reduced inside each host, and one
// sum a host travels to the block's owner. A host with n ranks sends one n-th of what the direct
// exchange would.
//
// For the block of the j-th rank of some host, the rank that collects it on another host is the
// one with local index j (modulo that host's ranks), so that all ranks of a host share the work.
#include "pg/algorithms/list.h"
#include "pg/algorithms/phases.h"
#include "pg/algorithms/relay_groups.h"
#include "pg/algorithms/shape.h"

namespace taco::pg::algorithms {

namespace {

class HierarchicalReduceScatter {
 public:
  HierarchicalReduceScatter(ScheduleBuilder& builder, const Topology& topology)
      : builder_(builder), topology_(topology), my_host_(topology.host_of(builder.rank())) {
    local_.ranks = topology.ranks_of(my_host_);
    local_.me = topology.local_index_of(builder.rank());
    for (int rank = 0; rank < builder.world(); ++rank) {
      const bool mine = collector_of(rank) == local_.me;
      sums_.push_back(rank == builder.rank() ? builder.output()
                      : mine                 ? builder.scratch(builder.input(rank).bytes)
                                             : Slice{});
      const std::uint64_t bytes = builder.input(rank).bytes;
      chunks_ = std::max(chunks_, pieces_of(bytes, builder.chunk()));
    }
  }

  // The next host first, so that no host is everybody's first target.
  void build() {
    for (int chunk = 0; chunk < chunks_; ++chunk) {
      collect_for(my_host_, chunk);
      for (int distance = 1; distance < topology_.hosts(); ++distance) {
        collect_for((my_host_ + distance) % topology_.hosts(), chunk);
        combine(distance, chunk);
      }
      builder_.finish_reduction(piece(builder_.output(), chunk));
    }
  }

 private:
  // The local index, on this host, of the rank that collects `rank`'s block here.
  int collector_of(int rank) const { return collector_of(rank, my_host_); }
  int collector_of(int rank, int host) const {
    const auto ranks = static_cast<int>(topology_.ranks_of(host).size());
    return topology_.local_index_of(rank) % ranks;
  }

  Slice piece(const Slice& block, int chunk) const {
    return Partition(block.bytes, chunks_, builder_.problem().element_bytes).of(block, chunk);
  }

  void collect_for(int host, int chunk) {
    for (const int rank : topology_.ranks_of(host)) collect(rank, chunk);
  }

  void collect(int rank, int chunk) {
    const int collector = collector_of(rank);
    const Slice own = piece(builder_.input(rank), chunk);
    if (collector != local_.me) return builder_.send(own, local_.ranks[collector]);
    const Slice sum = piece(sums_[rank], chunk);
    Slice left = own;
    for (int distance = 1; distance < local_.size(); ++distance) {
      builder_.receive_reduce(sum, left, local_.peer(-distance));
      left = sum;
    }
    if (local_.size() == 1) builder_.copy(sum, own);
  }

  void combine(int distance, int chunk) {
    const int hosts = topology_.hosts();
    for (const int rank : topology_.ranks_of((my_host_ + distance) % hosts)) {
      if (collector_of(rank) == local_.me) builder_.send(piece(sums_[rank], chunk), rank);
    }
    const int source = (my_host_ - distance + hosts) % hosts;
    const int collector = collector_of(builder_.rank(), source);
    const Slice mine = piece(builder_.output(), chunk);
    builder_.receive_reduce(mine, mine, topology_.ranks_of(source)[collector]);
  }

  ScheduleBuilder& builder_;
  const Topology& topology_;
  const int my_host_;
  Team local_;
  std::vector<Slice> sums_;  // by owner; empty where another rank of this host collects
  int chunks_ = 1;
};

void build_reduce_scatter_hierarchical(ScheduleBuilder& builder, const Topology& topology) {
  HierarchicalReduceScatter(builder, topology).build();
}

Workload work_reduce_scatter_hierarchical(const Problem& problem, const Topology& topology) {
  const Shape shape(topology);
  const auto block = static_cast<double>(longest_block(problem));
  const double given = shape.world - shape.world / shape.local;
  const double collected = shape.world / shape.local * shape.near;
  Workload work;
  work.shared_hops = 1;
  work.network_hops = 1;
  work.shared_messages = given + collected;
  work.shared_bytes = work.shared_messages * block;
  work.network_messages = shape.far / shape.local + shape.hosts - 1;
  work.network_bytes = work.network_messages * block;
  work.wire_bytes = std::max(shape.far, shape.local * (shape.hosts - 1)) * block;
  work.incast = shape.hosts > 2;
  work.message_bytes = block;
  return work;
}

}  // namespace

const Algorithm reduce_scatter_hierarchical{Kind::kReduceScatter, "hierarchical",
                                            unfit_for_hierarchy, build_reduce_scatter_hierarchical,
                                            work_reduce_scatter_hierarchical};

}  // namespace taco::pg::algorithms
