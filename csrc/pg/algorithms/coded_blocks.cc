#include "pg/algorithms/coded_blocks.h"

#include <algorithm>

#include "pg/algorithms/partition.h"

namespace taco::pg {

namespace {

// A coded message should fill one super-packet (pg/planning/cost_model.cc), so that the wire is
// busy while the next block is coded; but a short part is cut too, so that coding and wire overlap,
// unless its messages would be shorter than this.
constexpr double kMessage = 62'400, kShortestMessage = 8 << 10;
constexpr std::uint64_t kOverlapping = 4;
constexpr std::uint64_t kMaxBlocks = 512;  // of one part, unless the codec wants more
constexpr std::uint64_t kMaxRooms = 32 << 20;
constexpr std::uint64_t kFewestInFlight = 2, kMaxInFlight = 8;
constexpr std::uint64_t kBlockAlignment = 64;

}  // namespace

CodedBlocks::CodedBlocks(const Codec& codec, std::uint64_t part, int rooms) {
  const std::uint64_t sample = std::min<std::uint64_t>(codec.longest_block(), 1 << 20);
  const double share = static_cast<double>(std::max<std::uint64_t>(codec.expected(sample), 1)) /
                       static_cast<double>(sample);
  const double overlapping = std::max(static_cast<double>(part) / kOverlapping,  //
                                      kShortestMessage / share);
  auto block = static_cast<std::uint64_t>(std::min(kMessage / share, overlapping));
  block = std::max(block, part / kMaxBlocks);
  const auto each = static_cast<std::uint64_t>(std::max(rooms, 1));
  block = std::min(block, kMaxRooms / (kFewestInFlight * each));
  block = std::min({block, codec.longest_block(), part + kBlockAlignment - 1});
  longest = std::max(block / kBlockAlignment, std::uint64_t{1}) * kBlockAlignment;
  const std::uint64_t fitting = kMaxRooms / (codec.most(longest) * each);
  turns_in_flight =
      std::min(count(part), static_cast<int>(std::clamp(fitting, kFewestInFlight, kMaxInFlight)));
}

int CodedBlocks::count(std::uint64_t part) const { return pieces_of(part, longest); }

CodedRooms::CodedRooms(ScheduleBuilder& builder, std::uint64_t longest, int count)
    : builder_(builder) {
  const std::uint64_t bytes = builder.problem().codec->most(longest);
  for (int room = 0; room < count; ++room) rooms_.push_back(builder.scratch(bytes));
}

VariableSlice CodedRooms::take(std::uint64_t bytes) {
  if (bytes == 0) return builder_.coded({}, 0);
  return builder_.coded(rooms_[next_++ % rooms_.size()], bytes);
}

void CodedRooms::add(const Slice& sum, const Slice& left, int peer, bool first) {
  if (first && left == sum && builder_.codes_each_element()) {
    return builder_.receive_coded(sum, peer);
  }
  const VariableSlice incoming = take(sum.bytes);
  builder_.receive(incoming, peer);
  builder_.decode_reduce(sum, left, incoming);
}

}  // namespace taco::pg
