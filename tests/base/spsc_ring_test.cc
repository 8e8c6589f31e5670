#include "base/spsc_ring.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <thread>
#include <vector>

namespace taco {
namespace {

constexpr std::size_t kCapacity = 4096;

struct Ring {
  alignas(64) std::array<std::byte, kCapacity> storage{};
  std::atomic<std::uint64_t> produced{0};
  std::atomic<std::uint64_t> consumed{0};
  RingProducer producer{storage.data(), kCapacity, produced, consumed};
  RingConsumer consumer{storage.data(), kCapacity, produced, consumed};

  bool push(std::size_t bytes, unsigned char fill) {
    std::byte* room = producer.reserve(bytes);
    if (room == nullptr) return false;
    std::memset(room, fill, bytes);
    producer.commit();
    return true;
  }
};

TEST(SpscRing, AnEmptyRingHasNoFront) {
  Ring ring;
  EXPECT_TRUE(ring.consumer.empty());
  EXPECT_EQ(ring.consumer.front().data(), nullptr);
  EXPECT_FALSE(ring.consumer.corrupt());
}

TEST(SpscRing, ARecordIsInvisibleBeforeCommit) {
  Ring ring;
  ASSERT_NE(ring.producer.reserve(10), nullptr);
  EXPECT_TRUE(ring.consumer.empty());
  ring.producer.commit();
  EXPECT_EQ(ring.consumer.front().size(), 10u);
}

TEST(SpscRing, AZeroLengthRecordIsARecord) {
  Ring ring;
  ASSERT_TRUE(ring.push(0, 0));
  EXPECT_NE(ring.consumer.front().data(), nullptr);
  ring.consumer.pop();
  EXPECT_TRUE(ring.consumer.empty());
}

TEST(SpscRing, AFullRingRefusesUntilReleased) {
  Ring ring;
  int pushed = 0;
  while (ring.push(56, 1)) pushed++;
  EXPECT_EQ(pushed, static_cast<int>(kCapacity / kRingGranule));
  ASSERT_NE(ring.consumer.front().data(), nullptr);
  ring.consumer.pop();
  EXPECT_FALSE(ring.push(56, 1)) << "popped is not released";
  EXPECT_TRUE(ring.consumer.release());
  EXPECT_TRUE(ring.push(56, 1));
  EXPECT_FALSE(ring.push(56, 1));
}

TEST(SpscRing, TheLargestRecordFitsAtEveryPosition) {
  Ring ring;
  const std::size_t largest = RingProducer::max_record(kCapacity);
  for (std::size_t position = 0; position < kCapacity / kRingGranule; position++) {
    ASSERT_TRUE(ring.push(largest, 7)) << position;
    EXPECT_EQ(ring.consumer.front().size(), largest);
    ring.consumer.pop();
    ring.consumer.release();
    ASSERT_TRUE(ring.push(1, 7));  // moves the position on by one granule
    ASSERT_EQ(ring.consumer.front().size(), 1u);
    ring.consumer.pop();
    ring.consumer.release();
  }
}

TEST(SpscRing, NonsenseFromTheOtherSideIsCorruptNotDelivered) {
  const auto expect_corrupt = [](std::uint32_t length, std::uint64_t produced) {
    Ring ring;
    std::memcpy(ring.storage.data(), &length, sizeof length);
    ring.produced.store(produced);
    EXPECT_EQ(ring.consumer.front().data(), nullptr) << length << " " << produced;
    EXPECT_TRUE(ring.consumer.corrupt()) << length << " " << produced;
  };
  expect_corrupt(8, 63);                            // not whole granules
  expect_corrupt(8, 2 * kCapacity);                 // more than the ring holds
  expect_corrupt(200, 64);                          // longer than what was published
  expect_corrupt(kCapacity, kCapacity);             // longer than the storage
  expect_corrupt(0xfffffff0u, kCapacity);           // length that overflows
  expect_corrupt(ring_internal::kWrap, kCapacity);  // wrap at the start
}

TEST(SpscRing, AConsumerThatClaimsTooMuchGainsNothing) {
  Ring ring;
  while (ring.push(56, 1)) continue;
  ring.consumed.store(1'000'000);
  EXPECT_FALSE(ring.push(56, 1));
}

TEST(SpscRing, TwoThreadsDeliverEveryByteInOrder) {
  Ring ring;
  constexpr int kRecords = 100'000;
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::thread producer([&] {
    std::mt19937 random(seed);
    for (int i = 0; i < kRecords; i++) {
      const std::size_t bytes = random() % 700;
      while (!ring.push(bytes, static_cast<unsigned char>(i))) std::this_thread::yield();
    }
  });
  std::mt19937 random(seed);
  int wrong = 0;
  for (int i = 0; i < kRecords; i++) {
    std::span<const std::byte> record;
    while ((record = ring.consumer.front()).data() == nullptr && !ring.consumer.corrupt())
      std::this_thread::yield();
    if (record.size() != random() % 700) wrong++;
    for (std::byte byte : record) wrong += byte != static_cast<std::byte>(i);
    ring.consumer.pop();
    if (i % 3 == 0 || ring.consumer.empty()) ring.consumer.release();
  }
  producer.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(ring.consumer.empty());
}

}  // namespace
}  // namespace taco
