// all_gather among equals: direct, round a ring, and Bruck's.
//
// Direct: everybody sends its block to everybody. One hop; inside a host a block is staged once for
// all readers.
//
// Ring: world - 1 rounds in the order of the hosts; each link carries every block once.
//
// Bruck, for short blocks and many ranks: log2(world) rounds. A rank keeps the blocks it knows, its
// own first and then its successors', in one run of scratch memory. In round k it sends the first
// 2^k of them to the rank 2^k before it and receives the next 2^k from the rank 2^k after it.
#include "pg/algorithms/list.h"
#include "pg/algorithms/phases.h"
#include "pg/algorithms/shape.h"

namespace taco::pg::algorithms {

namespace {

void build_all_gather_direct(ScheduleBuilder& builder, const Topology& topology) {
  const Team team = whole_world(builder.rank(), builder.world());
  const Slice own = builder.input();
  builder.copy(builder.output(team.me), own);
  const Slice source = detached(builder, own, topology.hosts() > 1);
  direct_all_gather(builder, team,
                    [&](int place) { return place == team.me ? source : builder.output(place); });
}

void build_all_gather_ring(ScheduleBuilder& builder, const Topology& topology) {
  const Team team{topology.host_order(), topology.position_of(builder.rank())};
  // Sent from where it is: the cable does not wait for the copy.
  ring_all_gather(builder, team, [&](int place) {
    return place == team.me ? builder.input() : builder.output(team.ranks[place]);
  });
  builder.copy(builder.output(builder.rank()), builder.input());
}

constexpr std::uint64_t kLongestRun = 16 << 20;

const char* bruck_unfit(const Problem& problem, const Topology& topology) {
  return problem.total(topology.world()) > kLongestRun ? "it needs a second copy of all blocks"
                                                       : nullptr;
}

void build_all_gather_bruck(ScheduleBuilder& builder, const Topology&) {
  const Team team = whole_world(builder.rank(), builder.world());
  // offsets[d]: where the block of the rank d places on begins in the run.
  std::vector<std::uint64_t> offsets{0};
  for (int distance = 0; distance < team.size(); ++distance) {
    offsets.push_back(offsets.back() + builder.output(team.place(distance)).bytes);
  }
  const Slice run = builder.scratch(offsets.back());
  const auto blocks = [&](int first, int count) {
    return run.part(offsets[first], offsets[first + count] - offsets[first]);
  };
  builder.copy(blocks(0, 1), builder.input());
  builder.copy(builder.output(team.me), builder.input());
  for (int known = 1; known < team.size(); known *= 2) {
    const int count = std::min(known, team.size() - known);
    builder.send(blocks(0, count), team.peer(-known));
    builder.receive(blocks(known, count), team.peer(known));
    for (int distance = known; distance < known + count; ++distance) {
      builder.copy(builder.output(team.place(distance)), blocks(distance, 1));
    }
  }
}

Workload work_all_gather_direct(const Problem& problem, const Topology& topology) {
  const Shape shape(topology);
  const auto block = static_cast<double>(longest_block(problem));
  Workload work;
  shape.exchange(work, (1 + shape.near) * block, 2 * shape.far * block);
  work.copied_bytes = block;
  work.wire_bytes = shape.local * shape.far * block;
  work.message_bytes = block;
  return work;
}

Workload work_all_gather_ring(const Problem& problem, const Topology& topology) {
  Workload work = ring_work(topology, 1, static_cast<double>(longest_block(problem)));
  work.copied_bytes = static_cast<double>(longest_block(problem));
  return work;
}

Workload work_all_gather_bruck(const Problem& problem, const Topology& topology) {
  const Shape shape(topology);
  const auto block = static_cast<double>(longest_block(problem));
  const double rounds = rounds_for(shape.world);
  Workload work;
  work.copied_bytes = (shape.world + 1) * block;
  work.message_bytes = shape.world / 2 * block;
  if (shape.across) {
    work.network_hops = rounds;
    work.network_messages = 2 * rounds;
    work.network_bytes = 2 * (shape.world - 1) * block;
    work.wire_bytes = shape.local * shape.far * block;
  } else {
    work.shared_hops = rounds;
    work.shared_messages = 2 * rounds;
    work.shared_bytes = 2 * (shape.world - 1) * block;
  }
  return work;
}

}  // namespace

const Algorithm all_gather_direct{Kind::kAllGather, "direct", always_fit, build_all_gather_direct,
                                  work_all_gather_direct};
const Algorithm all_gather_ring{Kind::kAllGather, "ring", always_fit, build_all_gather_ring,
                                work_all_gather_ring};
const Algorithm all_gather_bruck{Kind::kAllGather, "bruck", bruck_unfit, build_all_gather_bruck,
                                 work_all_gather_bruck};

}  // namespace taco::pg::algorithms
