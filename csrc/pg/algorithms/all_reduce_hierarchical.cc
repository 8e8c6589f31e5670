// all_reduce, hierarchical, for short messages: each host's first rank reduces its host's operands
// in rank order, the first ranks exchange by recursive doubling, and give the result to their
// hosts. One message each way a rank inside a host, log2(hosts) rounds between hosts.
#include "pg/algorithms/exchange.h"
#include "pg/algorithms/list.h"
#include "pg/algorithms/phases.h"
#include "pg/algorithms/shape.h"

namespace taco::pg::algorithms {

namespace {

constexpr std::uint64_t kLongestPerHost = 1 << 20;

const char* all_reduce_hierarchical_unfit(const Problem& problem, const Topology& topology) {
  if (topology.max_ranks_per_host() == 1) return "no host has two ranks";
  return problem.bytes > kLongestPerHost ? "it needs a copy of the message for each rank of a host"
                                         : nullptr;
}

void build_all_reduce_hierarchical(ScheduleBuilder& builder, const Topology& topology) {
  const std::vector<int>& local = topology.ranks_of(topology.host_of(builder.rank()));
  const Slice own = builder.input(), result = builder.output();
  if (builder.rank() != local[0]) {
    builder.send(own, local[0]);
    return builder.receive(result, local[0]);
  }
  std::vector<Slice> operands;
  for (std::size_t i = 1; i < local.size(); ++i) {
    operands.push_back(builder.scratch(own.bytes));
    builder.receive(operands.back(), local[i]);
  }
  const Slice sum = builder.scratch(own.bytes);
  Slice left = own;
  for (const Slice& operand : operands) {
    builder.reduce(sum, left, operand);
    left = sum;
  }
  if (operands.empty()) builder.copy(sum, own);

  Team leaders;
  for (int host = 0; host < topology.hosts(); ++host) {
    leaders.ranks.push_back(topology.ranks_of(host)[0]);
  }
  leaders.me = topology.host_of(builder.rank());
  exchange_all_reduce(builder, leaders, sum, result);
  builder.send(result, std::span(local).subspan(1));
}

Workload work_all_reduce_hierarchical(const Problem& problem, const Topology& topology) {
  const Shape shape(topology);
  const auto bytes = static_cast<double>(problem.bytes);
  const bool folded = !std::has_single_bit(static_cast<unsigned>(topology.hosts()));
  const double rounds = rounds_for(shape.hosts) + (folded ? 1 : 0);
  Workload work;
  work.shared_hops = 2;
  work.network_hops = rounds;
  work.shared_messages = 2 * shape.near;
  work.network_messages = 2 * rounds;
  work.shared_bytes = (shape.near + 1) * bytes;
  work.network_bytes = work.network_messages * bytes;
  work.copied_bytes = 2 * bytes;
  work.reduced_bytes = (shape.near + rounds) * bytes;
  work.wire_bytes = rounds * bytes;
  work.message_bytes = bytes;
  return work;
}

}  // namespace

const Algorithm all_reduce_hierarchical{
    Kind::kAllReduce, "hierarchical", all_reduce_hierarchical_unfit, build_all_reduce_hierarchical,
    work_all_reduce_hierarchical};

}  // namespace taco::pg::algorithms
