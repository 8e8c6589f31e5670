#include "harp/session/message.h"

#include <algorithm>
#include <bit>

namespace taco::harp {

void BulkSend::start(SendRequest& send, SlotId to, std::size_t bytes_of_segment,
                     std::uint32_t use) {
  request = &send;
  slot = to;
  generation = use;
  segment_bytes = static_cast<std::uint32_t>(bytes_of_segment);
  segments = send.bytes == 0
                 ? 1
                 : static_cast<std::uint32_t>((send.bytes + segment_bytes - 1) / segment_bytes);
  next = acked = 0;
  acked_bits.reset(segments);
  lost.clear();
  reference.count = 0;
}

std::size_t BulkSend::bytes_of(std::uint32_t segment) const {
  const std::size_t offset = static_cast<std::size_t>(segment) * segment_bytes;
  return std::min<std::size_t>(segment_bytes, request->bytes - offset);
}

SegmentRange BulkSend::take(std::uint32_t most, bool& again) {
  while (!lost.empty()) {
    SegmentRange& range = lost.back();
    // A late acknowledgement may have made it unnecessary.
    while (range.count > 0 && acked_bits.test(range.first)) {
      ++range.first;
      --range.count;
    }
    std::uint32_t count = 0;
    while (count < std::min(range.count, most) && !acked_bits.test(range.first + count)) ++count;
    if (count == 0) {
      lost.pop_back();
      continue;
    }
    again = true;
    const SegmentRange taken{range.first, count};
    range.first += count;
    range.count -= count;
    if (range.count == 0) lost.pop_back();
    return taken;
  }
  again = false;
  const SegmentRange taken{next, std::min(most, segments - next)};
  next += taken.count;
  return taken;
}

void BulkSend::put_back(SegmentRange range, bool again) {
  if (again) {
    lost.push_back(range);
  } else {
    next = range.first;
  }
}

bool BulkSend::acknowledge(std::uint32_t first, std::uint64_t mask) {
  const std::uint32_t fresh = acked_bits.set_mask(first, mask);
  acked += fresh;
  return fresh > 0 && acked == segments;
}

void BulkSend::lose(std::uint32_t first, std::uint64_t mask) {
  while (mask != 0) {
    const auto start = static_cast<std::uint32_t>(std::countr_zero(mask));
    const auto count = static_cast<std::uint32_t>(std::countr_one(mask >> start));
    lost.push_back({first + start, count});
    mask = start + count >= 64 ? 0 : mask & (~std::uint64_t{0} << (start + count));
  }
}

}  // namespace taco::harp
