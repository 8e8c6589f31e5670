#include "support/schedule_memory.h"

#include <algorithm>
#include <cstring>

namespace taco::pg::testing {

Bytes garbage(std::uint64_t bytes, std::mt19937_64& random) {
  Bytes made(bytes);
  std::uint64_t state = random() | 1;
  for (std::uint64_t offset = 0; offset < bytes; offset += 8) {
    state = state * 0x9e3779b97f4a7c15 + 0x632be59bd9b4e019;
    const std::uint64_t word = state ^ (state >> 32);
    std::memcpy(made.data() + offset, &word, std::min<std::uint64_t>(8, bytes - offset));
  }
  return made;
}

ScheduleMemory::ScheduleMemory(const Problem& problem, int rank, int world,
                               std::uint64_t scratch_bytes, std::uint64_t residual_bytes,
                               std::mt19937_64& random) {
  const auto inputs = input_lengths(problem, rank, world);
  for (std::uint32_t piece = 0; piece < inputs.size(); ++piece) {
    input_buffer_.push_back(buffers_.size());
    buffers_.push_back(input_contents(rank, piece, inputs[piece]));
  }
  for (const std::uint64_t bytes : output_lengths(problem, rank, world)) {
    output_buffer_.push_back(buffers_.size());
    buffers_.push_back(garbage(bytes, random));
  }
  scratch_buffer_ = buffers_.size();
  buffers_.push_back(garbage(scratch_bytes, random));
  residual_buffer_ = buffers_.size();
  buffers_.emplace_back(residual_bytes);
  if (problem.kind == Kind::kBroadcast && rank == problem.root) {
    buffers_[output_buffer_[0]] = input_contents(rank, 0, problem.bytes);
  }
  if (problem.in_place) alias(problem, rank);
}

void ScheduleMemory::alias(const Problem& problem, int rank) {
  std::size_t input = 0, output = 0;
  switch (problem.kind) {
    case Kind::kAllReduce:
    case Kind::kReduce:
      break;
    case Kind::kAllGather:
      output = rank;
      break;
    case Kind::kGather:
      if (rank != problem.root) return;
      output = rank;
      break;
    case Kind::kReduceScatter:
      input = rank;
      break;
    case Kind::kScatter:
      if (rank != problem.root) return;
      input = rank;
      break;
    default:
      return;
  }
  buffers_[output_buffer_[output]] = buffers_[input_buffer_[input]];
  input_buffer_[input] = output_buffer_[output];
}

Place ScheduleMemory::place_of(const Slice& slice, const char** complaint) const {
  const Place nowhere{scratch_buffer_, 0, 0};
  Place place{scratch_buffer_, slice.offset, slice.bytes};
  if (slice.space == Space::kResidual) place.buffer = residual_buffer_;
  const std::vector<std::size_t>* pieces = nullptr;
  if (slice.space == Space::kInput) pieces = &input_buffer_;
  if (slice.space == Space::kOutput) pieces = &output_buffer_;
  if (pieces) {
    if (slice.bytes > 0 && slice.piece >= pieces->size()) {
      *complaint = "names a piece that does not exist";
      return nowhere;
    }
    if (slice.bytes > 0) place.buffer = (*pieces)[slice.piece];
  }
  if (place.bytes > 0 && place.offset + place.bytes > buffers_[place.buffer].size()) {
    *complaint = "reaches beyond its piece";
    return nowhere;
  }
  return place;
}

std::vector<Bytes> ScheduleMemory::outputs() const {
  std::vector<Bytes> outputs;
  for (const std::size_t buffer : output_buffer_) outputs.push_back(buffers_[buffer]);
  return outputs;
}

bool ScheduleMemory::has_written_input(int rank) const {
  for (std::size_t piece = 0; piece < input_buffer_.size(); ++piece) {
    const std::size_t buffer = input_buffer_[piece];
    if (buffer >= input_buffer_.size()) continue;  // aliased by an output
    const Bytes& now = buffers_[buffer];
    if (now != input_contents(rank, static_cast<std::uint32_t>(piece), now.size())) return true;
  }
  return false;
}

}  // namespace taco::pg::testing
