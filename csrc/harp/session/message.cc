#include "harp/session/message.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace taco::harp {
namespace {

constexpr std::size_t kWordBytes = sizeof(std::uint64_t);

constexpr std::size_t end_of_line(std::size_t offset) {
  return offset / kLineBytes * kLineBytes + kLineBytes;
}

}  // namespace

void BulkSend::start(SendRequest& send, SlotId to, std::size_t bytes_of_segment, std::uint32_t use,
                     std::size_t tag) {
  request = &send;
  group = send.key.group;
  slot = to;
  generation = use;
  tag_bytes = static_cast<std::uint32_t>(tag);
  lost.clear();
  reference.count = 0;
  resize(bytes_of_segment);
}

void BulkSend::resize(std::size_t bytes_of_segment) {
  segment_bytes = static_cast<std::uint32_t>(bytes_of_segment);
  segments = request->bytes == 0
                 ? 1
                 : static_cast<std::uint32_t>((request->bytes + segment_bytes - 1) / segment_bytes);
  pieces = 1;
  units = segments;
  next = acked = first_missing = 0;
  acked_bits.reset(units);
}

// Runs of segments may be on their way: what becomes of them is told by segments still.
void BulkSend::split() {
  std::vector<std::uint32_t> arrived;
  for (std::uint32_t segment = 0; segment < next; ++segment) {
    if (acked_bits.test(segment)) arrived.push_back(segment);
  }
  pieces = (segment_bytes + kPieceBytes - 1) / kPieceBytes;
  const auto last = static_cast<std::uint32_t>(bytes_of_segment(segments - 1));
  units = (segments - 1) * pieces + std::max((last + kPieceBytes - 1) / kPieceBytes, 1u);
  next = first_unit(next);
  for (SegmentRange& range : lost) {
    const std::uint32_t first = first_unit(range.first);
    range = {first, first_unit(range.first + range.count) - first};
  }
  acked = first_missing = 0;
  acked_bits.reset(units);
  for (const std::uint32_t segment : arrived) acknowledge(segment, 1, true);
}

std::size_t BulkSend::bytes_of_segment(std::uint32_t segment) const {
  const std::size_t offset = static_cast<std::size_t>(segment) * segment_bytes;
  return std::min<std::size_t>(segment_bytes, request->bytes - offset);
}

std::size_t BulkSend::bytes_of(std::uint32_t unit) const {
  const std::size_t whole = bytes_of_segment(segment_of(unit));
  return is_split() ? std::min<std::size_t>(kPieceBytes, whole - offset_in_segment(unit)) : whole;
}

SegmentRange BulkSend::take(std::uint32_t most, bool& again) {
  const auto max_from = [&](std::uint32_t first) {
    return is_split() ? std::min(most, pieces - first % pieces) : most;
  };
  const std::uint32_t end = end_of_sendable();
  while (!lost.empty()) {
    SegmentRange& range = lost.back();
    // A late acknowledgement may have made it unnecessary.
    while (range.count > 0 && acked_bits.test(range.first)) {
      ++range.first;
      --range.count;
    }
    if (range.count == 0) {
      lost.pop_back();
      continue;
    }
    if (range.first >= end) return {range.first, 0};
    std::uint32_t count = 0;
    const std::uint32_t room = std::min(range.count, max_from(range.first));
    while (count < room && !acked_bits.test(range.first + count)) ++count;
    again = true;
    const SegmentRange taken{range.first, count};
    range.first += count;
    range.count -= count;
    if (range.count == 0) lost.pop_back();
    return taken;
  }
  again = false;
  if (next >= end) return {next, 0};
  const SegmentRange taken{next, std::min(max_from(next), units - next)};
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

bool BulkSend::acknowledge(std::uint32_t first, std::uint64_t mask, bool whole) {
  std::uint32_t fresh = 0;
  if (whole && is_split()) {
    for (; mask != 0; mask &= mask - 1) {
      const std::uint32_t segment = first + static_cast<std::uint32_t>(std::countr_zero(mask));
      const std::uint32_t from = first_unit(segment), count = first_unit(segment + 1) - from;
      fresh += acked_bits.set_mask(from, ~std::uint64_t{0} >> (64 - count));
    }
  } else {
    fresh = acked_bits.set_mask(first, mask);
  }
  acked += fresh;
  while (first_missing < units && acked_bits.test(first_missing)) ++first_missing;
  return fresh > 0 && acked == units;
}

// Losses are mostly noticed in order, and few at a time.
void BulkSend::add_lost(SegmentRange range) {
  const auto after = std::ranges::find_if(
      lost, [&](const SegmentRange& other) { return other.first < range.first; });
  lost.insert(after, range);
}

void BulkSend::lose(std::uint32_t first, std::uint64_t mask, bool whole) {
  while (mask != 0) {
    const auto start = static_cast<std::uint32_t>(std::countr_zero(mask));
    const auto count = static_cast<std::uint32_t>(std::countr_one(mask >> start));
    if (whole) {
      const std::uint32_t from = first_unit(first + start);
      add_lost({from, first_unit(first + start + count) - from});
    } else {
      add_lost({first + start, count});
    }
    mask = start + count >= 64 ? 0 : mask & (~std::uint64_t{0} << (start + count));
  }
}

void RecvState::begin(std::uint64_t bytes, std::uint32_t bytes_of_segment) {
  message_bytes = bytes;
  segment_bytes = bytes_of_segment;
  segments =
      bytes == 0 ? 1 : static_cast<std::uint32_t>((bytes + segment_bytes - 1) / segment_bytes);
  bits.reset(segments);
  if (request->sink.by_line && segment_bytes % kLineBytes != 0) held.resize(segments);
}

void RecvState::end() {
  request = nullptr;
  if (held.capacity() > kKeptHeld) std::vector<std::uint64_t>().swap(held);
}

bool RecvState::ends_line_of_earlier(std::uint32_t segment) const {
  const std::size_t begin = begin_of(segment), end = end_of_line(begin);
  return begin % kLineBytes != 0 && begin < end - kWordBytes && end <= end_of(segment);
}

// Segments come in any order, and end where datagrams do, within lines. A segment that ends a line
// is consumed without that line's last word as long as the beginning of the line is missing; what
// brings that brings the word.
void RecvState::consume(std::uint32_t segment, std::span<const std::byte> body) {
  const Sink& sink = request->sink;
  const bool by_line = sink.by_line;
  if (by_line && ends_line_of_earlier(segment) && !bits.test(segment - 1)) {
    consume_but_word(segment, body);
  } else if (!body.empty()) {
    sink.consume(sink, begin_of(segment), body.data(), body.size());
  }
  const std::uint32_t next = segment + 1;
  if (by_line && next < segments && bits.test(next) && ends_line_of_earlier(next)) {
    sink.consume(sink, end_of_line(begin_of(next)) - kWordBytes, &held[next], kWordBytes);
  }
}

void RecvState::consume_but_word(std::uint32_t segment, std::span<const std::byte> body) {
  const Sink& sink = request->sink;
  const std::size_t begin = begin_of(segment), end = end_of_line(begin);
  const auto before = body.first(end - kWordBytes - begin), after = body.subspan(end - begin);
  std::memcpy(&held[segment], before.data() + before.size(), kWordBytes);
  sink.consume(sink, begin, before.data(), before.size());
  if (!after.empty()) sink.consume(sink, end, after.data(), after.size());
}

}  // namespace taco::harp
