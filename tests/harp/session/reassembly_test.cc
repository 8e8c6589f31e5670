// Segments in pieces: how a message is split on its way out, and put together on its way in.
#include "harp/session/reassembly.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "harp/session/message.h"

namespace taco::harp {
namespace {

std::vector<std::byte> numbered(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 31 + i / 251);
  return bytes;
}

wire::Packet piece_of(const std::vector<std::byte>& segment, std::uint32_t index,
                      std::size_t offset, std::size_t bytes, std::uint64_t slot = 5) {
  wire::Packet piece{};
  piece.type = wire::Type::kFragment;
  piece.slot = slot;
  piece.segment = index;
  piece.fragment_offset = static_cast<std::uint32_t>(offset);
  piece.fragment_of = static_cast<std::uint32_t>(segment.size());
  piece.body = std::span(segment).subspan(offset, bytes);
  return piece;
}

TEST(Reassembly, ASegmentIsWholeWhenEveryPieceHasCome) {
  BytePool pool;
  {
    Reassembly reassembly(pool);
    const auto segment = numbered(3001);
    std::span<const std::byte> whole;
    // Out of order, one twice, and two that overlap, as pieces of different sizes do.
    EXPECT_EQ(reassembly.add(piece_of(segment, 2, 2304, 697), whole), Reassembly::Verdict::kKept);
    EXPECT_EQ(reassembly.add(piece_of(segment, 2, 0, 1152), whole), Reassembly::Verdict::kKept);
    EXPECT_EQ(reassembly.add(piece_of(segment, 2, 0, 1152), whole), Reassembly::Verdict::kKept);
    EXPECT_EQ(reassembly.add(piece_of(segment, 2, 1136, 1168), whole), Reassembly::Verdict::kWhole);
    EXPECT_TRUE(std::ranges::equal(whole, segment));
    reassembly.forget(5, 2);
    EXPECT_TRUE(reassembly.empty());
    EXPECT_EQ(reassembly.add(piece_of(segment, 3, 0, 1152), whole), Reassembly::Verdict::kKept);
  }
  EXPECT_EQ(pool.bytes_in_use(), 0u);
}

TEST(Reassembly, WhatFindsNoRoomIsRefusedAndNothingThatIsKeptGivesWay) {
  BytePool pool;
  Reassembly reassembly(pool);
  const auto segment = numbered(2304);
  std::span<const std::byte> whole;
  for (std::uint32_t i = 0; i < Reassembly::kMaxPartial; ++i) {
    EXPECT_EQ(reassembly.add(piece_of(segment, i, 0, 1152), whole), Reassembly::Verdict::kKept);
  }
  EXPECT_EQ(reassembly.add(piece_of(segment, 99, 0, 1152), whole), Reassembly::Verdict::kRefused);
  for (std::uint32_t i = 0; i < Reassembly::kMaxPartial; ++i) {
    EXPECT_EQ(reassembly.add(piece_of(segment, i, 1152, 1152), whole), Reassembly::Verdict::kWhole);
    EXPECT_TRUE(std::ranges::equal(whole, segment));
  }
  reassembly.forget(5);
  EXPECT_TRUE(reassembly.empty());
  EXPECT_EQ(pool.bytes_in_use(), 0u);
}

TEST(Reassembly, PiecesThatDisagreeAboutTheSegmentsLengthAreRefused) {
  BytePool pool;
  Reassembly reassembly(pool);
  const auto one = numbered(2304), other = numbered(2320);
  std::span<const std::byte> whole;
  EXPECT_EQ(reassembly.add(piece_of(one, 0, 0, 1152), whole), Reassembly::Verdict::kKept);
  EXPECT_EQ(reassembly.add(piece_of(other, 0, 1152, 1168), whole), Reassembly::Verdict::kRefused);
  EXPECT_EQ(reassembly.add(piece_of(other, 0, 0, 1152, 6), whole), Reassembly::Verdict::kKept);
}

// That is to be sent in segments of that size.
struct Message {
  Message(std::size_t bytes, std::size_t segment) : data(numbered(bytes)) {
    request.data = data.data();
    request.bytes = data.size();
    send.start(request, {1, 1}, segment, 1);
  }
  const std::vector<std::byte> data;
  SendRequest request;
  BulkSend send;
};

// Three segments arrived, one is lost, one on its way, the rest not sent: then it is split.
TEST(SplitMessage, EveryByteThatHasNotArrivedLeavesOnceInPiecesOfOneSegmentAtATime) {
  constexpr std::uint32_t kSegment = 8928;
  Message message(9 * kSegment + 1200, kSegment);
  const auto& data = message.data;
  BulkSend& send = message.send;
  bool again = false;
  EXPECT_EQ(send.take(5, again).count, 5u);
  send.acknowledge(0, 0b111, true);
  send.lose(3, 1, true);
  send.split();
  ASSERT_TRUE(send.is_split());
  EXPECT_LE(send.datagram_bytes(), wire::kMinDatagram);
  std::vector<int> sent(data.size(), 0);
  while (send.has_work()) {
    const SegmentRange range = send.take(64, again);
    if (range.count == 0) break;
    for (std::uint32_t unit = range.first; unit < range.first + range.count; ++unit) {
      EXPECT_EQ(send.segment_of(unit), send.segment_of(range.first));
      const std::size_t offset = static_cast<std::size_t>(send.data_of(unit) - data.data());
      EXPECT_EQ(offset, send.segment_of(unit) * kSegment + send.offset_in_segment(unit));
      for (std::size_t i = 0; i < send.bytes_of(unit); ++i) ++sent[offset + i];
    }
    EXPECT_FALSE(send.acknowledge(range.first, (std::uint64_t{1} << range.count) - 1, false));
  }
  for (std::size_t i = 0; i < data.size(); ++i) {
    const std::size_t segment = i / kSegment;
    ASSERT_EQ(sent[i], segment < 3 || segment == 4 ? 0 : 1) << i;
  }
  // Segments that were on their way are acknowledged whole.
  EXPECT_TRUE(send.acknowledge(4, 1, true));
}

// Nothing leaves of segments for which the receiver may have no room, new or lost, until the first
// that is missing has been acknowledged.
TEST(SplitMessage, PiecesLeaveOfSoManySegmentsOnlyAsTheReceiverKeepsIncomplete) {
  constexpr std::uint32_t kSegment = 8928, kSegments = 60, kMax = wire::kMaxPartialSegments;
  Message message(kSegments * kSegment, kSegment);
  BulkSend& send = message.send;
  bool again = false;
  send.take(30, again);
  send.split();
  EXPECT_FALSE(send.has_work());
  send.lose(20, 0b1111, true);
  EXPECT_FALSE(send.has_work()) << "too far ahead of the first that is missing";
  EXPECT_EQ(send.take(64, again).count, 0u);
  send.lose(0, 0xfffff, true);
  const auto leave = [&] {  // the segments of which something leaves
    std::vector<std::uint32_t> segments;
    while (send.has_work()) {
      const SegmentRange range = send.take(64, again);
      if (range.count == 0) break;
      segments.push_back(send.segment_of(range.first));
    }
    return segments;
  };
  const std::vector<std::uint32_t> first = leave();
  ASSERT_EQ(first.size(), kMax);
  for (std::uint32_t i = 0; i < kMax; ++i) EXPECT_EQ(first[i], i);
  // All but one piece of the first segment: nothing more leaves. With it, what follows.
  for (std::uint32_t i = 1; i < kMax; ++i) send.acknowledge(i * send.pieces, 0xff, false);
  send.acknowledge(0, 0x7f, false);
  EXPECT_FALSE(send.has_work());
  send.lose(0, 0x80, false);
  EXPECT_EQ(leave(), std::vector<std::uint32_t>{0});
  send.acknowledge(0, 0x80, false);
  // 16 to 19 and 20 to 23 were lost, 24 to 29 are on their way, then comes what never left.
  EXPECT_EQ(leave(), (std::vector<std::uint32_t>{16, 17, 18, 19, 20, 21, 22, 23, 30, 31}));
}

TEST(SplitMessage, ASegmentThatIsLostAfterTheSplitComesAgainInPieces) {
  constexpr std::uint32_t kSegment = 1440;
  Message message(4 * kSegment, kSegment);
  BulkSend& send = message.send;
  bool again = false;
  send.take(4, again);
  send.split();
  EXPECT_FALSE(send.has_work());
  send.lose(0, 0b1111, true);
  std::size_t bytes = 0;
  while (send.has_work()) {
    const SegmentRange range = send.take(64, again);
    EXPECT_TRUE(again);
    for (std::uint32_t i = 0; i < range.count; ++i) bytes += send.bytes_of(range.first + i);
  }
  EXPECT_EQ(bytes, message.data.size());
}

}  // namespace
}  // namespace taco::harp
