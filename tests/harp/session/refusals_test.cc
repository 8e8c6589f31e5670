// Interfaces that refuse what has left in part, again and again. Whoever sees those parts, and all
// else that leaves, sees no two packets that were sealed under one nonce. TACO_REFUSALS: how many
// of sealed packets are waited for at each level.
#include <gtest/gtest.h>

#include <cstdio>

#include "support/number_from.h"
#include "support/seen_nonces.h"
#include "support/sim_cluster.h"
#include "support/sim_streams.h"

namespace taco::harp {
namespace {

constexpr std::size_t kUnderWay = 16;  // messages each way

// Exchanges messages of `bytes` each over a cable that takes one packet, and the next when that has
// left.
void refuse(Security level, std::size_t bytes, std::uint64_t wanted) {
  SimFaults faults;
  faults.bytes_per_second = 10e6;
  faults.longest_queue = 10 * kMicrosecond;
  SeenNonces nonces;
  std::uint64_t repeated = 0;
  SimCluster cluster(2, 1, faults);
  for (const std::uint32_t node : {0u, 1u}) cluster[node].set_security(level);
  cluster.network().set_tap([&](const SimNetwork::Departure& sent) {
    if (!nonces.add(sent)) ++repeated;
  });
  SimStreams streams(cluster, bytes, kUnderWay);
  streams.add(0, 1);
  streams.add(1, 0);
  double delivered = 0;
  for (std::uint64_t before = 0; nonces.in_part() < wanted; before = nonces.in_part()) {
    for (const double each : streams.run(100 * kMillisecond)) delivered += each;
    ASSERT_GT(nonces.in_part(), before) << "nothing is refused";
  }
  std::printf("%llu sealed packets refused after a part had left, %llu nonces repeated\n",
              static_cast<unsigned long long>(nonces.in_part()),
              static_cast<unsigned long long>(repeated));
  EXPECT_EQ(repeated, 0u);
  EXPECT_GT(delivered, 0);
}

TEST(Refusals, OfSmallMessagesRepeatNoNonce) {
  refuse(Security::kAuth, 100, number_from("TACO_REFUSALS", 5'000));
}

TEST(Refusals, OfSegmentsRepeatNoNonce) {
  refuse(Security::kEncrypt, 64 * 1024, number_from("TACO_REFUSALS", 5'000));
}

}  // namespace
}  // namespace taco::harp
