// How algorithms with coded messages cut what they code, and where coded blocks lie meanwhile.
#pragma once

#include <vector>

#include "pg/codec.h"
#include "pg/planning/schedule_builder.h"

namespace taco::pg {

// How long blocks should be, in bytes of elements, of a part of a message that is coded on its own.
// `rooms`: how many coded blocks a rank has to do with in one turn. A function of what all ranks
// know.
struct CodedBlocks {
  std::uint64_t longest = 0;
  int turns_in_flight = 0;  // that have rooms of their own

  CodedBlocks(const Codec& codec, std::uint64_t part, int rooms);
  // Into how many blocks to cut the part.
  int count(std::uint64_t part) const;
};

// Scratch memory for coded blocks, used again and again: a block of which little is sent needs as
// much room as if all of it were.
class CodedRooms {
 public:
  // For blocks of at most `longest` bytes, `count` of them at a time.
  CodedRooms(ScheduleBuilder& builder, std::uint64_t longest, int count);
  // A step that still reads the room's last block, or sends it, comes before the one that writes
  // the new block.
  VariableSlice take(std::uint64_t bytes);
  // sum = left + the coded block that `peer` sends. The `first` one needs no room where the sum is
  // in its place already; the others must not wait for its end.
  void add(const Slice& sum, const Slice& left, int peer, bool first);

 private:
  ScheduleBuilder& builder_;
  std::vector<Slice> rooms_;
  std::size_t next_ = 0;
};

}  // namespace taco::pg
