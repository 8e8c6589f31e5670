// all_reduce, direct: everybody sends its whole message to everybody and reduces the world's
// messages itself, in rank order. One round, so it wins where latency is all; world - 1 messages a
// rank and as many copies of the message, so only for short ones.
#include "pg/algorithms/list.h"
#include "pg/algorithms/phases.h"
#include "pg/algorithms/shape.h"

namespace taco::pg::algorithms {

namespace {

constexpr std::uint64_t kLongest = 1 << 20;

const char* all_reduce_direct_unfit(const Problem& problem, const Topology&) {
  return problem.bytes > kLongest ? "it needs a copy of the message for each rank" : nullptr;
}

void build_all_reduce_direct(ScheduleBuilder& builder, const Topology&) {
  const Team team = whole_world(builder.rank(), builder.world());
  const Slice own = builder.input(), result = builder.output();
  if (team.size() == 1) {
    builder.copy(result, own);
    return builder.finish_reduction(result);
  }
  // The result may overwrite `own`, and peers still read what was sent: send a copy.
  std::vector<Slice> operands(team.size());
  for (Slice& operand : operands) operand = builder.scratch(own.bytes);
  builder.copy(operands[team.me], own);
  direct_all_gather(builder, team, [&](int place) { return operands[place]; });
  Slice left = operands[0];
  for (int rank = 1; rank < team.size(); ++rank) {
    builder.reduce(result, left, operands[rank]);
    left = result;
  }
  builder.finish_reduction(result);
}

Workload work_all_reduce_direct(const Problem& problem, const Topology& topology) {
  const Shape shape(topology);
  const auto bytes = static_cast<double>(problem.bytes);
  Workload work;
  shape.exchange(work, (1 + shape.near) * bytes, 2 * shape.far * bytes);
  work.copied_bytes = bytes;
  work.reduced_bytes = shape.world * bytes;
  work.wire_bytes = shape.local * shape.far * bytes;
  work.message_bytes = bytes;
  return work;
}

}  // namespace

const Algorithm all_reduce_direct{Kind::kAllReduce, "direct", all_reduce_direct_unfit,
                                  build_all_reduce_direct, work_all_reduce_direct};

}  // namespace taco::pg::algorithms
