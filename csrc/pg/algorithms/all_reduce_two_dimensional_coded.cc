// all_reduce, two-dimensional, what travels between hosts being coded (16-bit values): exact inside
// each host; between the hosts of a shard, each host sums up one part of it.
//
// The part is summed up in the elements' own type, divided if that is wanted, and coded once. All
// hosts decode that, the one that has coded it too, so that all ranks end with the same bits. A
// value is rounded once on its way to the sum and once on its way back. A ring would round partial
// sums at each hop, so that the exchange is direct: a host sends 2 (m - 1) / m of the coded message
// for m hosts, as in a ring.
#include <cmath>

#include "pg/algorithms/coded_blocks.h"
#include "pg/algorithms/list.h"
#include "pg/algorithms/two_dimensions.h"

namespace taco::pg::algorithms {

namespace {

const char* all_reduce_two_dimensional_coded_unfit(const Problem& problem,
                                                   const Topology& topology) {
  if (const char* why = unfit_for_coding(problem, topology)) return why;
  return problem.codec->has_memory() ? "what its codec has coded may not be coded again" : nullptr;
}

// Coded blocks that one turn of a rank needs: to and from each other host, twice; but what
// it has summed up is one for all.
int rooms_of(const Topology& topology) { return 3 * topology.groups().hosts() - 2; }

class CodedAllReduce {
 public:
  CodedAllReduce(ScheduleBuilder& builder, const Topology& topology)
      : builder_(builder),
        shape_(builder, topology),
        groups_(topology.groups().hosts()),
        blocks_(*builder.problem().codec, part_of(shape_.longest_shard()), rooms_of(topology)),
        rooms_(builder, blocks_.longest,
               shape_.owns_shard() ? rooms_of(topology) * blocks_.turns_in_flight : 0) {
    shape_.set_turns(pieces_of(shape_.longest_shard(), blocks_.longest * groups_));
  }

  void build() {
    const int turns = shape_.turns();
    for (int turn = 0; turn < turns + 3; ++turn) {
      if (turn < turns) shape_.reduce_inside(turn);
      if (turn >= 1 && turn - 1 < turns) scatter(turn - 1);
      if (turn >= 2 && turn - 2 < turns) gather(turn - 2);
      if (turn >= 3) shape_.gather_inside(turn - 3);
    }
  }

 private:
  std::uint64_t part_of(std::uint64_t shard) const { return (shard + groups_ - 1) / groups_; }
  Partition parts_of(const Slice& piece) const {
    return {piece.bytes, static_cast<int>(groups_), builder_.problem().element_bytes};
  }

  // Leaves the finished sum of this host's part in the output.
  void scatter(int turn) {
    if (!shape_.owns_shard()) return;
    const Team& across = shape_.across();
    const Slice piece = shape_.piece(turn), operand = shape_.sum_inside(turn);
    const Partition parts = parts_of(piece);
    const Slice mine = parts.of(piece, across.me);
    Slice left = parts.of(operand, across.me);
    for (int distance = 1; distance < across.size(); ++distance) {
      const Slice theirs = parts.of(operand, across.place(distance));
      const VariableSlice outgoing = rooms_.take(theirs.bytes);
      builder_.encode(outgoing, theirs);
      builder_.send(outgoing, across.peer(distance));
      rooms_.add(mine, left, across.peer(-distance), distance == 1);
      left = mine;
    }
    builder_.finish_reduction(mine);
  }

  void gather(int turn) {
    if (!shape_.owns_shard()) return;
    const Team& across = shape_.across();
    const Slice piece = shape_.piece(turn);
    const Partition parts = parts_of(piece);
    const Slice mine = parts.of(piece, across.me);
    const VariableSlice outgoing = rooms_.take(mine.bytes);
    builder_.encode(outgoing, mine);
    builder_.send(outgoing, across.others());
    builder_.decode(mine, outgoing);
    for (int distance = 1; distance < across.size(); ++distance) {
      const Slice theirs = parts.of(piece, across.place(-distance));
      const VariableSlice incoming = rooms_.take(theirs.bytes);
      builder_.receive(incoming, across.peer(-distance));
      builder_.decode(theirs, incoming);
    }
  }

  ScheduleBuilder& builder_;
  TwoDimensions shape_;
  const std::uint64_t groups_;
  const CodedBlocks blocks_;
  CodedRooms rooms_;
};

void build_all_reduce_two_dimensional_coded(ScheduleBuilder& builder, const Topology& topology) {
  CodedAllReduce(builder, topology).build();
}

Workload work_all_reduce_two_dimensional_coded(const Problem& problem, const Topology& topology) {
  const GroupLegs legs(topology);
  const Codec& codec = *problem.codec;
  const double shard = static_cast<double>(problem.bytes) / legs.owners;
  const double part = shard / legs.groups;
  const auto whole = static_cast<std::uint64_t>(std::ceil(part));
  const auto coded = static_cast<double>(codec.expected(whole));
  const CodedBlocks blocks(codec, whole, rooms_of(topology));
  const double others = legs.groups - 1;
  Workload work;
  legs.add_inside(work, shard);
  (legs.far_groups > 0 ? work.network_hops : work.shared_hops) += 2;
  work.network_bytes += 4 * legs.far_groups * coded;
  work.shared_bytes += 4 * legs.near_groups * coded;
  work.wire_bytes += 2 * legs.direct_leaves * coded;
  work.turns = blocks.count(whole);
  work.coded_messages = 4 * others * work.turns;
  work.coding_seconds = (others + 1) * part / codec.bytes_per_second() +
                        (others + 1) * part / codec.decoded_bytes_per_second() +
                        others * part / codec.added_bytes_per_second();
  work.incast = work.incast || legs.far_groups > 1;
  work.copied_bytes = problem.average ? part : 0;  // divided
  work.message_bytes = shard;
  return work;
}

}  // namespace

const Algorithm all_reduce_two_dimensional_coded{Kind::kAllReduce,
                                                 "two_dimensional_coded",
                                                 all_reduce_two_dimensional_coded_unfit,
                                                 build_all_reduce_two_dimensional_coded,
                                                 work_all_reduce_two_dimensional_coded,
                                                 true};

}  // namespace taco::pg::algorithms
