#include "harp/session/wire.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "support/sim_random.h"

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
  random.fill(result);
  return result;
}

TEST(Wire, DataHeaderCarriesEveryFieldThere) {
  SimRandom random(1);
  const SlotId slot{0xabcde, 0xfedcba};
  const auto body = noise(random, 1440);
  const auto bytes = packet_of(
      data_header({0x1122334455667788, 0x1'0000'0007, PathId{3}}, slot, 700'000, 1 << 30, 0), body);
  Packet packet;
  ASSERT_EQ(parse(bytes, packet), Verdict::kGood);
  EXPECT_EQ(packet.type, Type::kData);
  EXPECT_EQ(packet.flags, 0);
  EXPECT_EQ(packet.path, PathId{3});
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
  const auto good = packet_of(data_header({9, 1}, {1, 1}, 0, 64, kLastSegment), body);
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
    return parse(packet_of(data_header({9, 1}, {1, 1}, segment, length, flags), body), packet);
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
  EXPECT_EQ(verdict(1, 48 + 32, kLastSegment | kOffered), Verdict::kGood);
  EXPECT_EQ(verdict(0, 64, kCoded), Verdict::kMalformed) << "flags of a later version";
}

TEST(Wire, AnotherVersionIsToldApart) {
  Header header = frames_header(Type::kControl, {1, 1}, 0);
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
              block.control(fields_of(MismatchAtReceive{{11, 12}, {13, 14}, 15})) &&
              block.notice(text) && block.goodbye());
  Ack ack;
  ack.count = 2;
  ack.delay_us = 77;
  ack.arrived_us = 4'000'000'000;
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
  EXPECT_EQ(reader.ack.arrived_us, 4'000'000'000u);
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
  const auto& mismatch = std::get<MismatchAtReceive>(record.control);
  EXPECT_EQ(mismatch.key, (MessageKey{11, 12}));
  EXPECT_EQ(mismatch.slot, (SlotId{13, 14}));
  EXPECT_EQ(mismatch.signature, 15u);
  ASSERT_TRUE(records.next(record));
  EXPECT_EQ(record.notice.size(), 3u);
  ASSERT_TRUE(records.next(record));
  EXPECT_EQ(record.type, RecordType::kGoodbye);
  EXPECT_FALSE(records.next(record) || records.bad() || reader.next(frame) || reader.bad());
}

TEST(Wire, EveryOtherFrameAndRecordComesBackAsWritten) {
  std::array<std::byte, 200> buffer, block_buffer;
  Writer block(block_buffer);
  PathOpen open{PathId{3}, 2, 4100, {}};
  open.address.fill(std::byte{0xfd});
  ASSERT_TRUE(block.path_open(open) && block.path_closed({PathId{3}, 0x1'0000'0005}) &&
              block.path_move({PathId{4}, true}));
  RecordReader records(block.bytes());
  Record record;
  ASSERT_TRUE(records.next(record));
  EXPECT_EQ(record.type, RecordType::kPathOpen);
  EXPECT_EQ(std::memcmp(&record.path_open, &open, sizeof open), 0);
  ASSERT_TRUE(records.next(record));
  EXPECT_EQ(record.type, RecordType::kPathClosed);
  EXPECT_EQ(record.path_closed.path, PathId{3});
  EXPECT_EQ(record.path_closed.last, 0x1'0000'0005u);
  ASSERT_TRUE(records.next(record));
  EXPECT_EQ(record.type, RecordType::kPathMove);
  EXPECT_EQ(record.path_move.path, PathId{4});
  EXPECT_TRUE(record.path_move.back);
  EXPECT_FALSE(records.next(record) || records.bad());

  Writer frames(buffer);
  ASSERT_TRUE(frames.path_challenge(0x1122334455667788) && frames.path_response(7) &&
              frames.padding(20) && frames.probe(kPrefixBytes) && frames.probe(50));
  EXPECT_EQ(frames.size(), 2 * kTokenBytes + 20 + kPrefixBytes + 50);
  FrameReader reader(frames.bytes());
  Frame frame;
  ASSERT_TRUE(reader.next(frame));
  EXPECT_EQ(frame, Frame::kPathChallenge);
  EXPECT_EQ(reader.token, 0x1122334455667788u);
  ASSERT_TRUE(reader.next(frame));
  EXPECT_EQ(frame, Frame::kPathResponse);
  EXPECT_EQ(reader.token, 7u);
  for (const Frame filler : {Frame::kPadding, Frame::kProbe, Frame::kProbe}) {
    ASSERT_TRUE(reader.next(frame));
    EXPECT_EQ(frame, filler);
  }
  EXPECT_FALSE(reader.next(frame) || reader.bad());
}

TEST(Wire, FramesSayByTheirTypeWhetherTheyAskForAnAcknowledgement) {
  for (const Frame asks : {Frame::kPing, Frame::kRecords, Frame::kPathChallenge,
                           Frame::kPathResponse, Frame::kProbe, Frame{100}}) {
    EXPECT_TRUE(asks_for_ack(asks));
  }
  for (const Frame not_so : {Frame::kAck, Frame::kCredit, Frame::kPadding, Frame{255}}) {
    EXPECT_FALSE(asks_for_ack(not_so));
  }
}

TEST(Wire, UnknownFramesAndRecordsAreSkippedAndWrongLengthsAreNot) {
  const std::vector<std::byte> unknown = {std::byte{99}, std::byte{2}, std::byte{0}, std::byte{1},
                                          std::byte{1}};
  std::array<std::byte, 64> buffer;
  Writer writer(buffer);
  ASSERT_TRUE(writer.credit({5, 6}));
  std::vector<std::byte> bytes = unknown;
  bytes.insert(bytes.end(), writer.bytes().begin(), writer.bytes().end());
  FrameReader reader(bytes);
  Frame frame;
  ASSERT_TRUE(reader.next(frame));
  EXPECT_EQ(static_cast<int>(frame), 99);
  ASSERT_TRUE(reader.next(frame));
  EXPECT_EQ(reader.credit.limit, 5u);
  EXPECT_FALSE(reader.next(frame) || reader.bad());

  Writer goodbye(buffer);
  ASSERT_TRUE(goodbye.goodbye());
  bytes = unknown;
  bytes.insert(bytes.end(), goodbye.bytes().begin(), goodbye.bytes().end());
  RecordReader records(bytes);
  Record record;
  ASSERT_TRUE(records.next(record) && records.next(record));
  EXPECT_EQ(record.type, RecordType::kGoodbye);
  EXPECT_FALSE(records.next(record) || records.bad());

  // A kind of control of a later time, which is no reason to lose what follows it.
  ControlFields later;
  later.kind = static_cast<ControlFields::Kind>(77);
  Writer block(buffer);
  ASSERT_TRUE(block.control(later) && block.goodbye());
  RecordReader mixed(block.bytes());
  ASSERT_TRUE(mixed.next(record));
  EXPECT_EQ(record.type, RecordType::kUnknown);
  ASSERT_TRUE(mixed.next(record));
  EXPECT_EQ(record.type, RecordType::kGoodbye);
  EXPECT_FALSE(mixed.next(record) || mixed.bad());

  // Every known frame and record with one byte too many or too few, where its length is fixed.
  for (const int type : {1, 3, 4, 128, 129}) {
    for (const std::size_t length : {std::size_t{2}, std::size_t{20}}) {
      std::vector<std::byte> wrong(kPrefixBytes + length);
      wrong[0] = static_cast<std::byte>(type);
      wrong[1] = static_cast<std::byte>(length);
      FrameReader wrong_frame(wrong);
      EXPECT_FALSE(wrong_frame.next(frame)) << type;
      EXPECT_TRUE(wrong_frame.bad()) << type;
    }
  }
  for (const int type : {1, 2, 3, 5, 6, 7}) {
    for (const std::size_t length : {std::size_t{3}, std::size_t{41}}) {
      std::vector<std::byte> wrong(kPrefixBytes + length);
      wrong[0] = static_cast<std::byte>(type);
      wrong[1] = static_cast<std::byte>(length);
      RecordReader wrong_record(wrong);
      EXPECT_FALSE(wrong_record.next(record)) << type;
      EXPECT_TRUE(wrong_record.bad()) << type;
    }
  }
}

// The ranges told must be true; they need not be all.
TEST(Wire, RangesOfAnAcknowledgementThatDoNotFitItsFieldsEndIt) {
  constexpr std::uint64_t kMuch = std::uint64_t{1} << 32;
  const auto told = [](std::initializer_list<AckRange> ranges) {
    Ack ack;
    for (const AckRange& range : ranges) ack.ranges[ack.count++] = range;
    std::array<std::byte, 100> buffer;
    Writer writer(buffer);
    EXPECT_TRUE(writer.ack(ack));
    FrameReader reader(writer.bytes());
    Frame frame;
    EXPECT_TRUE(reader.next(frame));
    EXPECT_FALSE(reader.bad());
    return std::vector<AckRange>(reader.ack.ranges.begin(),
                                 reader.ack.ranges.begin() + reader.ack.count);
  };
  auto ranges = told({{10, 10 + kMuch + 5}, {1, 2}});
  ASSERT_EQ(ranges.size(), 1u);
  EXPECT_EQ(ranges[0].last, 10 + kMuch + 5);
  EXPECT_EQ(ranges[0].first, ranges[0].last - (kMuch - 1));
  ranges = told({{3 * kMuch, 3 * kMuch + 1}, {5, kMuch}});
  ASSERT_EQ(ranges.size(), 1u);
  EXPECT_EQ(ranges[0].first, 3 * kMuch);
  ranges = told({{kMuch + 10, kMuch + 11}, {9, 9}});
  ASSERT_EQ(ranges.size(), 2u);
  EXPECT_EQ(ranges[1].first, 9u);
  ranges = told({{2 * kMuch, 2 * kMuch}, {5, 2 * kMuch - 2}, {1, 2}});
  ASSERT_EQ(ranges.size(), 2u);
  EXPECT_EQ(ranges[1].last, 2 * kMuch - 2);
  EXPECT_EQ(ranges[1].first, ranges[1].last - (kMuch - 1));
}

std::vector<std::byte> fragment_of(std::uint16_t offset_granules, std::uint16_t segment_bytes,
                                   std::size_t bytes, std::uint32_t segment,
                                   std::uint64_t message_bytes, std::uint8_t flags) {
  const FragmentDescriptor piece{offset_granules, segment_bytes};
  std::vector<std::byte> body(sizeof piece + bytes);
  std::memcpy(body.data(), &piece, sizeof piece);
  return packet_of(fragment_header({9, 4}, {1, 2}, segment, message_bytes, flags), body);
}

TEST(Wire, FragmentsSayWhereTheyBelongAndMustFitThere) {
  Packet packet;
  ASSERT_EQ(parse(fragment_of(2, 8944, 1200, 3, 100'000, 0), packet), Verdict::kGood);
  EXPECT_EQ(packet.type, Type::kFragment);
  EXPECT_EQ(packet.fragment_offset, 32u);
  EXPECT_EQ(packet.fragment_of, 8944u);
  EXPECT_EQ(packet.body.size(), 1200u);
  EXPECT_EQ(packet.segment, 3u);
  EXPECT_EQ(packet.message_bytes, 100'000u);
  const auto verdict = [&](std::vector<std::byte> bytes) { return parse(bytes, packet); };
  EXPECT_EQ(verdict(fragment_of(500, 8944, 944, 3, 100'000, 0)), Verdict::kGood) << "the end";
  EXPECT_EQ(verdict(fragment_of(500, 8944, 960, 3, 100'000, 0)), Verdict::kMalformed) << "beyond";
  EXPECT_EQ(verdict(fragment_of(0, 8944, 1201, 3, 100'000, 0)), Verdict::kMalformed) << "uneven";
  EXPECT_EQ(verdict(fragment_of(0, 8944, 0, 3, 100'000, 0)), Verdict::kMalformed) << "empty";
  EXPECT_EQ(verdict(fragment_of(0, 8941, 1200, 3, 100'000, 0)), Verdict::kMalformed)
      << "of a segment that fits no message";
  EXPECT_EQ(verdict(fragment_of(0, 25, 25, 0, 25, kLastSegment)), Verdict::kGood);
  EXPECT_EQ(verdict(fragment_of(0, 25, 25, 0, 26, kLastSegment)), Verdict::kMalformed);
}

// Whatever says where a payload goes is checked where the payload itself is not.
TEST(Wire, OfATrustedPayloadEverythingElseIsChecked) {
  SimRandom random(2);
  const auto segment =
      packet_of(data_header({9, 1}, {1, 1}, 3, 1 << 20, kTrusted | kOffered), noise(random, 64));
  const auto last =
      packet_of(data_header({9, 1}, {1, 1}, 0, 64, kTrusted | kLastSegment), noise(random, 64));
  const auto fragment = fragment_of(2, 8944, 1200, 3, 100'000, kTrusted);
  for (const auto& good : {segment, last, fragment}) {
    Packet packet;
    ASSERT_EQ(parse(good, packet), Verdict::kGood);
    const std::size_t payload = good.size() - packet.body.size();
    EXPECT_EQ(payload, packet.type == Type::kData ? 32u : 36u);
    for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
      auto bad = good;
      bad[bit / 8] ^= std::byte{1} << (bit % 8);
      EXPECT_EQ(parse(bad, packet) == Verdict::kGood, bit / 8 >= payload) << "bit " << bit;
    }
    for (std::size_t bytes = 0; bytes <= good.size() + 64; bytes += kGranule) {
      auto other = good;
      other.resize(bytes);
      EXPECT_EQ(parse(other, packet) == Verdict::kGood, bytes == good.size()) << bytes;
    }
  }
}

TEST(Wire, OnlyPayloadsOfMessagesInSegmentsAreTrusted) {
  Packet packet;
  std::vector<std::byte> body(64);
  EXPECT_EQ(parse(packet_of(frames_header(Type::kControl, {1, 1}, 64, kTrusted), body), packet),
            Verdict::kMalformed);
  for (const Type type : {Type::kHello, Type::kReset}) {
    EXPECT_EQ(
        parse(packet_of(frames_header(type, {}, 32, kTrusted), std::span(body).first(32)), packet),
        Verdict::kMalformed);
  }
  Header eager = eager_header({9, 1}, 0, 64 - sizeof(EagerDescriptor));
  EXPECT_EQ(parse(packet_of(eager, body), packet), Verdict::kGood);
  eager.flags |= kTrusted;
  EXPECT_EQ(parse(packet_of(eager, body), packet), Verdict::kMalformed);
  Header sealed = data_header({9, 1}, {1, 1}, 0, 48, kTrusted | kLastSegment);
  mark_sealed(sealed, 0);
  std::vector<std::byte> bytes(sizeof sealed + 64);
  std::memcpy(bytes.data(), &sealed, sizeof sealed);
  EXPECT_EQ(parse(bytes, packet), Verdict::kMalformed);
}

TEST(Wire, WhatIsReservedIsRefused) {
  Packet packet;
  const std::vector<std::byte> body(64);
  const auto control = [&](std::uint8_t flags) {
    return parse(packet_of(frames_header(Type::kControl, {1, 1}, 0, flags), {}), packet);
  };
  EXPECT_EQ(control(0), Verdict::kGood);
  EXPECT_EQ(control(kUncounted), Verdict::kGood);
  EXPECT_EQ(control(16), Verdict::kMalformed);
  EXPECT_EQ(
      parse(packet_of(data_header({9, 1}, {1, 1}, 0, 64, kLastSegment | kUncounted), body), packet),
      Verdict::kMalformed);
  Header header = frames_header(Type::kControl, {1, 1}, 0);
  header.sealed_with = 1;
  EXPECT_EQ(parse(packet_of(header, {}), packet), Verdict::kMalformed);
  header = frames_header(static_cast<Type>(7), {1, 1}, 0);
  EXPECT_EQ(parse(packet_of(header, {}), packet), Verdict::kMalformed) << "no such type";
  EXPECT_EQ(
      parse(packet_of(frames_header(Type::kReset, {}, 31), std::span(body).first(31)), packet),
      Verdict::kMalformed)
      << "quotes no whole header";
}

// Without its tag verified, a sealed packet says which it would be, and no more.
TEST(Wire, SealedPacketsWaitToBeOpened) {
  const std::vector<std::byte> body(kPingBytes + kTagBytes);
  Packet packet;
  const auto verdict = [&](Header header, std::size_t bytes) {
    std::vector<std::byte> made(sizeof header + bytes);
    std::memcpy(made.data(), &header, sizeof header);
    return parse(made, packet);
  };
  Header header = frames_header(Type::kControl, {7, 9, PathId{3}}, kPingBytes, kUncounted);
  mark_sealed(header, 1, kLastAttempt);
  EXPECT_EQ(header.flags, kSealed | kUncounted);
  EXPECT_EQ(header.crc, 0u);
  EXPECT_EQ(key_phase(std::as_bytes(std::span(&header, 1))), 1);
  EXPECT_EQ(attempt(std::as_bytes(std::span(&header, 1))), kLastAttempt);
  EXPECT_EQ(verdict(header, body.size()), Verdict::kSealed);
  EXPECT_EQ(packet.connection, 7u);
  EXPECT_EQ(packet.number, 9u);
  EXPECT_EQ(packet.path, PathId{3});
  EXPECT_EQ(verdict(header, kTagBytes - 1), Verdict::kMalformed) << "no room for a tag";
  header.crc = 1;
  EXPECT_EQ(verdict(header, body.size()), Verdict::kMalformed);
  for (const Type type : {Type::kHello, Type::kReset, static_cast<Type>(7)}) {
    header = frames_header(type, {7, 9}, kPingBytes);
    mark_sealed(header, 0);
    EXPECT_EQ(verdict(header, body.size()), Verdict::kMalformed) << static_cast<int>(type);
  }
}

TEST(Wire, WhatWasSealedIsCheckedLikeAnythingElseOnceItIsOpen) {
  std::vector<std::byte> body(kPingBytes + kTagBytes);
  body[0] = std::byte{1};
  Packet packet;
  const auto verdict = [&](Header header) {
    mark_sealed(header, 1);
    std::vector<std::byte> made(sizeof header);
    std::memcpy(made.data(), &header, sizeof header);
    made.insert(made.end(), body.begin(), body.end());
    return parse_opened(made, packet);
  };
  EXPECT_EQ(verdict(frames_header(Type::kControl, {7, 9}, kPingBytes, kUncounted)), Verdict::kGood);
  EXPECT_EQ(packet.body.size(), kPingBytes);
  EXPECT_EQ(packet.flags, kUncounted);
  EXPECT_EQ(verdict(frames_header(Type::kControl, {7, 9}, body.size())), Verdict::kMalformed);
  EXPECT_EQ(verdict(frames_header(Type::kControl, {7, 9}, kPingBytes, kLastSegment)),
            Verdict::kMalformed);
}

TEST(Wire, ConnectionsNameTheirEngine) {
  const std::uint64_t id = connection_id(3, ~std::uint64_t{0});
  EXPECT_EQ(engine_of(id), 3);
  EXPECT_EQ(id, 0x03ff'ffff'ffff'ffffu);
  EXPECT_NE(connection_id(0, 0xab00'0000'0000'0000), 0u) << "0 means none";
}

TEST(Wire, PaddingMayFollowAHello) {
  Hello hello{};
  hello.sender_connection = 5;
  hello.max_datagram = 1472;
  for (const std::size_t padding : {0, 1, 1000}) {
    std::vector<std::byte> body(sizeof hello + padding);
    std::memcpy(body.data(), &hello, sizeof hello);
    const auto bytes = packet_of(frames_header(Type::kHello, {}, body.size()), body);
    Packet packet;  // points into `bytes`
    ASSERT_EQ(parse(bytes, packet), Verdict::kGood);
    const auto read = parse_hello(packet.body);
    ASSERT_TRUE(read.has_value());
    EXPECT_EQ(read->sender_connection, 5u);
  }
  EXPECT_FALSE(parse_hello(std::vector<std::byte>(sizeof hello - 1)).has_value());
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
