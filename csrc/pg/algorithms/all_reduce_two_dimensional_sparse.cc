// all_reduce, two-dimensional, of which only a part travels between hosts and the rest is kept for
// the next time (the largest few elements, with error feedback): exact inside each host; every
// owner of a shard gives all others the same coded blocks of its host's sum, and these are added up
// in one order everywhere, so that all ranks end with the same bits. A host sends (m - 1) times the
// coded message for m hosts. (HiTopK: Shi et al., "Towards Scalable Distributed Training of Deep
// Learning on Public Cloud Clusters", MLSys 2021.)
//
// Residuals are in units of the sum inside the host: an average is divided at the end.
#include <cmath>
#include <vector>

#include "pg/algorithms/coded_blocks.h"
#include "pg/algorithms/list.h"
#include "pg/algorithms/two_dimensions.h"

namespace taco::pg::algorithms {

namespace {

const char* all_reduce_two_dimensional_sparse_unfit(const Problem& problem,
                                                    const Topology& topology) {
  if (const char* why = unfit_for_coding(problem, topology)) return why;
  if (!problem.codec->has_memory()) return "its codec keeps nothing of what it does not send";
  return problem.element_bytes == sizeof(float) ? nullptr : "its elements are no float32";
}

// Inside a group the owners' results go round dense, or as the coded blocks of which they are the
// sum, and every rank adds those up for itself. The second clears memory and writes a few elements
// where the first stages and copies all of it: it pays where few blocks coincide.
bool passes_blocks_on(const Codec& codec, const Topology& topology) {
  constexpr double kDenseBytesPerSecond = 4e9;  // staged by one rank, copied by another
  constexpr int kMaxBlocks = 16;                // of one turn: more would have to be shorter
  const int groups = topology.groups().hosts();
  if (groups * topology.groups().min_ranks_per_host() > kMaxBlocks) return false;
  const double seconds = 1 / codec.decoded_bytes_per_second() +  //
                         (groups - 1) / codec.added_bytes_per_second();
  return seconds * kDenseBytesPerSecond < 1;
}

// Coded blocks that one turn of a rank needs: of a shard, its own and one from each other host.
int rooms_of(const Codec& codec, const Topology& topology) {
  const int groups = topology.groups().hosts();
  return passes_blocks_on(codec, topology) ? groups * topology.groups().min_ranks_per_host()
                                           : groups;
}

class Sparse {
 public:
  Sparse(ScheduleBuilder& builder, const Topology& topology)
      : builder_(builder),
        shape_(builder, topology),
        group_(topology.groups().host_of(builder.rank())),
        groups_(topology.groups().hosts()),
        passes_blocks_on_(passes_blocks_on(*builder.problem().codec, topology)),
        blocks_(*builder.problem().codec, shape_.longest_shard(),
                rooms_of(*builder.problem().codec, topology)),
        rooms_(builder, blocks_.longest,
               shape_.owns_shard() || passes_blocks_on_
                   ? rooms_of(*builder.problem().codec, topology) * blocks_.turns_in_flight
                   : 0) {
    shape_.set_turns(blocks_.count(shape_.longest_shard()));
  }

  void build() {
    const int turns = shape_.turns();
    for (int turn = 0; turn < turns + 2; ++turn) {
      if (turn < turns) shape_.reduce_inside(turn);
      if (turn >= 1 && turn - 1 < turns) exchange(turn - 1);
      if (turn >= 2 && !passes_blocks_on_) shape_.gather_inside(turn - 2);
    }
  }

 private:
  using Blocks = std::vector<VariableSlice>;  // of one shard, by the group whose sum each codes

  void exchange(int turn) {
    Blocks blocks;
    if (shape_.owns_shard()) blocks = exchange_between_groups(turn);
    if (passes_blocks_on_) {
      exchange_inside(turn, blocks);
    } else if (shape_.owns_shard()) {
      add_up(shape_.piece(turn), blocks);
    }
  }

  Blocks rooms(const Slice& piece) {
    Blocks blocks;
    for (int group = 0; group < groups_; ++group) blocks.push_back(rooms_.take(piece.bytes));
    return blocks;
  }

  Blocks exchange_between_groups(int turn) {
    const Team& across = shape_.across();
    const Slice piece = shape_.piece(turn);
    Blocks blocks = rooms(piece);
    builder_.encode(blocks[group_], shape_.sum_inside(turn),
                    ScheduleBuilder::residual(shape_.offset_in_shard(turn), piece.bytes));
    builder_.send(blocks[group_], across.others());
    for (int group = 0; group < groups_; ++group) {
      if (group != group_) builder_.receive(blocks[group], across.ranks[group]);
    }
    return blocks;
  }

  // Block by block, so that all ranks of the group have messages in one order.
  void exchange_inside(int turn, const Blocks& own) {
    const Team& inside = shape_.inside();
    std::vector<Blocks> blocks(inside.size());
    for (int place = 0; place < inside.size(); ++place) {
      if (place == inside.me) {
        blocks[place] = own;
      } else if (shape_.is_owner(place)) {
        blocks[place] = rooms(shape_.piece(place, turn));
      }
    }
    for (int step = 0; step < groups_; ++step) {
      const int group = (group_ + step) % groups_;  // the own one is there first
      if (shape_.owns_shard()) builder_.send(own[group], inside.others());
      for (int distance = 1; distance < inside.size(); ++distance) {
        const int owner = inside.place(-distance);
        if (shape_.is_owner(owner)) {
          builder_.receive(blocks[owner][group], inside.peer(-distance));
        }
      }
    }
    for (int place = 0; place < inside.size(); ++place) {
      if (shape_.is_owner(place)) add_up(shape_.piece(place, turn), blocks[place]);
    }
  }

  void add_up(const Slice& piece, const Blocks& blocks) {
    builder_.decode(piece, blocks[0], true);
    for (int group = 1; group < groups_; ++group) {
      builder_.decode_reduce(piece, piece, blocks[group], true);
    }
  }

  ScheduleBuilder& builder_;
  TwoDimensions shape_;
  const int group_, groups_;
  const bool passes_blocks_on_;
  const CodedBlocks blocks_;
  CodedRooms rooms_;
};

void build_all_reduce_two_dimensional_sparse(ScheduleBuilder& builder, const Topology& topology) {
  Sparse(builder, topology).build();
}

Workload work_all_reduce_two_dimensional_sparse(const Problem& problem, const Topology& topology) {
  const GroupLegs legs(topology);
  const Codec& codec = *problem.codec;
  const double shard = static_cast<double>(problem.bytes) / legs.owners;
  const auto whole = static_cast<std::uint64_t>(std::ceil(shard));
  const CodedBlocks blocks(codec, whole, rooms_of(codec, topology));
  const double others = legs.groups - 1;
  const bool passed_on = passes_blocks_on(codec, topology);
  Workload work;
  work.turns = blocks.count(whole);
  const auto block = static_cast<std::uint64_t>(std::ceil(shard / work.turns));
  const double coded = static_cast<double>(codec.expected(block)) * work.turns;
  legs.add_reduce_inside(work, shard);
  if (passed_on) {
    legs.add_gather_inside(work, legs.groups * coded, legs.groups);
  } else {
    legs.add_gather_inside(work, shard);
  }
  (legs.far_groups > 0 ? work.network_hops : work.shared_hops) += 1;
  work.network_bytes += 2 * legs.far_groups * coded;
  work.shared_bytes += 2 * legs.near_groups * coded;
  work.wire_bytes += legs.direct_leaves * coded;
  work.coded_messages = 2 * others * work.turns;
  const double added_up = passed_on ? legs.owners * shard : shard;
  work.coding_seconds = shard / codec.bytes_per_second() +
                        added_up / codec.decoded_bytes_per_second() +
                        others * added_up / codec.added_bytes_per_second();
  work.incast = work.incast || legs.far_groups > 1;
  work.message_bytes = shard;
  return work;
}

}  // namespace

const Algorithm all_reduce_two_dimensional_sparse{Kind::kAllReduce,
                                                  "two_dimensional_sparse",
                                                  all_reduce_two_dimensional_sparse_unfit,
                                                  build_all_reduce_two_dimensional_sparse,
                                                  work_all_reduce_two_dimensional_sparse,
                                                  true};

}  // namespace taco::pg::algorithms
