// Segments that follow each other are written and read as runs, which must make no difference.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "harp/session/wire.h"
#include "support/sim_random.h"

namespace taco::harp::wire {
namespace {

std::vector<std::byte> noise(SimRandom& random, std::size_t bytes) {
  std::vector<std::byte> result(bytes);
  random.fill(result);
  return result;
}

HeaderKey some_key(SimRandom& random) {
  std::array<std::byte, HeaderKey::kBytes> key;
  for (std::byte& byte : key) byte = static_cast<std::byte>(random.next());
  return HeaderKey(key);
}

constexpr std::size_t kSegmentBytes = 96;
constexpr std::uint32_t kSegments = 20;
constexpr std::uint64_t kMessageBytes = kSegments * kSegmentBytes - 40;
constexpr SlotId kSlot{0xabcde, 0xfedcba};

// A message's segments in datagrams of consecutive numbers; under a flag, each header composed as a
// single one.
std::vector<std::vector<std::byte>> segments_of(SimRandom& random, PacketId id,
                                                const HeaderKey* key, std::uint8_t flags,
                                                bool singly = false) {
  const auto message = noise(random, kMessageBytes);
  SegmentHeaders headers(id, kSlot, 0, message.size(), key);
  std::vector<std::vector<std::byte>> datagrams;
  for (std::uint32_t i = 0; i < kSegments; ++i, ++id.number) {
    const std::size_t at = i * kSegmentBytes;
    const auto payload =
        std::span(message).subspan(at, std::min(kSegmentBytes, kMessageBytes - at));
    const std::uint8_t own = flags | (i + 1 == kSegments ? kLastSegment : 0);
    Header header = headers.next(own, payload);
    if (singly) {
      header = data_header(id, kSlot, i, message.size(), own);
      seal(header, payload, {}, {key, id.number});
    }
    auto& datagram = datagrams.emplace_back(sizeof header);
    std::memcpy(datagram.data(), &header, sizeof header);
    datagram.insert(datagram.end(), payload.begin(), payload.end());
  }
  return datagrams;
}

constexpr PacketId kBeforeTheLowHalfEnds{0x1122334455667788, 0x5'ffff'fff7, PathId{3}};

TEST(WireSegments, HeadersOfARunAreThoseOfSinglePackets) {
  SimRandom keys(4);
  const HeaderKey key = some_key(keys);
  for (const HeaderKey* masked_by : {static_cast<const HeaderKey*>(nullptr), &key}) {
    for (const int flags : {0, int{kOffered}, kTrusted | kAckSoon}) {
      SimRandom one(5), other(5);
      EXPECT_EQ(segments_of(one, kBeforeTheLowHalfEnds, masked_by, flags),
                segments_of(other, kBeforeTheLowHalfEnds, masked_by, flags, /*singly=*/true));
    }
  }
}

TEST(WireSegments, SegmentsThatFollowAreWhatTheyAreByThemselves) {
  SimRandom random(6);
  const HeaderKey key = some_key(random);
  for (const HeaderKey* masked_by : {static_cast<const HeaderKey*>(nullptr), &key}) {
    for (const int flags : {0, kTrusted | kOffered}) {
      const auto sent = segments_of(random, kBeforeTheLowHalfEnds, masked_by, flags);
      const SegmentMask by{masked_by, kBeforeTheLowHalfEnds.number};
      Packet packet, single;
      ASSERT_EQ(parse(sent[0], packet, true, by), Verdict::kGood);
      FollowingSegments following(sent[0], packet, by);
      for (std::uint32_t i = 1; i + 1 < kSegments; ++i) {
        ASSERT_TRUE(following.take(sent[i], packet)) << "segment " << i;
        ASSERT_EQ(parse(sent[i], single, true, by), Verdict::kGood);
        EXPECT_EQ(packet.number, single.number);
        EXPECT_EQ(packet.segment, single.segment);
        EXPECT_EQ(packet.body.data(), single.body.data());
        EXPECT_EQ(packet.body.size(), single.body.size());
        EXPECT_EQ(packet.slot, single.slot);
        EXPECT_EQ(packet.flags, single.flags);
      }
      EXPECT_FALSE(following.take(sent.back(), packet)) << "the last is for parse() to see";
      EXPECT_EQ(packet.segment, kSegments - 2);
    }
  }
}

TEST(WireSegments, NothingFollowsThatIsDamagedOrOutOfTurn) {
  SimRandom random(7);
  const HeaderKey key = some_key(random);
  const SegmentMask by{&key, 9};
  const auto sent = segments_of(random, {77, 9}, &key, 0);
  Packet packet;
  ASSERT_EQ(parse(sent[0], packet, true, by), Verdict::kGood);
  FollowingSegments following(sent[0], packet, by);
  for (std::size_t bit = 0; bit < 8 * sent[1].size(); ++bit) {
    auto bad = sent[1];
    bad[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_FALSE(following.take(bad, packet)) << "bit " << bit;
  }
  EXPECT_FALSE(following.take(sent[0], packet)) << "a copy";
  EXPECT_FALSE(following.take(sent[2], packet)) << "one is missing";
  EXPECT_FALSE(following.take(std::span(sent[1]).first(sent[1].size() - kGranule), packet));
  EXPECT_FALSE(following.take(std::span(sent[1]).first(8), packet));
  EXPECT_EQ(packet.segment, 0u);
  EXPECT_TRUE(following.take(sent[1], packet)) << "what was refused changes nothing";

  const auto unmasked = segments_of(random, {77, 9}, nullptr, 0);
  ASSERT_EQ(parse(unmasked[0], packet), Verdict::kGood);
  FollowingSegments masked(unmasked[0], packet, by);
  EXPECT_FALSE(masked.take(unmasked[1], packet)) << "made up without the key";
}

// A stranger without the key can calculate a checksum: it is none of a sealed packet's checks.
TEST(WireSegments, NothingFollowsASealedPacketUnsealed) {
  SimRandom random(8);
  auto sent = segments_of(random, {77, 9}, nullptr, 0);
  Packet packet;
  ASSERT_EQ(parse(sent[0], packet), Verdict::kGood);  // as it would be once opened
  for (auto& datagram : {&sent[0], &sent[1]}) {
    HeaderWords words;
    std::memcpy(words.data(), datagram->data(), sizeof words);
    words[0] = (words[0] & kFirstWordChecked) | std::uint64_t{kSealed} << 8;
    const auto body = std::span(*datagram).subspan(sizeof words);
    words[0] |= std::uint64_t{masked_checksum(words, body, {}, {})} << 32;
    std::memcpy(datagram->data(), words.data(), sizeof words);
  }
  EXPECT_FALSE(FollowingSegments(sent[0], packet, {nullptr, 9}).take(sent[1], packet));
}

}  // namespace
}  // namespace taco::harp::wire
