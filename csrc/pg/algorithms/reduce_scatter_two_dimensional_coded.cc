// reduce_scatter, two-dimensional, what travels between hosts being coded (16-bit values): the
// operands of a block are first reduced inside each host, exactly, and each host's sum travels in
// coded form to the block's owner. The owner adds up the hosts' sums in the elements' own type, its
// own host's first and that one as it is, then those of the hosts before it. A value is rounded
// once, on its way. A ring would round partial sums at each hop, so that the exchange is direct.
//
// For the block of the j-th rank of some host, the rank that collects it on another host is the one
// with local index j (modulo that host's ranks), so that all ranks of a host share the work,
// whatever the hosts' sizes.
#include <vector>

#include "pg/algorithms/coded_blocks.h"
#include "pg/algorithms/list.h"
#include "pg/algorithms/two_dimensions.h"

namespace taco::pg::algorithms {

namespace {

const char* reduce_scatter_two_dimensional_coded_unfit(const Problem& problem,
                                                       const Topology& topology) {
  if (const char* why = unfit_for_coding(problem, topology)) return why;
  return problem.codec->has_memory() ? "its codec keeps what it does not send for an all_reduce"
                                     : nullptr;
}

// The rank that sums up the operands of `rank`'s block inside `group`: the rank itself in its own.
int collector_of(const Topology& groups, int rank, int group) {
  const std::vector<int>& ranks = groups.ranks_of(group);
  return ranks[groups.local_index_of(rank) % ranks.size()];
}

// How many blocks of other groups' ranks the busiest rank sums up.
int max_collected(const Topology& groups) {
  int most = 0;
  for (int group = 0; group < groups.hosts(); ++group) {
    const auto ranks = static_cast<int>(groups.ranks_of(group).size());
    int collected = 0;
    for (int other = 0; other < groups.hosts(); ++other) {
      const auto blocks = static_cast<int>(groups.ranks_of(other).size());
      if (other != group) collected += (blocks + ranks - 1) / ranks;
    }
    most = std::max(most, collected);
  }
  return most;
}

// The memory that one turn of the busiest rank needs, in coded blocks. A sum has room for two of 16
// bits.
int rooms_for_shards(const Topology& topology) {
  const Topology& groups = topology.groups();
  return 3 * max_collected(groups) + groups.hosts() - 1;
}

class CodedReduceScatter {
 public:
  CodedReduceScatter(ScheduleBuilder& builder, const Topology& topology)
      : builder_(builder),
        groups_(topology.groups()),
        group_(groups_.host_of(builder.rank())),
        local_{groups_.ranks_of(group_), groups_.local_index_of(builder.rank())},
        number_of_(collected_by(builder.rank())),
        blocks_(*builder.problem().codec, longest_block(builder.problem()),
                rooms_for_shards(topology)),
        turns_(blocks_.count(longest_block(builder.problem()))),
        rooms_(builder, blocks_.longest,
               (collected_ + groups_.hosts() - 1) * blocks_.turns_in_flight) {
    if (sums_in_place()) return;
    for (int sum = 0; sum < collected_ * blocks_.turns_in_flight; ++sum) {
      sums_.push_back(builder.scratch(blocks_.longest));
    }
  }

  // Blocks that other hosts wait for come first. While they travel, the next turn's sums are made.
  void build() {
    for (int turn = 0; turn < turns_ + 1; ++turn) {
      for (int distance = 1; distance <= groups_.hosts() && turn < turns_; ++distance) {
        for (const int rank : groups_.ranks_of(group_at(distance))) reduce_inside(rank, turn);
      }
      if (turn >= 1) exchange(turn - 1);
    }
  }

 private:
  // By rank: the how-manieth of the blocks that `collector` sums up for other groups; -1: not it.
  std::vector<int> collected_by(int collector) {
    std::vector<int> numbers(builder_.world(), -1);
    for (int rank = 0; rank < builder_.world(); ++rank) {
      const bool elsewhere = groups_.host_of(rank) != group_;
      if (elsewhere && collector_of(groups_, rank, group_) == collector)
        numbers[rank] = collected_++;
    }
    return numbers;
  }

  int group_at(int distance) const {  // `distance` may be negative, down to -hosts
    return (group_ + distance + groups_.hosts()) % groups_.hosts();
  }
  bool collects(int rank) const { return number_of_[rank] >= 0; }
  // A group of one rank has nothing to add up: what it sends is its input, unless that is to be
  // scaled first.
  bool sums_in_place() const { return local_.size() == 1 && !builder_.problem().premultiply; }

  Slice piece(const Slice& block, int turn) const {
    return Partition(block.bytes, turns_, builder_.problem().element_bytes).of(block, turn);
  }
  Slice own(int rank, int turn) const { return piece(builder_.input(rank), turn); }
  // Where the group's sum of a piece that this rank collects is.
  Slice sum(int rank, int turn) const {
    const Slice operand = own(rank, turn);
    if (sums_in_place()) return operand;
    const int first = turn % blocks_.turns_in_flight * collected_;
    return sums_[first + number_of_[rank]].part(0, operand.bytes);
  }

  void reduce_inside(int rank, int turn) {
    const int collector = collector_of(groups_, rank, group_);
    const Slice operand = own(rank, turn);
    if (collector != builder_.rank()) return builder_.send(operand, collector);
    const bool is_mine = rank == builder_.rank();
    if (local_.size() == 1) {
      if (!is_mine) builder_.copy(sum(rank, turn), operand);
      return;
    }
    const Slice result = is_mine ? piece(builder_.output(), turn) : sum(rank, turn);
    Slice left = operand;
    for (int distance = 1; distance < local_.size(); ++distance) {
      builder_.receive_reduce(result, left, local_.peer(-distance));
      left = result;
    }
  }

  void exchange(int turn) {
    const Slice mine = piece(builder_.output(), turn);
    Slice left = local_.size() == 1 ? own(builder_.rank(), turn) : mine;
    for (int distance = 1; distance < groups_.hosts(); ++distance) {
      for (const int rank : groups_.ranks_of(group_at(distance))) {
        if (collects(rank)) give(rank, turn);
      }
      const int source = collector_of(groups_, builder_.rank(), group_at(-distance));
      rooms_.add(mine, left, source, distance == 1);
      left = mine;
    }
    builder_.finish_reduction(mine);
  }

  void give(int rank, int turn) {
    const Slice block = sum(rank, turn);
    const VariableSlice outgoing = rooms_.take(block.bytes);
    builder_.encode(outgoing, block);
    builder_.send(outgoing, rank);
  }

  ScheduleBuilder& builder_;
  const Topology& groups_;
  const int group_;
  const Team local_;
  int collected_ = 0;
  const std::vector<int> number_of_;
  const CodedBlocks blocks_;
  const int turns_;
  CodedRooms rooms_;
  std::vector<Slice> sums_;
};

void build_reduce_scatter_two_dimensional_coded(ScheduleBuilder& builder,
                                                const Topology& topology) {
  CodedReduceScatter(builder, topology).build();
}

// The blocks that a rank or a host sends and receives.
struct Traffic {
  double near = 0, far = 0;              // operands, on the same host and elsewhere
  double near_coded = 0, far_coded = 0;  // sums in coded form

  void add(bool crosses, bool is_coded) {
    (is_coded ? (crosses ? far_coded : near_coded) : (crosses ? far : near)) += 1;
  }
  void rise_to(const Traffic& other) {
    near = std::max(near, other.near);
    far = std::max(far, other.far);
    near_coded = std::max(near_coded, other.near_coded);
    far_coded = std::max(far_coded, other.far_coded);
  }
};

// The counts of the rank that has most of each; and the bytes that leave, or reach, the busiest
// host.
struct Busiest {
  Traffic rank;
  double wire_bytes = 0;

  Busiest(const Topology& topology, double block, double coded) {
    const Topology& groups = topology.groups();
    std::vector<Traffic> ranks(topology.world());
    std::vector<double> leaves(topology.hosts()), arrives(topology.hosts());
    const auto message = [&](int from, int to, bool is_coded) {
      const bool crosses = !topology.same_host(from, to);
      ranks[from].add(crosses, is_coded);
      ranks[to].add(crosses, is_coded);
      if (!crosses) return;
      leaves[topology.host_of(from)] += is_coded ? coded : block;
      arrives[topology.host_of(to)] += is_coded ? coded : block;
    };
    for (int owner = 0; owner < topology.world(); ++owner) {
      for (int group = 0; group < groups.hosts(); ++group) {
        const int collector = collector_of(groups, owner, group);
        for (const int member : groups.ranks_of(group)) {
          if (member != collector) message(member, collector, false);
        }
        if (collector != owner) message(collector, owner, true);
      }
    }
    for (const Traffic& each : ranks) rank.rise_to(each);
    for (const std::vector<double>* hosts : {&leaves, &arrives}) {
      wire_bytes = std::max(wire_bytes, *std::max_element(hosts->begin(), hosts->end()));
    }
  }
};

Workload work_reduce_scatter_two_dimensional_coded(const Problem& problem,
                                                   const Topology& topology) {
  const Topology& groups = topology.groups();
  const Codec& codec = *problem.codec;
  const std::uint64_t longest = longest_block(problem);
  const auto block = static_cast<double>(longest);
  const auto coded = static_cast<double>(codec.expected(longest));
  const CodedBlocks blocks(codec, longest, rooms_for_shards(topology));
  const Busiest busiest(topology, block, coded);
  const double collected = max_collected(groups), others = groups.hosts() - 1;
  Workload work;
  const bool alone = groups.max_ranks_per_host() == 1;
  if (!alone) (busiest.rank.far > 0 ? work.network_hops : work.shared_hops) += 1;
  (busiest.rank.far_coded > 0 ? work.network_hops : work.shared_hops) += 1;
  work.shared_messages = busiest.rank.near;
  work.network_messages = busiest.rank.far;
  work.shared_bytes = busiest.rank.near * block + busiest.rank.near_coded * coded;
  work.network_bytes = busiest.rank.far * block + busiest.rank.far_coded * coded;
  work.wire_bytes = busiest.wire_bytes;
  work.turns = blocks.count(longest);
  work.coded_messages = (collected + others) * work.turns;
  work.coding_seconds = collected * block / codec.bytes_per_second() +
                        others * block / codec.added_bytes_per_second();
  work.incast = busiest.rank.far > 1 || (busiest.rank.far_coded > 0 && others > 1);
  work.copied_bytes = problem.average ? block : 0;  // divided
  work.message_bytes = block;
  return work;
}

}  // namespace

const Algorithm reduce_scatter_two_dimensional_coded{Kind::kReduceScatter,
                                                     "two_dimensional_coded",
                                                     reduce_scatter_two_dimensional_coded_unfit,
                                                     build_reduce_scatter_two_dimensional_coded,
                                                     work_reduce_scatter_two_dimensional_coded,
                                                     true};

}  // namespace taco::pg::algorithms
