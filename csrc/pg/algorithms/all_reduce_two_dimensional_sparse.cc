// all_reduce, two-dimensional, of which only a part travels between hosts and the rest is kept for
// the next time (the largest few elements, with error feedback): exact inside each host; every
// owner of a shard gives all others the same coded blocks of its host's sum, and all of them add up
// the blocks of all hosts in one order, so that all ranks end with the same bits. A host sends (m -
// 1) times the coded message for m hosts. (HiTopK: Shi et al., "Towards Scalable Distributed
// Training of Deep Learning on Public Cloud Clusters", MLSys 2021.)
//
// What is kept is in units of the sum inside the host: an average is divided at the end.
#include <cmath>

#include "pg/algorithms/coded_blocks.h"
#include "pg/algorithms/list.h"
#include "pg/algorithms/two_dimensions.h"

namespace taco::pg::algorithms {

namespace {

const char* unfit(const Problem& problem, const Topology& topology) {
  if (const char* why = unfit_for_coding(problem, topology)) return why;
  if (!problem.codec->has_memory()) return "its codec keeps nothing of what it does not send";
  return problem.element_bytes == sizeof(float) ? nullptr : "its elements are no float32";
}

// Coded blocks that one turn of a rank needs: its own, and one from each other host.
int rooms_of(const Topology& topology) { return topology.groups().hosts(); }

class Sparse {
 public:
  Sparse(ScheduleBuilder& builder, const Topology& topology)
      : builder_(builder),
        shape_(builder, topology),
        blocks_(*builder.problem().codec, shape_.longest_shard(), rooms_of(topology)),
        rooms_(builder, blocks_.longest,
               shape_.owns_shard() ? rooms_of(topology) * blocks_.turns_in_flight : 0) {
    shape_.set_turns(blocks_.count(shape_.longest_shard()));
  }

  void build() {
    const int turns = shape_.turns();
    for (int turn = 0; turn < turns + 2; ++turn) {
      if (turn < turns) shape_.reduce_inside(turn);
      if (turn >= 1 && turn - 1 < turns) exchange(turn - 1);
      if (turn >= 2) shape_.gather_inside(turn - 2);
    }
  }

 private:
  void exchange(int turn) {
    if (!shape_.owns_shard()) return;
    const Team& across = shape_.across();
    const Slice block = shape_.piece(turn);
    const VariableSlice own = rooms_.take(block.bytes);
    builder_.encode(own, shape_.sum_inside(turn),
                    ScheduleBuilder::residual(shape_.offset_in_shard(turn), block.bytes));
    builder_.send(own, across.others());
    for (int place = 0; place < across.size(); ++place) {
      const VariableSlice coded = place == across.me ? own : rooms_.take(block.bytes);
      if (place != across.me) builder_.receive(coded, across.ranks[place]);
      if (place == 0) {
        builder_.decode(block, coded);
      } else {
        builder_.decode_reduce(block, block, coded);
      }
    }
    builder_.finish_reduction(block);
  }

  ScheduleBuilder& builder_;
  TwoDimensions shape_;
  const CodedBlocks blocks_;
  CodedRooms rooms_;
};

void build(ScheduleBuilder& builder, const Topology& topology) {
  Sparse(builder, topology).build();
}

Work work(const Problem& problem, const Topology& topology) {
  const GroupLegs legs(topology);
  const Codec& codec = *problem.codec;
  const double shard = static_cast<double>(problem.bytes) / legs.owners;
  const auto whole = static_cast<std::uint64_t>(std::ceil(shard));
  const CodedBlocks blocks(codec, whole, rooms_of(topology));
  const double others = legs.groups - 1;
  Work work;
  work.turns = blocks.count(whole);
  const auto block = static_cast<std::uint64_t>(std::ceil(shard / work.turns));
  const double coded = static_cast<double>(codec.expected(block)) * work.turns;
  legs.add_inside(work, shard);
  (legs.far_groups > 0 ? work.network_hops : work.shared_hops) += 1;
  work.network_bytes += 2 * legs.far_groups * coded;
  work.shared_bytes += 2 * legs.near_groups * coded;
  work.wire_bytes += legs.direct_leaves * coded;
  work.coded_messages = 2 * others * work.turns;
  work.coding_seconds = shard / codec.bytes_per_second() +
                        shard / codec.decoded_bytes_per_second() +
                        others * shard / codec.added_bytes_per_second();
  work.incast = work.incast || legs.far_groups > 1;
  work.copied_bytes = problem.average ? shard : 0;  // divided
  work.message_bytes = shard;
  return work;
}

}  // namespace

const Algorithm all_reduce_two_dimensional_sparse{
    Kind::kAllReduce, "two_dimensional_sparse", unfit, build, work, true};

}  // namespace taco::pg::algorithms
