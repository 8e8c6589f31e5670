// all_reduce, two-dimensional: a reduce-scatter inside each host, an all-reduce of every shard
// between the hosts, an all-gather inside each host. A host sends 2 (m - 1) / m of the message for
// m hosts, however many ranks it has; a flat ring with n ranks a host sends as much as if it had
// m * n hosts.
//
// There are as many shards as the host with the fewest ranks has ranks; shard j belongs to the j-th
// rank of every host. The other ranks of a larger host only give their operands and get the result.
// The message is worked through in chunks, the three stages of consecutive chunks overlapping.
#include "pg/algorithms/list.h"
#include "pg/algorithms/phases.h"
#include "pg/algorithms/relay_groups.h"
#include "pg/algorithms/shape.h"

namespace taco::pg::algorithms {

namespace {

class TwoDimensional {
 public:
  TwoDimensional(ScheduleBuilder& builder, const Topology& topology)
      : builder_(builder),
        own_(builder.input()),
        result_(builder.output()),
        element_(builder.problem().element_bytes),
        owners_(topology.min_ranks_per_host()),
        shards_(result_.bytes, owners_, element_) {
    local_.ranks = topology.ranks_of(topology.host_of(builder.rank()));
    local_.me = topology.local_index_of(builder.rank());
    if (is_owner(local_.me)) {
      for (int host = 0; host < topology.hosts(); ++host) {
        across_.ranks.push_back(topology.ranks_of(host)[local_.me]);
      }
      across_.me = topology.host_of(builder.rank());
    }
    chunks_ = pieces_of(shards_.longest(), builder.chunk() * topology.hosts());
  }

  void build() {
    for (int turn = 0; turn < chunks_ + 2; ++turn) {
      if (turn < chunks_) reduce_inside(turn);
      if (turn >= 1 && turn - 1 < chunks_) all_reduce_between(turn - 1);
      if (turn >= 2) gather_inside(turn - 2);
    }
  }

 private:
  bool is_owner(int local_index) const { return local_index < owners_; }

  Slice piece(const Slice& whole, int owner, int chunk) const {
    const Slice shard = shards_.of(whole, owner);
    return Partition(shard.bytes, chunks_, element_).of(shard, chunk);
  }

  void reduce_inside(int chunk) {
    Slice left = own_;
    for (int distance = 1; distance < local_.size(); ++distance) {
      const int owner = local_.place(distance);
      if (is_owner(owner)) builder_.send(piece(own_, owner, chunk), local_.peer(distance));
      if (is_owner(local_.me)) {
        builder_.receive_reduce(piece(result_, local_.me, chunk), piece(left, local_.me, chunk),
                                local_.peer(-distance));
        left = result_;
      }
    }
  }

  void all_reduce_between(int chunk) {
    if (!is_owner(local_.me)) return;
    const Slice mine = piece(result_, local_.me, chunk);
    const Slice operand = local_.size() == 1 ? piece(own_, local_.me, chunk) : mine;
    const Partition parts(mine.bytes, across_.size(), element_);
    const auto part = [&](int place) { return parts.of(mine, place); };
    ring_reduce_scatter(
        builder_, across_, [&](int place) { return parts.of(operand, place); }, part);
    builder_.finish_reduction(part(across_.me));
    ring_all_gather(builder_, across_, part);
  }

  void gather_inside(int chunk) {
    direct_all_gather(builder_, local_, [&](int place) {
      return is_owner(place) ? piece(result_, place, chunk) : Slice{};
    });
  }

  ScheduleBuilder& builder_;
  const Slice own_, result_;
  const std::uint32_t element_;
  const int owners_;
  const Partition shards_;
  Team local_, across_;
  int chunks_ = 1;
};

void build(ScheduleBuilder& builder, const Topology& topology) {
  TwoDimensional(builder, topology).build();
}

Work work(const Problem& problem, const Topology& topology) {
  const Shape shape(topology);
  const double owners = topology.min_ranks_per_host();
  const double shard = static_cast<double>(problem.bytes) / owners;
  const double rounds = shape.hosts - 1;
  Work work;
  work.shared_hops = 2;
  work.network_hops = 2 * rounds;
  work.shared_messages = 4 * shape.near;
  work.network_messages = 4 * rounds;
  work.shared_bytes = (3 * (owners - 1) + shape.near + 1) * shard;
  work.network_bytes = 4 * rounds / shape.hosts * shard;
  work.wire_bytes = owners * 2 * rounds / shape.hosts * shard;
  work.message_bytes = shard / shape.hosts;
  return work;
}

}  // namespace

const Algorithm all_reduce_two_dimensional{Kind::kAllReduce, "two_dimensional", unfit_for_hierarchy,
                                           build, work};

}  // namespace taco::pg::algorithms
