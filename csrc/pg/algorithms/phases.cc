#include "pg/algorithms/phases.h"

namespace taco::pg {

void ring_reduce_scatter(ScheduleBuilder& builder, const Team& team, const Shards& own,
                         const Shards& sum) {
  if (team.size() == 1) return builder.copy(sum(0), own(0));
  for (int round = 0; round + 1 < team.size(); ++round) {
    const int outgoing = team.place(-round - 1);
    const int incoming = (outgoing + team.size() - 1) % team.size();
    builder.send(round == 0 ? own(outgoing) : sum(outgoing), team.peer(1));
    builder.receive_reduce(sum(incoming), own(incoming), team.peer(-1));
  }
}

void ring_all_gather(ScheduleBuilder& builder, const Team& team, const Shards& data) {
  for (int round = 0; round + 1 < team.size(); ++round) {
    const int outgoing = team.place(-round);
    const int incoming = (outgoing + team.size() - 1) % team.size();
    builder.send(data(outgoing), team.peer(1));
    builder.receive(data(incoming), team.peer(-1));
  }
}

void direct_reduce_scatter(ScheduleBuilder& builder, const Team& team, const Shards& own,
                           const Slice& sum, int turn) {
  const int others = team.size() - 1;
  if (others == 0) return builder.copy(sum, own(0));
  Slice left = own(team.me);
  for (int step = 0; step < others; ++step) {
    const int distance = 1 + (step + turn) % others;
    builder.send(own(team.place(distance)), team.peer(distance));
    builder.receive_reduce(sum, left, team.peer(-distance));
    left = sum;
  }
}

// Chunk by chunk: a peer that receives from several places must not wait for the last chunk of one
// of them while another, for want of an acknowledgement, cannot send its next.
void direct_all_gather(ScheduleBuilder& builder, const Team& team, const Shards& data) {
  std::uint64_t longest = 0;
  for (int place = 0; place < team.size(); ++place) {
    longest = std::max(longest, data(place).bytes);
  }
  const int chunks = pieces_of(longest, builder.chunk());
  const std::vector<int> others = team.others();
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const auto piece = [&](int place) {
      const Slice shard = data(place);
      return Partition(shard.bytes, chunks, builder.problem().element_bytes).of(shard, chunk);
    };
    builder.send(piece(team.me), others);
    for (int distance = 1; distance < team.size(); ++distance) {
      builder.receive(piece(team.place(-distance)), team.peer(-distance));
    }
  }
}

Slice detached(ScheduleBuilder& builder, const Slice& source, bool crosses_hosts) {
  constexpr std::uint64_t kSmall = 64 << 10;
  if (!crosses_hosts || source.bytes > kSmall || source.space == Space::kScratch) return source;
  const Slice copy = builder.scratch(source.bytes);
  builder.copy(copy, source);
  return copy;
}

}  // namespace taco::pg
