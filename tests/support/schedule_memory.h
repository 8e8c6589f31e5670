// One rank's memory while the interpreter runs a schedule: the pieces of its inputs and outputs, as
// the problem says they are, and scratch; garbage wherever nothing has been written yet. Of what a
// codec keeps it knows the extent only.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "pg/planning/schedule.h"
#include "support/collective_reference.h"

namespace taco::pg::testing {

// Where a slice lies once aliases are resolved.
struct Place {
  std::size_t buffer = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  bool overlaps(const Place& other) const {
    return buffer == other.buffer && bytes > 0 && other.bytes > 0 &&
           offset < other.offset + other.bytes && other.offset < offset + bytes;
  }
};

Bytes garbage(std::uint64_t bytes, std::mt19937_64& random);

class ScheduleMemory {
 public:
  ScheduleMemory(const Problem& problem, int rank, int world, std::uint64_t scratch_bytes,
                 std::uint64_t residual_bytes, std::mt19937_64& random);

  // Where the slice lies; otherwise a complaint, and a place of no bytes.
  Place place_of(const Slice& slice, const char** complaint) const;
  std::uint8_t* data(const Place& place) { return buffers_[place.buffer].data() + place.offset; }

  std::vector<Bytes> outputs() const;
  // Is there an input, not aliased by an output, that is not what it was at first?
  bool has_written_input(int rank) const;

 private:
  void alias(const Problem& problem, int rank);

  std::vector<Bytes> buffers_;
  std::vector<std::size_t> input_buffer_, output_buffer_;  // by piece
  std::size_t scratch_buffer_ = 0, residual_buffer_ = 0;
};

}  // namespace taco::pg::testing
