// How algorithms write a Schedule: as a plain sequential program, one call a step, in an order that
// all ranks share. The builder finds the dependencies itself, from which bytes each step reads and
// writes, so that an algorithm cannot forget one; cuts long steps into chunks, so that receive,
// reduce and forward overlap; numbers the channels; and leaves out steps over zero bytes.
//
// Because a send keeps reading until it is acknowledged, a later step that writes the same bytes
// waits for it. An algorithm that wants no such wait names a scratch slice.
//
// Where the input is to be scaled first (kPremulSum), algorithms need not know: whatever reads the
// caller's input gets it scaled, chunk by chunk, in its destination where it has one, else in a
// ring of scratch memory that does not grow with the message.
//
// One thread; lives for one schedule.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "pg/planning/schedule.h"

namespace taco::pg {

// A message, or a block in coded form, whose length is known only when the schedule runs.
struct VariableSlice {
  Slice room;                // for the most that it may be
  std::uint32_t length = 0;  // into Schedule::lengths
};

class ScheduleBuilder {
 public:
  // Steps longer than `chunk` bytes are cut; both ends of a message must agree on it.
  ScheduleBuilder(const Problem& problem, int rank, int world, std::uint64_t chunk);

  int rank() const { return rank_; }
  int world() const { return world_; }
  const Problem& problem() const { return problem_; }

  std::uint64_t chunk() const { return chunk_; }

  // This rank's contribution `piece`.
  Slice input(std::uint32_t piece = 0) const;
  Slice output(std::uint32_t piece = 0) const;
  Slice scratch(std::uint64_t bytes);  // fresh, 64-byte aligned
  // A part of this rank's shard of the gradient (pg/algorithms/gradient_shard.h), for encode().
  static Slice residual(std::uint64_t offset, std::uint64_t bytes) {
    return {offset, bytes, 0, Space::kResidual};
  }

  void send(const Slice& source, int peer) { send(source, std::span<const int>(&peer, 1)); }
  void send(const Slice& source, std::span<const int> peers);
  void receive(const Slice& destination, int peer);
  // destination = own (op) incoming.
  void receive_reduce(const Slice& destination, const Slice& own, int peer);
  void copy(const Slice& destination, const Slice& source);  // nothing when they are the same
  // destination = left (op) right.
  void reduce(const Slice& destination, const Slice& left, const Slice& right);
  // The last step of an average over `sum`; nothing for other reductions.
  void finish_reduction(const Slice& sum);

  // A length that is known only when the schedule runs; `expected` is what to reckon with until
  // then. A sender into the slice may send less than it has room for; steps that use it are not
  // cut.
  VariableSlice variable(const Slice& room, std::uint64_t expected);
  // For a block of so many bytes, coded by the problem's codec: scratch memory of its own, or the
  // first part of `room`, which another block may have had before.
  VariableSlice coded(std::uint64_t bytes);
  VariableSlice coded(const Slice& room, std::uint64_t bytes);
  void send(const VariableSlice& source, int peer) { send(source, std::span<const int>(&peer, 1)); }
  void send(const VariableSlice& source, std::span<const int> peers);
  void receive(const VariableSlice& destination, int peer);
  // With `residual`, as long as the block, where the codec has a memory.
  void encode(const VariableSlice& destination, const Slice& block, const Slice& residual = {});
  // `divided`: what is decoded, as by finish_reduction(); only where the codec has a memory. It
  // knows which few elements there are, and finish_reduction() would go over all of them.
  void decode(const Slice& block, const VariableSlice& source, bool divided = false);
  // block = block (op) coded incoming, as it arrives, from who has sent a block in coded form. Only
  // where the codec can (Codec::arrival).
  void receive_coded(const Slice& block, int peer);
  bool codes_each_element() const;
  // block = own (op) decoded.
  void decode_reduce(const Slice& block, const Slice& own, const VariableSlice& source,
                     bool divided = false);

  // Empty messages, for barriers: a signal leaves after every await() before it is satisfied.
  void signal(int peer) { signal(std::span<const int>(&peer, 1)); }
  void signal(std::span<const int> peers);
  void await(int peer);

  Schedule finish(const char* algorithm);

 private:
  // The last uses of a run of bytes: the step that wrote it, and those that read it since.
  struct Use {
    std::uint64_t end = 0;
    std::int64_t writer = -1;
    std::vector<std::uint32_t> readers;
  };
  using Region = std::uint64_t;  // space and piece, aliases folded together

  bool unscaled(const Slice& slice) const {
    return problem_.premultiply && slice.space == Space::kInput;
  }
  Slice scaled(const Slice& part);
  std::uint64_t length_of(Space space, std::uint32_t piece) const;
  Region region_of(const Slice& slice) const;
  bool same_place(const Slice& a, const Slice& b) const;
  std::uint64_t part_length(std::uint64_t bytes) const;
  template <class Emit>
  void in_parts(std::uint64_t bytes, Emit emit);

  std::uint32_t append(StepKind kind, const Slice& destination, const Slice& source,
                       const Slice& operand);
  Step& append_variable(StepKind kind, const Slice& destination, const Slice& source,
                        const Slice& operand, std::uint32_t length);
  bool divides(bool divided) const;
  void add_sends(std::span<const int> peers);
  void add_receive(int peer);
  void add_transfer(int peer, std::vector<std::uint32_t>& next_channel);
  void split_at(Region region, std::uint64_t offset);
  template <class Visit>
  void for_uses(const Slice& slice, Visit visit);
  void note_read(std::uint32_t step, const Slice& slice);
  void note_write(std::uint32_t step, const Slice& slice);
  void depend(std::uint32_t step, std::int64_t on);
  void resolve_dependencies(std::uint32_t step);

  const Problem& problem_;
  const int rank_;
  const int world_;
  const std::uint64_t chunk_;  // a multiple of 64

  Schedule schedule_;
  std::map<std::pair<Region, std::uint64_t>, Use> uses_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> edges_;  // (earlier, later)
  std::vector<std::uint32_t> pending_;                          // dependencies of the newest step
  std::vector<std::uint32_t> send_channel_, receive_channel_;   // next, by peer
  std::vector<std::uint32_t> awaits_;
  Slice ring_;                   // for scaled input on its way; empty until needed
  std::uint64_t ring_next_ = 0;  // where the next part of it starts
};

}  // namespace taco::pg
