// all_reduce, Rabenseifner: a reduce-scatter by recursive halving (in each round a rank exchanges
// half of what it still holds with a partner half the distance away), then an all-gather by
// recursive doubling along the same way back. Twice log2(world) rounds, and each rank sends the
// message about twice, as in a ring. Each part is summed by one rank only, so all end with the same
// bits. Worlds that are no power of two are folded first.
#include <cmath>

#include "pg/algorithms/fold.h"
#include "pg/algorithms/list.h"
#include "pg/algorithms/phases.h"
#include "pg/algorithms/shape.h"

namespace taco::pg::algorithms {

namespace {

const char* all_reduce_rabenseifner_unfit(const Problem&, const Topology& topology) {
  return topology.world() < 4 ? "with fewer than four ranks it is no better than an exchange"
                              : nullptr;
}

void build_all_reduce_rabenseifner(ScheduleBuilder& builder, const Topology&) {
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

Workload work_all_reduce_rabenseifner(const Problem& problem, const Topology& topology) {
  const auto bytes = static_cast<double>(problem.bytes);
  const bool folded = !std::has_single_bit(static_cast<unsigned>(topology.world()));
  const double rounds = depth_for(topology.world());
  const double folds = folded ? 2 : 0;
  const Crossing crossing = crossing_of(topology);
  const double far_folds = crossing.folds > 0 ? folds : 0;
  const double near_rounds = rounds - crossing.rounds;
  // Near rounds come last and so move the least; all rounds together move (A - 1) / A.
  const double near_share = std::exp2(near_rounds - rounds) - std::exp2(-rounds);
  const double far_share = 1 - std::exp2(near_rounds - rounds);
  Workload work;
  work.shared_hops = 2 * near_rounds + folds - far_folds;
  work.network_hops = 2 * crossing.rounds + far_folds;
  work.shared_messages = 4 * near_rounds + folds - far_folds;
  work.network_messages = 4 * crossing.rounds + far_folds;
  work.shared_bytes = (4 * near_share + folds - far_folds) * bytes;
  work.network_bytes = (4 * far_share + far_folds) * bytes;
  work.wire_bytes = (2 * crossing.halved + crossing.folds) * bytes;
  // Each round begins with what the one before delivers last.
  work.shared_relays = std::max(0.0, 2 * near_rounds - 1);
  work.network_relays = std::max(0.0, 2 * crossing.rounds - 1);
  work.in_turn = crossing.rounds > 1;
  work.message_bytes = bytes / std::max(1.0, rounds);
  return work;
}

}  // namespace

const Algorithm all_reduce_rabenseifner{
    Kind::kAllReduce, "rabenseifner", all_reduce_rabenseifner_unfit, build_all_reduce_rabenseifner,
    work_all_reduce_rabenseifner};

}  // namespace taco::pg::algorithms
