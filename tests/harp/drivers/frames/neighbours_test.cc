#include "harp/drivers/frames/neighbours.h"

#include <gtest/gtest.h>

#include <string>

#include "support/ip.h"

namespace taco::harp {
namespace {

constexpr MacAddress kMac{std::byte{2}, {}, {}, {}, {}, std::byte{7}};
constexpr MacAddress kOtherMac{std::byte{2}, {}, {}, {}, {}, std::byte{8}};

TEST(NeighboursTest, a_host_is_asked_about_when_somebody_wants_to_send_there) {
  Neighbours neighbours;
  const Endpoint host = ip("10.0.0.2");
  EXPECT_TRUE(neighbours.take_questions(0).empty());
  EXPECT_EQ(neighbours.look_up(host, 0), std::nullopt);
  EXPECT_EQ(neighbours.take_questions(0), std::vector<Endpoint>{host});
  EXPECT_TRUE(neighbours.take_questions(1).empty()) << "an answer takes a while";
  neighbours.on_answer(host, kMac, 2);
  EXPECT_EQ(neighbours.look_up(host, 3), kMac);
  EXPECT_TRUE(neighbours.take_questions(kSecond).empty());
}

TEST(NeighboursTest, one_that_does_not_answer_is_asked_again_more_and_more_seldom_while_wanted) {
  Neighbours neighbours;
  const Endpoint host = ip("fd00::2");
  std::vector<Time> asked;
  for (Time now = 0; now < 10 * kSecond; now += 10 * kMillisecond) {
    (void)neighbours.look_up(host, now);
    if (!neighbours.take_questions(now).empty()) asked.push_back(now);
  }
  ASSERT_GT(asked.size(), 6u);
  EXPECT_LT(asked.size(), 20u);
  EXPECT_LE(asked[1] - asked[0], 2 * Neighbours::kFirstRetry);
  EXPECT_GE(asked.back() - asked[asked.size() - 2], Neighbours::kLastRetry);
  for (Time now = 12 * kSecond; now < 40 * kSecond; now += kSecond) {
    EXPECT_TRUE(neighbours.take_questions(now).empty()) << "nobody wants to send there any more";
  }
}

TEST(NeighboursTest, what_is_known_is_confirmed_after_a_while_and_forgotten_without_an_answer) {
  Neighbours neighbours;
  const Endpoint host = ip("10.0.0.2");
  (void)neighbours.look_up(host, 0);
  (void)neighbours.take_questions(0);
  neighbours.on_answer(host, kMac, 0);
  Time now = Neighbours::kFresh + 1;
  EXPECT_EQ(neighbours.look_up(host, now), kMac) << "used while it is asked about again";
  EXPECT_EQ(neighbours.take_questions(now).size(), 1u);
  neighbours.on_answer(host, kOtherMac, now);
  EXPECT_EQ(neighbours.look_up(host, now), kOtherMac) << "another machine has the address now";
  now += Neighbours::kFresh + 1;
  const std::uint64_t changes = neighbours.changes();
  const Time silent_since = now;
  while (neighbours.look_up(host, now) && now < silent_since + kSecond * 20) {
    (void)neighbours.take_questions(now);
    now += 10 * kMillisecond;
  }
  EXPECT_GT(neighbours.changes(), changes);
  EXPECT_LT(now, silent_since + 10 * kSecond);
}

TEST(NeighboursTest, answers_that_nobody_asked_for_are_not_kept_and_the_table_is_bounded) {
  Neighbours neighbours;
  neighbours.on_answer(ip("10.0.0.9"), kMac, 0);
  EXPECT_EQ(neighbours.size(), 0u);
  neighbours.on_question_from(ip("10.0.0.9"), kMac, 0);
  EXPECT_EQ(neighbours.look_up(ip("10.0.0.9"), 0), kMac);
  for (int i = 0; i < 5000; ++i) {
    const std::string host = "10.1." + std::to_string(i / 250) + "." + std::to_string(i % 250 + 1);
    neighbours.on_question_from(ip(host), kMac, i + 1);
  }
  EXPECT_EQ(neighbours.size(), Neighbours::kMax);
  EXPECT_EQ(neighbours.look_up(ip("10.1.19.250"), 6000), kMac) << "the oldest made room";
  EXPECT_EQ(neighbours.look_up(ip("10.0.0.9"), 6000), std::nullopt);
}

}  // namespace
}  // namespace taco::harp
