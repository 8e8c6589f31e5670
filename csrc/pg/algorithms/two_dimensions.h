// The parts that two-dimensional algorithms share: who owns which shard of a message, how it is
// worked through turn by turn, and what their legs cost where the groups of ranks are not the
// hosts.
//
// There are as many shards as the group with the fewest ranks has ranks; shard j belongs to the
// j-th rank of every group. The other ranks of a larger group only give their operands and get the
// result.
#pragma once

#include "pg/algorithms/partition.h"
#include "pg/planning/algorithm.h"

namespace taco::pg {

// Why no two-dimensional algorithm fits, or null.
const char* unfit_for_groups(const Problem& problem, const Topology& topology);
// The same for those that code what they send between groups, which need no groups of several
// ranks.
const char* unfit_for_coding(const Problem& problem, const Topology& topology);

// The legs inside the groups, of an all_reduce from input to output in turns.
class TwoDimensions {
 public:
  TwoDimensions(ScheduleBuilder& builder, const Topology& topology);

  // Cuts each shard into `turns` pieces.
  void set_turns(int turns) { turns_ = turns; }
  int turns() const { return turns_; }

  bool owns_shard() const { return is_owner(local_.me); }
  bool is_owner(int local_index) const { return local_index < owners_; }
  const Team& inside() const { return local_; }   // this rank's group
  const Team& across() const { return across_; }  // the owners of this rank's shard, by group
  std::uint64_t longest_shard() const { return shards_.longest(); }
  // Three places of this rank's shard: in the output; where the sum over its group is found, which
  // is the input if the group has no other rank; and how far it is into the shard.
  Slice piece(int turn) const { return piece_of(result_, local_.me, turn); }
  Slice piece(int owner, int turn) const { return piece_of(result_, owner, turn); }
  Slice sum_inside(int turn) const {
    return piece_of(local_.size() == 1 ? own_ : result_, local_.me, turn);
  }
  std::uint64_t offset_in_shard(int turn) const {
    return piece(turn).offset - shards_.offset(local_.me);
  }

  void reduce_inside(int turn);  // leaves the sum over the group with the owner
  void gather_inside(int turn);  // gives the owner's piece of the output to its group

 private:
  Slice piece_of(const Slice& whole, int owner, int turn) const;

  ScheduleBuilder& builder_;
  const Slice own_, result_;
  const std::uint32_t element_;
  const int owners_;
  const Partition shards_;
  Team local_, across_;
  int turns_ = 1;
};

// Which messages cross the wire. Counts are of the rank that has most of them there, or of the host
// that sends most.
struct GroupLegs {
  double groups, owners;
  double near = 0, far = 0;                // other ranks of a group, on the same host and elsewhere
  double near_groups = 0, far_groups = 0;  // where the other owners of a shard are
  double ring_far = 0;                     // neighbours of an owner in a ring over the groups
  double operands_leave = 0;               // shards that leave the host, to be added up
  double results_leave = 0;                // and to be passed on
  double direct_leaves = 0;                // one for each other owner on another host
  double ring_leaves = 0;                  // one for each owner whose next is on another host

  explicit GroupLegs(const Topology& topology);
  // The legs inside the groups: of `shard` bytes, and of results that an owner sends in `messages`
  // of `bytes` altogether.
  void add_reduce_inside(Workload& work, double shard) const;
  void add_gather_inside(Workload& work, double bytes, double messages = 1) const;
  void add_inside(Workload& work, double shard) const {
    add_reduce_inside(work, shard);
    add_gather_inside(work, shard);
  }
};

}  // namespace taco::pg
