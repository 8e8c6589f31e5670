#include "support/coded_all_reduce.h"

#include <functional>
#include <vector>

#include "pg/algorithms/list.h"
#include "pg/algorithms/partition.h"
#include "pg/algorithms/shape.h"
#include "pg/codec.h"

namespace taco::pg::testing {

namespace {

const char* unfit(const Problem& problem, const Topology&) {
  if (problem.codec == nullptr) return "nothing may be coded";
  return problem.codec->has_memory() ? "its codec has a memory" : nullptr;
}

// One block of every shard.
void reduce_block(ScheduleBuilder& builder, const Team& team,
                  const std::function<Slice(const Slice&, int)>& block_of) {
  const Slice own = builder.input(), result = builder.output();
  const Slice mine = block_of(result, team.me);
  Slice left = block_of(own, team.me);
  for (int distance = 1; distance < team.size(); ++distance) {
    const Slice operand = block_of(own, team.place(distance));
    const VariableSlice outgoing = builder.coded(operand.bytes);
    builder.encode(outgoing, operand);
    builder.send(outgoing, team.peer(distance));
    const VariableSlice incoming = builder.coded(mine.bytes);
    builder.receive(incoming, team.peer(-distance));
    builder.decode_reduce(mine, left, incoming);
    left = mine;
  }
  builder.finish_reduction(mine);
  VariableSlice passed = builder.coded(mine.bytes);
  builder.encode(passed, mine);
  builder.decode(mine, passed);
  for (int round = 1; round < team.size(); ++round) {
    builder.send(passed, team.peer(1));
    const Slice next = block_of(result, team.place(-round));
    passed = builder.coded(next.bytes);
    builder.receive(passed, team.peer(-1));
    builder.decode(next, passed);
  }
}

void build(ScheduleBuilder& builder, const Topology&) {
  const Team team = whole_world(builder.rank(), builder.world());
  if (team.size() == 1) {
    builder.copy(builder.output(), builder.input());
    return builder.finish_reduction(builder.output());
  }
  const std::uint32_t element = builder.problem().element_bytes;
  const Partition shards(builder.output().bytes, team.size(), element);
  const int blocks = pieces_of(shards.longest(), builder.chunk());
  for (int block = 0; block < blocks; ++block) {
    reduce_block(builder, team, [&](const Slice& whole, int place) {
      const Slice shard = shards.of(whole, place);
      return Partition(shard.bytes, blocks, element).of(shard, block);
    });
  }
}

Workload work(const Problem& problem, const Topology& topology) {
  const Shape shape(topology);
  const double shard = static_cast<double>(problem.bytes) / shape.world;
  const auto coded =
      static_cast<double>(problem.codec->expected(static_cast<std::uint64_t>(shard)));
  Workload work = ring_work(topology, 1, coded);
  shape.exchange(work, 2 * shape.near * coded, 2 * shape.far * coded);
  work.wire_bytes += shape.local * shape.far * coded;
  work.message_bytes = shard;  // of which each part is coded on its own
  work.coding_seconds = (3 * shape.world - 1) * shard / problem.codec->bytes_per_second();
  return work;
}

}  // namespace

const Algorithm coded_all_reduce{Kind::kAllReduce, "coded", unfit, build, work, true};

Algorithms algorithms_and_coded() {
  static const std::vector<const Algorithm*> list = [] {
    std::vector<const Algorithm*> all(all_algorithms().begin(), all_algorithms().end());
    all.push_back(&coded_all_reduce);
    return all;
  }();
  return list;
}

}  // namespace taco::pg::testing
