#include "pg/planning/schedule_builder.h"

#include <algorithm>

#include "base/assert.h"
#include "pg/codec.h"

namespace taco::pg {

namespace {
constexpr std::uint64_t kAlignment = 64;
// Scaled input that may wait to be sent: enough for all sends that a fast network has under way,
// little enough to stay in the caches until they have been made.
constexpr std::uint64_t kMaxScaled = 8 << 20;

std::uint64_t round_up(std::uint64_t value, std::uint64_t to) { return (value + to - 1) / to * to; }
}  // namespace

ScheduleBuilder::ScheduleBuilder(const Problem& problem, int rank, int world, std::uint64_t chunk)
    : problem_(problem),
      rank_(rank),
      world_(world),
      chunk_(std::max(round_up(chunk, kAlignment), kAlignment)),
      send_channel_(world, 0),
      receive_channel_(world, 0) {}

// A part of the input, no longer than a chunk, scaled into the ring. A step that still reads what
// was there before, or sends it, comes first. That cannot stop the world: it is one more limit to
// the sends open at a time, which the schedules of all ranks keep in one order.
Slice ScheduleBuilder::scaled(const Slice& part) {
  if (ring_.bytes == 0) {
    std::uint64_t whole = 0;
    const int pieces = problem_.kind == Kind::kReduceScatter ? world_ : 1;
    for (int piece = 0; piece < pieces; ++piece) {
      whole += round_up(length_of(Space::kInput, piece), kAlignment);
    }
    ring_ = scratch(std::max(std::min(whole, kMaxScaled), round_up(part.bytes, kAlignment)));
  }
  if (ring_next_ + part.bytes > ring_.bytes) ring_next_ = 0;
  const Slice to = ring_.part(ring_next_, part.bytes);
  ring_next_ += round_up(part.bytes, kAlignment);
  append(StepKind::kScale, to, part, {});
  return to;
}

std::uint64_t ScheduleBuilder::length_of(Space space, std::uint32_t piece) const {
  const bool is_input = space == Space::kInput;
  switch (problem_.kind) {
    case Kind::kAllGather:
    case Kind::kGather:
      return problem_.block(is_input ? rank_ : static_cast<int>(piece));
    case Kind::kReduceScatter:
    case Kind::kScatter:
      return problem_.block(is_input ? static_cast<int>(piece) : rank_);
    case Kind::kAllToAll:
      if (problem_.equal_splits) return problem_.bytes;
      return is_input ? problem_.send_blocks[piece] : problem_.receive_blocks[piece];
    default:
      return problem_.bytes;
  }
}

Slice ScheduleBuilder::input(std::uint32_t piece) const {
  return {0, length_of(Space::kInput, piece), piece, Space::kInput};
}

Slice ScheduleBuilder::output(std::uint32_t piece) const {
  return {0, length_of(Space::kOutput, piece), piece, Space::kOutput};
}

Slice ScheduleBuilder::scratch(std::uint64_t bytes) {
  const Slice slice{schedule_.scratch_bytes, bytes, 0, Space::kScratch};
  schedule_.scratch_bytes += round_up(bytes, kAlignment);
  return slice;
}

// Both ends of a message must cut it alike, so the cut depends on its length and the chunk only.
std::uint64_t ScheduleBuilder::part_length(std::uint64_t bytes) const {
  const std::uint64_t parts = (bytes + chunk_ - 1) / chunk_;
  return round_up((bytes + parts - 1) / parts, kAlignment);
}

template <class Emit>
void ScheduleBuilder::in_parts(std::uint64_t bytes, Emit emit) {
  if (bytes == 0) return;
  const std::uint64_t length = part_length(bytes);
  for (std::uint64_t offset = 0; offset < bytes; offset += length) {
    emit(offset, std::min(length, bytes - offset));
  }
}

void ScheduleBuilder::send(const Slice& source, std::span<const int> peers) {
  if (peers.empty()) return;
  in_parts(source.bytes, [&](std::uint64_t offset, std::uint64_t length) {
    const Slice part = source.part(offset, length);
    append(StepKind::kSend, {}, unscaled(source) ? scaled(part) : part, {});
    add_sends(peers);
  });
}

void ScheduleBuilder::receive(const Slice& destination, int peer) {
  in_parts(destination.bytes, [&](std::uint64_t offset, std::uint64_t length) {
    append(StepKind::kRecv, destination.part(offset, length), {}, {});
    add_receive(peer);
  });
}

void ScheduleBuilder::receive_reduce(const Slice& destination, const Slice& own, int peer) {
  TACO_ASSERT(destination.bytes == own.bytes);
  in_parts(destination.bytes, [&](std::uint64_t offset, std::uint64_t length) {
    const Slice to = destination.part(offset, length);
    Slice operand = own.part(offset, length);
    if (unscaled(own)) {
      append(StepKind::kScale, to, operand, {});
      operand = to;
    }
    append(StepKind::kRecvReduce, to, operand, {});
    add_receive(peer);
  });
}

void ScheduleBuilder::copy(const Slice& destination, const Slice& source) {
  TACO_ASSERT(destination.bytes == source.bytes);
  const StepKind kind = unscaled(source) ? StepKind::kScale : StepKind::kCopy;
  if (kind == StepKind::kCopy && same_place(destination, source)) return;
  in_parts(source.bytes, [&](std::uint64_t offset, std::uint64_t length) {
    append(kind, destination.part(offset, length), source.part(offset, length), {});
  });
}

void ScheduleBuilder::reduce(const Slice& destination, const Slice& left, const Slice& right) {
  TACO_ASSERT(destination.bytes == left.bytes && left.bytes == right.bytes);
  in_parts(destination.bytes, [&](std::uint64_t offset, std::uint64_t length) {
    const auto operand = [&](const Slice& whole) {
      const Slice part = whole.part(offset, length);
      return unscaled(whole) ? scaled(part) : part;
    };
    const Slice first = operand(left), second = operand(right);
    append(StepKind::kReduce, destination.part(offset, length), first, second);
  });
}

void ScheduleBuilder::finish_reduction(const Slice& sum) {
  if (!problem_.average) return;
  in_parts(sum.bytes, [&](std::uint64_t offset, std::uint64_t length) {
    append(StepKind::kDivide, sum.part(offset, length), sum.part(offset, length), {});
  });
}

VariableSlice ScheduleBuilder::variable(const Slice& room, std::uint64_t expected) {
  schedule_.lengths.push_back(expected);
  return {room, static_cast<std::uint32_t>(schedule_.lengths.size() - 1)};
}

VariableSlice ScheduleBuilder::coded(std::uint64_t bytes) {
  return coded(bytes == 0 ? Slice{} : scratch(problem_.codec->most(bytes)), bytes);
}

VariableSlice ScheduleBuilder::coded(const Slice& room, std::uint64_t bytes) {
  const Codec& codec = *problem_.codec;
  schedule_.coded_bytes_per_second = codec.bytes_per_second();
  schedule_.decoded_bytes_per_second = codec.decoded_bytes_per_second();
  schedule_.added_bytes_per_second = codec.added_bytes_per_second();
  if (bytes == 0) return variable({}, 0);
  TACO_ASSERT(codec.most(bytes) <= room.bytes);
  return variable(room.part(0, codec.most(bytes)), codec.expected(bytes));
}

// A step that goes by a length reads the slice whose length it is, and a step that finds it out
// writes that: so the order of these steps needs no care of its own.
Step& ScheduleBuilder::append_variable(StepKind kind, const Slice& destination, const Slice& source,
                                       const Slice& operand, std::uint32_t length) {
  Step& step = schedule_.steps[append(kind, destination, source, operand)];
  step.length = length;
  return step;
}

void ScheduleBuilder::send(const VariableSlice& source, std::span<const int> peers) {
  if (peers.empty() || source.room.bytes == 0) return;
  append_variable(StepKind::kSend, {}, source.room, {}, source.length);
  add_sends(peers);
}

void ScheduleBuilder::receive(const VariableSlice& destination, int peer) {
  if (destination.room.bytes == 0) return;
  append_variable(StepKind::kRecv, destination.room, {}, {}, destination.length);
  add_receive(peer);
}

void ScheduleBuilder::encode(const VariableSlice& destination, const Slice& block,
                             const Slice& residual) {
  TACO_ASSERT(residual.bytes == 0 || residual.bytes == block.bytes);
  if (destination.room.bytes == 0) return;
  Slice from = block;
  if (unscaled(block)) {
    from = scratch(block.bytes);
    copy(from, block);
  }
  append_variable(StepKind::kEncode, destination.room, from, residual, destination.length);
}

bool ScheduleBuilder::divides(bool divided) const {
  TACO_ASSERT(!divided || problem_.codec->has_memory());
  return divided && problem_.average;
}

void ScheduleBuilder::decode(const Slice& block, const VariableSlice& source, bool divided) {
  if (source.room.bytes == 0) return;
  append_variable(StepKind::kDecode, block, source.room, {}, source.length).divides =
      divides(divided);
}

bool ScheduleBuilder::codes_each_element() const {
  return problem_.codec->arrival().coded_bytes > 0;
}

void ScheduleBuilder::receive_coded(const Slice& block, int peer) {
  TACO_ASSERT(codes_each_element());
  if (block.bytes == 0) return;
  const std::uint64_t coded = problem_.codec->most(block.bytes);
  append_variable(StepKind::kRecvReduce, block, block, {}, variable(block, coded).length);
  add_receive(peer);
}

void ScheduleBuilder::decode_reduce(const Slice& block, const Slice& own,
                                    const VariableSlice& source, bool divided) {
  TACO_ASSERT(block.bytes == own.bytes);
  if (source.room.bytes == 0) return;
  Slice operand = own;
  if (unscaled(own)) {
    copy(block, own);
    operand = block;
  }
  append_variable(StepKind::kDecodeReduce, block, source.room, operand, source.length).divides =
      divides(divided);
}

void ScheduleBuilder::signal(std::span<const int> peers) {
  if (peers.empty()) return;
  pending_.assign(awaits_.begin(), awaits_.end());
  append(StepKind::kSend, {}, {}, {});
  add_sends(peers);
}

void ScheduleBuilder::await(int peer) {
  awaits_.push_back(append(StepKind::kRecv, {}, {}, {}));
  add_receive(peer);
}

// Adds sends to the newest step.
void ScheduleBuilder::add_sends(std::span<const int> peers) {
  for (const int peer : peers) add_transfer(peer, send_channel_);
  schedule_.sends += static_cast<std::uint32_t>(peers.size());
}

void ScheduleBuilder::add_receive(int peer) {
  add_transfer(peer, receive_channel_);
  ++schedule_.receives;
}

void ScheduleBuilder::add_transfer(int peer, std::vector<std::uint32_t>& next_channel) {
  TACO_ASSERT(peer != rank_ && peer >= 0 && peer < world_);
  Step& step = schedule_.steps.back();
  if (step.transfers == 0) {
    step.first_transfer = static_cast<std::uint32_t>(schedule_.transfers.size());
  }
  ++step.transfers;
  schedule_.transfers.push_back({peer, next_channel[peer]++});
}

std::uint32_t ScheduleBuilder::append(StepKind kind, const Slice& destination, const Slice& source,
                                      const Slice& operand) {
  const auto index = static_cast<std::uint32_t>(schedule_.steps.size());
  Step step;
  step.kind = kind;
  step.destination = destination;
  step.source = source;
  step.operand = operand;
  schedule_.steps.push_back(step);
  // Reads first: a step may write what it reads.
  note_read(index, source);
  note_read(index, operand);
  note_write(index, destination);
  if (operand.space == Space::kResidual) note_write(index, operand);
  resolve_dependencies(index);
  return index;
}

ScheduleBuilder::Region ScheduleBuilder::region_of(const Slice& slice) const {
  auto name = [](Space space, std::uint32_t piece) {
    return (static_cast<std::uint64_t>(space) << 32) | piece;
  };
  const auto rank = static_cast<std::uint32_t>(rank_);
  if (!problem_.in_place || slice.space != Space::kInput) return name(slice.space, slice.piece);
  switch (problem_.kind) {
    case Kind::kAllReduce:
    case Kind::kReduce:
      return name(Space::kOutput, 0);
    case Kind::kAllGather:
    case Kind::kGather:
      return name(Space::kOutput, rank);
    case Kind::kReduceScatter:
    case Kind::kScatter:
      if (slice.piece == rank) return name(Space::kOutput, 0);
      break;
    default:
      break;
  }
  return name(slice.space, slice.piece);
}

bool ScheduleBuilder::same_place(const Slice& a, const Slice& b) const {
  return region_of(a) == region_of(b) && a.offset == b.offset;
}

// Makes `offset` a border between two uses, if it lies inside one.
void ScheduleBuilder::split_at(Region region, std::uint64_t offset) {
  auto after = uses_.upper_bound({region, offset});
  if (after == uses_.begin()) return;
  auto at = std::prev(after);
  if (at->first.first != region || at->first.second == offset || at->second.end <= offset) return;
  Use tail = at->second;
  at->second.end = offset;
  uses_.emplace_hint(after, std::pair(region, offset), std::move(tail));
}

// Visits the uses that make up `slice` exactly, making the missing ones.
template <class Visit>
void ScheduleBuilder::for_uses(const Slice& slice, Visit visit) {
  if (slice.bytes == 0) return;
  const Region region = region_of(slice);
  const std::uint64_t end = slice.offset + slice.bytes;
  split_at(region, slice.offset);
  split_at(region, end);
  std::uint64_t offset = slice.offset;
  auto at = uses_.lower_bound({region, offset});
  while (offset < end) {
    if (at == uses_.end() || at->first.first != region || at->first.second > offset) {
      const bool bounded = at != uses_.end() && at->first.first == region;
      Use fresh;
      fresh.end = bounded ? std::min(at->first.second, end) : end;
      at = uses_.emplace_hint(at, std::pair(region, offset), std::move(fresh));
    }
    visit(at->second);
    offset = at->second.end;
    ++at;
  }
}

void ScheduleBuilder::note_read(std::uint32_t step, const Slice& slice) {
  for_uses(slice, [&](Use& use) {
    depend(step, use.writer);
    use.readers.push_back(step);
  });
}

void ScheduleBuilder::note_write(std::uint32_t step, const Slice& slice) {
  for_uses(slice, [&](Use& use) {
    depend(step, use.writer);
    for (const std::uint32_t reader : use.readers) depend(step, reader);
    use.readers.clear();
    use.writer = step;
  });
}

void ScheduleBuilder::depend(std::uint32_t step, std::int64_t on) {
  if (on >= 0 && on != step) pending_.push_back(static_cast<std::uint32_t>(on));
}

void ScheduleBuilder::resolve_dependencies(std::uint32_t step) {
  std::sort(pending_.begin(), pending_.end());
  pending_.erase(std::unique(pending_.begin(), pending_.end()), pending_.end());
  for (const std::uint32_t on : pending_) edges_.emplace_back(on, step);
  schedule_.steps[step].dependencies = static_cast<std::uint32_t>(pending_.size());
  pending_.clear();
}

Schedule ScheduleBuilder::finish(const char* algorithm) {
  std::sort(edges_.begin(), edges_.end());
  schedule_.dependents.reserve(edges_.size());
  for (const auto& [earlier, later] : edges_) {
    Step& step = schedule_.steps[earlier];
    if (step.dependents++ == 0) {
      step.first_dependent = static_cast<std::uint32_t>(schedule_.dependents.size());
    }
    schedule_.dependents.push_back(later);
  }
  schedule_.algorithm = algorithm;
  return std::move(schedule_);
}

}  // namespace taco::pg
