// Notices and arrivals: the small records by which ranks recognise each other's calls.
#include <gtest/gtest.h>

#include <random>

#include "harp/transport.h"
#include "pg/group/arrivals.h"
#include "pg/group/notice.h"

namespace taco::pg {
namespace {

Notice sample() {
  Notice notice;
  notice.kind = NoticeKind::kArrivalReport;
  notice.code = Code::kTimeout;
  notice.done = true;
  notice.group = 1;
  notice.number = 2;
  notice.subject = 3;
  notice.accuser = 4;
  notice.sequence = 5;
  notice.signature = 6;
  notice.asked = 8;
  notice.asked_signature = 7;
  notice.last_heard_s = 0.25;
  notice.address = "10.0.0.2:4123";
  notice.text = "why";
  return notice;
}

TEST(Notice, SurvivesTheWire) {
  const Notice sent = sample();
  const auto got = decode(encode(sent));
  ASSERT_TRUE(got.has_value());
  EXPECT_EQ(encode(*got), encode(sent));
  EXPECT_EQ(got->text, "why");
  EXPECT_EQ(got->address, sent.address);
  EXPECT_EQ(got->asked, 8u);
  EXPECT_EQ(got->asked_signature, 7u);
  EXPECT_TRUE(got->done && got->knows_group);
}

TEST(Notice, LongTextsAreCutToWhatTheTransportTakes) {
  Notice notice = sample();
  notice.text.assign(5000, 'x');
  notice.address.assign(5000, 'y');
  const auto bytes = encode(notice);
  EXPECT_LE(bytes.size(), harp::kMaxNoticeBytes);
  ASSERT_TRUE(decode(bytes).has_value());
}

TEST(Notice, RubbishIsRefused) {
  std::mt19937_64 random(1);
  const auto good = encode(sample());
  for (std::size_t length = 0; length < good.size(); ++length)
    EXPECT_FALSE(decode({good.data(), length}).has_value()) << length;
  for (int i = 0; i < 20'000; ++i) {
    auto bytes = good;
    for (int flips = 0; flips < 3; ++flips) bytes[random() % 8] = static_cast<std::byte>(random());
    if (const auto notice = decode(bytes)) {
      EXPECT_LE(notice->address.size() + notice->text.size(), bytes.size());
    }
  }
}

TEST(Arrivals, WhoeverIsHeardFirstIsComparedWithAllLater) {
  Arrivals arrivals;
  EXPECT_FALSE(arrivals.note(2, 17, 100));
  EXPECT_FALSE(arrivals.note(1, 17, 100));
  const auto conflict = arrivals.note(0, 17, 101);
  ASSERT_TRUE(conflict.has_value());
  EXPECT_EQ(conflict->rank_a, 2);
  EXPECT_EQ(conflict->signature_a, 100u);
  EXPECT_EQ(conflict->rank_b, 0);
  EXPECT_EQ(conflict->signature_b, 101u);
  EXPECT_EQ(conflict->sequence, 17u);
}

TEST(Arrivals, TheLastSequenceNumbersAreKept) {
  Arrivals arrivals;
  for (std::uint32_t i = 0; i < 3 * Arrivals::kKept; ++i) EXPECT_FALSE(arrivals.note(0, i, i));
  EXPECT_FALSE(arrivals.signature_of(2 * Arrivals::kKept - 1));
  EXPECT_EQ(arrivals.signature_of(2 * Arrivals::kKept), 2 * Arrivals::kKept);
  EXPECT_FALSE(arrivals.note(1, 3, 99)) << "too old to judge";
  EXPECT_TRUE(arrivals.note(1, 3 * Arrivals::kKept - 1, 99));
}

TEST(Arrivals, SequenceNumbersMayWrap) {
  Arrivals arrivals;
  EXPECT_FALSE(arrivals.note(0, 0xffffff00u, 1));
  EXPECT_FALSE(arrivals.note(0, 0u, 2));
  EXPECT_TRUE(arrivals.note(1, 0u, 3));
}

}  // namespace
}  // namespace taco::pg
