#include "zerocache/ranks/exchange.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "support/gathering_threads.h"

namespace taco::zerocache {
namespace {

using testing::GatheringThreads;

std::byte value_of(std::size_t parcel, std::size_t place) {
  return static_cast<std::byte>((parcel * 131 + place * 7 + place / 251) & 0xFF);
}

// The bytes that one rank has received, and those that are to be there in the end.
struct Received {
  std::vector<std::vector<std::byte>> parcels;
  std::vector<std::size_t> packed;
  ExchangeCalls calls(std::span<const Parcel> all) {
    parcels.resize(all.size());
    return {
        .pack =
            [this](std::size_t parcel, std::span<std::byte> to) {
              packed.push_back(parcel);
              for (std::size_t i = 0; i < to.size(); ++i) to[i] = value_of(parcel, i);
              return Status();
            },
        .unpack =
            [this](std::size_t parcel, std::size_t from, std::span<const std::byte> bytes) {
              EXPECT_EQ(parcels[parcel].size(), from) << "slices come in order";
              parcels[parcel].insert(parcels[parcel].end(), bytes.begin(), bytes.end());
              return Status();
            },
    };
  }
};

TEST(Exchange, HasEveryParcelArriveOnceWhateverTheirOwnersAndLengths) {
  std::mt19937 random(7);
  for (int round = 0; round < 40; ++round) {
    const int ranks = 1 + static_cast<int>(random() % 5);
    std::vector<Parcel> parcels(random() % 20);
    for (Parcel& parcel : parcels) {
      parcel = {static_cast<int>(random() % static_cast<unsigned>(ranks)), 1 + random() % 20000};
    }
    const std::size_t memory = 1 + random() % 60000;
    SCOPED_TRACE("round " + std::to_string(round));
    GatheringThreads group(ranks);
    group.run([&](Collectives& own) {
      Received received;
      const Status status = exchange(own, parcels, received.calls(parcels), memory);
      ASSERT_TRUE(status.ok()) << status.message();
      std::vector<std::size_t> mine;
      for (std::size_t i = 0; i < parcels.size(); ++i) {
        if (parcels[i].owner == own.rank()) {
          mine.push_back(i);
          EXPECT_TRUE(received.parcels[i].empty());
          continue;
        }
        ASSERT_EQ(received.parcels[i].size(), parcels[i].bytes);
        for (std::size_t place = 0; place < parcels[i].bytes; ++place) {
          ASSERT_EQ(received.parcels[i][place], value_of(i, place)) << i << " at " << place;
        }
      }
      EXPECT_EQ(received.packed, mine);
    });
  }
}

TEST(Exchange, MemoryIsBoundedHoweverManyRanksThereAre) {
  constexpr std::size_t kMemory = 128 << 10;
  std::vector<Parcel> parcels;
  for (int i = 0; i < 16; ++i) parcels.push_back({i % 8, 100 << 10});
  GatheringThreads group(8);
  group.run([&](Collectives& own) {
    Received received;
    EXPECT_TRUE(exchange(own, parcels, received.calls(parcels), kMemory).ok());
  });
  EXPECT_LE(group.max_bytes(), kMemory / 2);
}

// A rank makes its next parcel while the one before is under way.
TEST(Exchange, TheNextParcelIsMadeBeforeTheLastHasArrived) {
  const std::vector<Parcel> parcels = {{0, 5000}, {1, 5000}, {0, 5000}, {1, 5000}};
  GatheringThreads group(2);
  group.run([&](Collectives& own) {
    std::vector<std::string> order;
    const ExchangeCalls calls = {
        .pack =
            [&](std::size_t parcel, std::span<std::byte>) {
              order.push_back("made " + std::to_string(parcel / 2));
              return Status();
            },
        .unpack =
            [&](std::size_t parcel, std::size_t, std::span<const std::byte>) {
              order.push_back("taken " + std::to_string(parcel / 2));
              return Status();
            },
    };
    EXPECT_TRUE(exchange(own, parcels, calls).ok());
    EXPECT_EQ(order, (std::vector<std::string>{"made 0", "made 1", "taken 0", "taken 1"}));
  });
}

TEST(Exchange, AFailureOnOneRankIsOneOnAllAndNobodyWaitsForever) {
  std::vector<Parcel> parcels;
  for (int i = 0; i < 12; ++i) parcels.push_back({i % 3, 3000});
  for (const bool while_packing : {true, false}) {
    GatheringThreads group(3);
    group.run([&](Collectives& own) {
      Received received;
      ExchangeCalls calls = received.calls(parcels);
      int more = 0;
      const auto fail = [&](auto call) {
        return [&, call](std::size_t parcel, auto... rest) {
          if (own.rank() != 1) return call(parcel, rest...);
          if (parcel < 4) return call(parcel, rest...);
          ++more;
          return Status(Code::kResource, "EIO");
        };
      };
      if (while_packing) {
        calls.pack = fail(calls.pack);
      } else {
        calls.unpack = fail(calls.unpack);
      }
      const Status status = exchange(own, parcels, calls);
      EXPECT_EQ(status.code(), Code::kResource);
      EXPECT_EQ(status.message(), own.rank() == 1 ? "EIO" : "rank 1: EIO");
      EXPECT_EQ(more, own.rank() == 1 ? 1 : 0) << "calls after the failure";
    });
  }
}

TEST(Exchange, AGroupThatFailsEndsItWithoutHarm) {
  std::vector<Parcel> parcels;
  for (int i = 0; i < 12; ++i) parcels.push_back({i % 2, 3000});
  for (std::size_t at = 0; at < 7; ++at) {
    GatheringThreads group(2);
    group.fail_at(at);
    group.run([&](Collectives& own) {
      Received received;
      EXPECT_EQ(exchange(own, parcels, received.calls(parcels)).code(), Code::kPeerLost);
    });
  }
}

}  // namespace
}  // namespace taco::zerocache
