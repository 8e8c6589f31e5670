#include "base/timeline.h"

#include <gtest/gtest.h>

namespace taco::timeline {
namespace {

TEST(TimelineTest, shows_events_of_any_track_while_it_is_on) {
  add({.name = "too early"});
  enable(true);
  add({"page in", "tier \"disk\"", 3, 2'000, 5'500, "\"bytes\":4096"});
  add({.name = "page out", .track = "tier"});
  enable(false);
  add({.name = "too late"});
  EXPECT_EQ(chrome_json(),
            "{\"displayTimeUnit\":\"ms\",\"traceEvents\":["
            "{\"ph\":\"X\",\"name\":\"page in\",\"pid\":3,\"tid\":\"tier \\\"disk\\\"\","
            "\"ts\":2.000,\"dur\":3.500,\"args\":{\"bytes\":4096}},\n"
            "{\"ph\":\"X\",\"name\":\"page out\",\"pid\":0,\"tid\":\"tier\","
            "\"ts\":0.000,\"dur\":0.000,\"args\":{}}]}");
  enable(true);
  enable(false);
  EXPECT_EQ(chrome_json(), "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[]}");
}

TEST(TimelineTest, forgets_the_oldest_beyond_its_length) {
  enable(true);
  add({.name = "oldest"});
  for (std::size_t i = 0; i < kMaxEvents; ++i) add({.name = "n"});
  enable(false);
  EXPECT_EQ(chrome_json().find("oldest"), std::string::npos);
  enable(true);
  enable(false);
}

TEST(TimelineTest, quotes_what_json_forbids_in_strings) {
  EXPECT_EQ(quoted("a\"b\\c\n"), "\"a\\\"b\\\\c\\u000a\"");
}

}  // namespace
}  // namespace taco::timeline
