#include "pg/algorithms/exchange.h"

#include "pg/algorithms/fold.h"

namespace taco::pg {

namespace {

// Three sums: one being sent, one being made, one whose send may still lack its acknowledgement.
struct Buffers {
  Slice sums[3];
  Slice incoming[2];
  int next_sum = 0, next_incoming = 0;

  Buffers(ScheduleBuilder& builder, std::uint64_t bytes) {
    for (Slice& slice : sums) slice = builder.scratch(bytes);
    for (Slice& slice : incoming) slice = builder.scratch(bytes);
  }
  Slice take_sum() { return sums[next_sum++ % 3]; }
  Slice take_incoming() { return incoming[next_incoming++ % 2]; }
};

}  // namespace

void exchange_all_reduce(ScheduleBuilder& builder, const Team& team, const Slice& own,
                         const Slice& result) {
  const Fold fold(team.me, team.size());
  const auto rank_at = [&](int index) { return team.ranks[fold.place_at(index)]; };
  if (fold.sits_out()) {
    builder.send(own, team.ranks[fold.partner()]);
    return builder.receive(result, team.ranks[fold.partner()]);
  }
  Buffers buffers(builder, result.bytes);
  Slice sum = buffers.take_sum();
  if (fold.paired()) {
    const Slice incoming = buffers.take_incoming();
    builder.receive(incoming, team.ranks[fold.partner()]);
    builder.reduce(sum, own, incoming);
  } else {
    builder.copy(sum, own);
  }
  for (int mask = 1; mask < fold.active(); mask *= 2) {
    const int other = fold.index() ^ mask;
    const Slice incoming = buffers.take_incoming();
    const Slice next = buffers.take_sum();
    builder.send(sum, rank_at(other));
    builder.receive(incoming, rank_at(other));
    if (fold.index() < other) {
      builder.reduce(next, sum, incoming);
    } else {
      builder.reduce(next, incoming, sum);
    }
    sum = next;
  }
  builder.finish_reduction(sum);
  if (fold.paired()) builder.send(sum, team.ranks[fold.partner()]);
  builder.copy(result, sum);
}

}  // namespace taco::pg
