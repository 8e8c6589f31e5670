#include "harp/session/wire.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "harp/drivers/sim.h"

namespace taco::harp::wire {
namespace {

std::vector<std::byte> packet_of(Header header, std::span<const std::byte> body) {
  seal(header, body);
  std::vector<std::byte> bytes(sizeof header + body.size());
  std::memcpy(bytes.data(), &header, sizeof header);
  if (!body.empty()) std::memcpy(bytes.data() + sizeof header, body.data(), body.size());
  return bytes;
}

std::vector<std::byte> noise(SimRandom& random, std::size_t bytes) {
  std::vector<std::byte> result(bytes);
  for (std::byte& byte : result) byte = static_cast<std::byte>(random.next());
  return result;
}

TEST(Wire, DataHeaderCarriesEveryFieldThere) {
  SimRandom random(1);
  const SlotId slot{0xabcde, 0xfedcba};
  const auto body = noise(random, 1440);
  const auto bytes =
      packet_of(data_header(0x1122334455667788, 3, 0x1'0000'0007, slot, 700'000, 1 << 30, 0), body);
  Packet packet;
  ASSERT_EQ(parse(bytes, packet), Verdict::kGood);
  EXPECT_EQ(packet.type, Type::kData);
  EXPECT_EQ(packet.flags, 0);
  EXPECT_EQ(packet.path, 3);
  EXPECT_EQ(packet.connection, 0x1122334455667788u);
  EXPECT_EQ(packet.number, 7u);
  EXPECT_EQ(packet.slot, slot.index | std::uint64_t{slot.generation} << kSlotIndexBits);
  EXPECT_EQ(packet.segment, 700'000u);
  EXPECT_EQ(packet.message_bytes, 1u << 30);
  EXPECT_EQ(packet.body.size(), 1440u);
  EXPECT_EQ(peek_connection(bytes), packet.connection);
}

TEST(Wire, EverySingleBitOfDamageIsNoticed) {
  SimRandom random(2);
  const auto body = noise(random, 64);
  const auto good = packet_of(data_header(9, 0, 1, {1, 1}, 0, 64, kLastSegment), body);
  Packet packet;
  ASSERT_EQ(parse(good, packet), Verdict::kGood);
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    auto bad = good;
    bad[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_NE(parse(bad, packet), Verdict::kGood) << "bit " << bit;
  }
}

TEST(Wire, SegmentsThatDoNotFitTheirMessageAreMalformed) {
  const std::vector<std::byte> body(32);
  Packet packet;
  const auto verdict = [&](std::uint32_t segment, std::uint64_t length, std::uint8_t flags) {
    return parse(packet_of(data_header(9, 0, 1, {1, 1}, segment, length, flags), body), packet);
  };
  EXPECT_EQ(verdict(0, 32, kLastSegment), Verdict::kGood);
  EXPECT_EQ(verdict(1, 48 + 32, kLastSegment), Verdict::kGood);
  EXPECT_EQ(verdict(0, 33, 0), Verdict::kGood);
  EXPECT_EQ(verdict(0, 32, 0), Verdict::kMalformed) << "ends the message without saying so";
  EXPECT_EQ(verdict(0, 40, kLastSegment), Verdict::kMalformed) << "says so without ending it";
  EXPECT_EQ(verdict(0, 16, kLastSegment), Verdict::kMalformed) << "longer than the message";
  EXPECT_EQ(verdict(1, 16 + 32, kLastSegment), Verdict::kMalformed) << "longer than the others";
  EXPECT_EQ(verdict(3, 100 + 32, kLastSegment), Verdict::kMalformed) << "uneven segments";
  EXPECT_EQ(verdict(9, 64, 0), Verdict::kMalformed) << "beyond the end";
  EXPECT_EQ(verdict(0, 64, kCoded), Verdict::kMalformed) << "flags of a later version";
}

TEST(Wire, AnotherVersionIsToldApart) {
  Header header = frames_header(Type::kControl, 1, 0, 1, 0);
  header.version_and_type = (kVersion + 1) << 4 | 3;
  Packet packet;
  EXPECT_EQ(parse(packet_of(header, {}), packet), Verdict::kBadVersion);
}

TEST(Wire, FramesAndRecordsComeBackAsWritten) {
  std::array<std::byte, 1000> buffer, block_buffer;
  Writer block(block_buffer);
  const Want want{{1, 2}, 3, 4, {5, 6}};
  const Offer offer{{7, 8}, 9, 10};
  const std::array<std::byte, 3> text{std::byte{1}, std::byte{2}, std::byte{3}};
  ASSERT_TRUE(block.want(want) && block.offer(offer) &&
              block.control(Control::kSolicit, {11, 12}, {13, 14}, 15) && block.notice(text) &&
              block.goodbye());
  Ack ack;
  ack.count = 2;
  ack.delay_us = 77;
  ack.ranges[0] = {90, 100};
  ack.ranges[1] = {5, 80};
  Writer frames(buffer);
  ASSERT_TRUE(frames.credit({1000, 3}) && frames.ack(ack) && frames.ping() &&
              frames.records(21, block.bytes()));

  FrameReader reader(frames.bytes());
  Frame frame;
  ASSERT_TRUE(reader.next(frame));
  EXPECT_EQ(reader.credit.limit, 1000u);
  ASSERT_TRUE(reader.next(frame));
  ASSERT_EQ(reader.ack.count, 2u);
  EXPECT_EQ(reader.ack.delay_us, 77u);
  EXPECT_EQ(reader.ack.ranges[0].first, 90u);
  EXPECT_EQ(reader.ack.ranges[1].first, 5u);
  EXPECT_EQ(reader.ack.ranges[1].last, 80u);
  ASSERT_TRUE(reader.next(frame));
  EXPECT_EQ(frame, Frame::kPing);
  ASSERT_TRUE(reader.next(frame));
  EXPECT_EQ(reader.serial, 21u);
  RecordReader records(reader.records);
  Record record;
  ASSERT_TRUE(records.next(record));
  EXPECT_EQ(record.want.slot, want.slot);
  EXPECT_EQ(record.want.max_bytes, 4u);
  ASSERT_TRUE(records.next(record));
  EXPECT_EQ(record.offer.bytes, 10u);
  ASSERT_TRUE(records.next(record));
  EXPECT_EQ(record.control, Control::kSolicit);
  EXPECT_EQ(record.value, 15u);
  ASSERT_TRUE(records.next(record));
  EXPECT_EQ(record.notice.size(), 3u);
  ASSERT_TRUE(records.next(record));
  EXPECT_EQ(record.type, RecordType::kGoodbye);
  EXPECT_FALSE(records.next(record) || records.bad() || reader.next(frame) || reader.bad());
}

TEST(Wire, APieceThatDoesNotFitIsNotWrittenAtAll) {
  std::array<std::byte, 20> buffer;
  Writer writer(buffer);
  EXPECT_FALSE(writer.want({}));
  EXPECT_EQ(writer.size(), 0u);
  EXPECT_TRUE(writer.credit({1, 1}));
  EXPECT_FALSE(writer.credit({1, 1}));
  EXPECT_EQ(writer.size(), kCreditBytes);
}

TEST(Wire, AcknowledgementsKeepTheNewestRangesWhenRoomIsShort) {
  Ack ack;
  ack.count = kMaxAckRanges;
  for (std::uint32_t i = 0; i < ack.count; ++i) ack.ranges[i] = {1000 - 3 * i, 1001 - 3 * i};
  std::array<std::byte, kAckBytes + 2 * kAckRangeBytes + 7> buffer;
  Writer writer(buffer);
  ASSERT_TRUE(writer.ack(ack));
  FrameReader reader(writer.bytes());
  Frame frame;
  ASSERT_TRUE(reader.next(frame));
  EXPECT_EQ(reader.ack.count, 3u);
  EXPECT_EQ(reader.ack.ranges[2].first, 994u);
}

TEST(Wire, PacketNumbersExpandAcrossTheWrap) {
  EXPECT_EQ(expand_number(5, 3), 5u);
  EXPECT_EQ(expand_number(2, 0x1'0000'0000 - 3), 0x1'0000'0002u);
  EXPECT_EQ(expand_number(0xffff'fff0, 0x1'0000'0005), 0xffff'fff0u);
  EXPECT_EQ(expand_number(0xffff'ffff, 1), 0xffff'ffffu);
}

// Without a fuzzer at hand: random bytes, and damaged good packets, read under the sanitizers.
TEST(Wire, NothingThatArrivesIsReadOutOfBounds) {
  const std::uint64_t seed = 20'260'101;
  SCOPED_TRACE("seed " + std::to_string(seed));
  SimRandom random(seed);
  std::size_t good = 0;
  for (int i = 0; i < 200'000; ++i) {
    const std::size_t size = random.below(160);
    auto bytes = noise(random, size);
    if (size > 32) {
      const std::uint64_t extent = size - 32;
      bytes[0] = static_cast<std::byte>(kVersion << 4 | (1 + random.below(7)));
      bytes[1] = static_cast<std::byte>(random.below(3));
      bytes[3] = std::byte{0};
      if (random.chance(0.7)) std::memcpy(bytes.data() + 24, &extent, 8);
      if (random.chance(0.7)) bytes[32] = static_cast<std::byte>(random.below(6) + 128 * (i % 2));
      if (size > 34 && random.chance(0.7)) {
        const auto length = static_cast<std::uint16_t>(random.below(size - 32));
        std::memcpy(bytes.data() + 33, &length, 2);
      }
    }
    // On the heap at its exact size, so that the sanitizer sees one byte too many.
    const std::unique_ptr<std::byte[]> exact(new std::byte[size]);
    std::copy(bytes.begin(), bytes.end(), exact.get());
    Packet packet;
    if (parse({exact.get(), size}, packet, false) != Verdict::kGood) continue;
    ++good;
    parse_hello(packet.body);
    FrameReader frames(packet.body);
    Frame frame;
    while (frames.next(frame)) {
      RecordReader records(frames.records);
      Record record;
      while (records.next(record)) {
      }
    }
  }
  EXPECT_GT(good, 1000u);
}

}  // namespace
}  // namespace taco::harp::wire
