// all_reduce, Rabenseifner: a reduce-scatter by recursive halving (in each round a rank exchanges
// half of what it still holds with a partner half the distance away), then an all-gather by
// recursive doubling along the same way back. Twice log2(world) rounds, and each rank sends the
// message about twice, as in a ring. Each part is summed by one rank only, so all end with the same
// bits. Worlds that are no power of two are folded first.
#include "pg/algorithms/fold.h"
#include "pg/algorithms/list.h"
#include "pg/algorithms/phases.h"
#include "pg/algorithms/shape.h"

namespace taco::pg::algorithms {

namespace {

const char* unfit(const Problem&, const Topology& topology) {
  return topology.world() < 4 ? "with fewer than four ranks it is no better than an exchange"
                              : nullptr;
}

void build(ScheduleBuilder& builder, const Topology&) {
  const Fold fold(builder.rank(), builder.world());
  const Slice result = builder.output();
  Slice own = builder.input();
  if (fold.sits_out()) {
    builder.send(own, fold.partner());
    return builder.receive(result, fold.partner());
  }
  if (fold.paired()) {
    builder.receive_reduce(result, own, fold.partner());
    own = result;
  }
  const Partition shards(result.bytes, fold.active(), builder.problem().element_bytes);
  int first = 0, count = fold.active();
  while (count > 1) {
    const int half = count / 2;
    const int other = fold.index() ^ half;
    const bool upper = (fold.index() & half) != 0;
    const int kept = upper ? first + half : first;
    const int given = upper ? first : first + half;
    builder.send(shards.of(own, given, half), fold.place_at(other));
    builder.receive_reduce(shards.of(result, kept, half), shards.of(own, kept, half),
                           fold.place_at(other));
    own = result;
    first = kept;
    count = half;
  }
  builder.finish_reduction(shards.of(result, first));
  for (; count < fold.active(); count *= 2) {
    const int other = fold.index() ^ count;
    const int theirs = first ^ count;
    builder.send(shards.of(result, first, count), fold.place_at(other));
    builder.receive(shards.of(result, theirs, count), fold.place_at(other));
    first = std::min(first, theirs);
  }
  if (fold.paired()) builder.send(result, fold.partner());
}

Work work(const Problem& problem, const Topology& topology) {
  const Shape shape(topology);
  const auto bytes = static_cast<double>(problem.bytes);
  const bool folded = !std::has_single_bit(static_cast<unsigned>(topology.world()));
  const double folds = folded ? 2 : 0;
  const double rounds = 2 * (rounds_for(shape.world) - (folded ? 1 : 0));
  const double near_rounds = rounds - (shape.across ? 2 * crossing_rounds(topology) : 0);
  const double far_share = shape.across ? 1 - shape.local / shape.world : 0;
  Work work;
  work.shared_hops = near_rounds + (shape.across ? 0 : folds);
  work.network_hops = rounds - near_rounds + (shape.across ? folds : 0);
  work.shared_messages = 2 * near_rounds + (shape.across ? 0 : folds);
  work.network_messages = 2 * (rounds - near_rounds) + (shape.across ? folds : 0);
  work.shared_bytes =
      4 * bytes * (1 - far_share) * (1 - 1 / shape.local) + (shape.across ? 0 : folds * bytes);
  work.network_bytes = 4 * bytes * far_share + (shape.across ? folds * bytes : 0);
  work.wire_bytes = shape.local * (2 * bytes * far_share + (shape.across ? folds / 2 * bytes : 0));
  work.message_bytes = bytes / std::max(1.0, rounds / 2);
  return work;
}

}  // namespace

const Algorithm all_reduce_rabenseifner{Kind::kAllReduce, "rabenseifner", unfit, build, work};

}  // namespace taco::pg::algorithms
