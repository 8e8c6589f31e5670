// The timeline's file: its events, when they are there, and that it is JSON at any time.
#include "pg/controller/timeline.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "base/file.h"
#include "support/eventually.h"
#include "support/json_text.h"
#include "support/negotiating_ranks.h"
#include "support/temporary_directory.h"

namespace taco::pg::controller {
namespace {

constexpr std::size_t kMost = 64 << 20;

std::string text_of(const std::string& path) { return read_file(path, kMost); }

std::size_t count_in(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

Response response_of(std::vector<Request> requests) {
  Response response;
  response.requests = std::move(requests);
  return response;
}

// Runs a fused allreduce of two tensors.
void run_step(Timeline& timeline, Time now) {
  const Request a = make_request(Kind::kAllReduce, "layer \"a\"", {{2, 3}});
  const Request b = make_request(Kind::kAllReduce, "b", {{}});
  const Response both = response_of({a, b});
  timeline.cycle(now);
  timeline.negotiating(0, a, now);
  timeline.negotiating(0, b, now + 1 * kMicrosecond);
  timeline.agreed(0, both, now + 2 * kMicrosecond);
  timeline.activity(0, both, "MEMCPY_IN_FUSION_BUFFER", now + 3 * kMicrosecond);
  timeline.activity(0, both, "TACO_ALLREDUCE", now + 4 * kMicrosecond);
  timeline.ended(0, both, now + 5 * kMicrosecond);
}

class ControllerTimeline : public ::testing::Test {
 protected:
  std::shared_ptr<Timeline> start(bool mark_cycles = true) {
    auto timeline = Timeline::start(path(), mark_cycles);
    EXPECT_TRUE(timeline.ok()) << timeline.status().message();
    return timeline.value();
  }
  std::string path() const { return folder_ / "timeline.json"; }

  testing::TemporaryDirectory folder_;
};

TEST_F(ControllerTimeline, ShowsEachTensorAsAProcess) {
  const auto timeline = start();
  const Time now = monotonic_now();
  run_step(*timeline, now);
  ASSERT_TRUE(timeline->stop().ok());
  const std::string text = text_of(path());
  EXPECT_TRUE(testing::is_json(text)) << text;
  EXPECT_NE(text.find("{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": 1, "
                      "\"args\": {\"name\": \"layer \\\"a\\\"\"}}"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("start_time_since_epoch_in_micros"), std::string::npos);
  for (const char* const name :
       {"NEGOTIATE_ALLREDUCE", "ALLREDUCE", "MEMCPY_IN_FUSION_BUFFER", "TACO_ALLREDUCE"}) {
    EXPECT_EQ(count_in(text, std::string("\"name\": \"") + name + "\""), 2u) << name;
  }
  EXPECT_EQ(count_in(text, "\"ph\": \"B\""), 8u);
  EXPECT_EQ(count_in(text, "\"ph\": \"E\""), 8u);
  EXPECT_EQ(count_in(text, "\"args\": {\"dtype\": \"float32\", \"shape\": \"[2, 3]\"}"), 1u);
  EXPECT_EQ(count_in(text, "\"name\": \"CYCLE_START\""), 1u);
}

TEST_F(ControllerTimeline, MarksCyclesWhereItIsAskedTo) {
  const auto timeline = start(false);
  run_step(*timeline, monotonic_now());
  ASSERT_TRUE(timeline->stop().ok());
  EXPECT_EQ(count_in(text_of(path()), "CYCLE_START"), 0u);
}

TEST_F(ControllerTimeline, EventsAreInTheFileWhileItGoesOn) {
  const auto timeline = start();
  EXPECT_TRUE(testing::is_json(text_of(path()))) << "without any event";
  for (std::size_t step = 1; step <= 3; ++step) {
    const Time told = monotonic_now();
    run_step(*timeline, told);
    std::string text;
    EXPECT_TRUE(testing::eventually([&] {
      text = text_of(path());
      return count_in(text, "\"args\": {\"dtype\"") == 2 * step;
    }));
    EXPECT_TRUE(testing::is_json(text)) << text;
    RecordProperty("milliseconds" + std::to_string(step),
                   static_cast<int>((monotonic_now() - told) / kMillisecond));
  }
}

TEST_F(ControllerTimeline, WhatFailsIsShownAsAnError) {
  const auto timeline = start();
  Response response = response_of({make_request(Kind::kBroadcast, "x", {{2}})});
  response.error = Status(Code::kMismatch, "no");
  timeline->negotiating(0, response.requests[0], monotonic_now());
  timeline->agreed(0, response, monotonic_now());
  timeline->ended(0, response, monotonic_now());
  ASSERT_TRUE(timeline->stop().ok());
  const std::string text = text_of(path());
  EXPECT_EQ(count_in(text, "\"name\": \"NEGOTIATE_BROADCAST\""), 1u);
  EXPECT_EQ(count_in(text, "\"name\": \"ERROR\""), 1u);
  EXPECT_EQ(count_in(text, "\"name\": \"BROADCAST\""), 0u);
  EXPECT_EQ(count_in(text, "\"ph\": \"B\""), count_in(text, "\"ph\": \"E\""));
}

TEST_F(ControllerTimeline, WhatIsGivenUpEnds) {
  const auto timeline = start();
  const Response given_up = response_of({make_request(Kind::kAllReduce, "x", {{2}})});
  timeline->negotiating(0, given_up.requests[0], monotonic_now());
  timeline->ended(0, given_up, monotonic_now());
  timeline->ended(0, given_up, monotonic_now());
  ASSERT_TRUE(timeline->stop().ok());
  const std::string text = text_of(path());
  EXPECT_EQ(count_in(text, "\"ph\": \"B\""), 1u);
  EXPECT_EQ(count_in(text, "\"ph\": \"E\""), 1u);
}

TEST_F(ControllerTimeline, WhatEndsWithoutAgreementEndsOnceWhateverItWasIn) {
  const auto timeline = start();
  const Request request = make_request(Kind::kAllReduce, "x", {{2}});
  timeline->negotiating(0, request, monotonic_now());
  timeline->given_up(0, request, monotonic_now());
  timeline->given_up(0, request, monotonic_now());
  ASSERT_TRUE(timeline->stop().ok());
  const std::string text = text_of(path());
  EXPECT_EQ(count_in(text, "\"ph\": \"B\""), 1u);
  EXPECT_EQ(count_in(text, "\"ph\": \"E\""), 1u);
}

// A name may be pending in two process sets at a time, and a join's beside another's.
TEST_F(ControllerTimeline, KeepsNamesOfDifferentProcessSetsAndOfJoinsApart) {
  const auto timeline = start();
  const Time now = monotonic_now();
  const Request sum = make_request(Kind::kAllReduce, "x", {{2}});
  const Request join = make_request(Kind::kJoin, "x");
  timeline->negotiating(0, sum, now);
  timeline->negotiating(3, sum, now);
  timeline->negotiating(0, join, now);
  timeline->agreed(3, response_of({sum}), now + kMicrosecond);
  timeline->activity(3, response_of({sum}), "TACO_ALLREDUCE", now + kMicrosecond);
  timeline->ended(3, response_of({sum}), now + 2 * kMicrosecond);
  ASSERT_TRUE(timeline->stop().ok());
  const std::string text = text_of(path());
  EXPECT_EQ(count_in(text, "\"NEGOTIATE_ALLREDUCE\""), 2u) << text;
  EXPECT_EQ(count_in(text, "\"NEGOTIATE_JOIN\""), 1u) << text;
  EXPECT_EQ(count_in(text, "\"name\": \"ALLREDUCE\""), 1u) << text;
  EXPECT_EQ(count_in(text, "{\"name\": \"x (process set 3)\"}"), 1u) << text;
  EXPECT_EQ(count_in(text, "{\"name\": \"x\"}"), 2u) << text;
  EXPECT_EQ(count_in(text, "\"ph\": \"B\""), 5u) << text;
  EXPECT_EQ(count_in(text, "\"ph\": \"E\""), 3u) << "of the other set's alone: " << text;
}

TEST_F(ControllerTimeline, AnyNameMakesValidJson) {
  const auto timeline = start();
  const std::string names[] = {"\xff\xfe", "tab\there", std::string("nul\0", 4), "\\", "\xc3\xa9"};
  for (const std::string& name : names) {
    timeline->negotiating(0, make_request(Kind::kBarrier, name), monotonic_now());
  }
  ASSERT_TRUE(timeline->stop().ok());
  const std::string text = text_of(path());
  EXPECT_TRUE(testing::is_json(text)) << text;
  EXPECT_EQ(text.find('\xff'), std::string::npos);
  EXPECT_EQ(count_in(text, "\"process_name\""), 1 + std::size(names));
}

TEST_F(ControllerTimeline, ABurstIsWrittenWhole) {
  const auto timeline = start();
  for (int step = 0; step < 3000; ++step) run_step(*timeline, monotonic_now());
  ASSERT_TRUE(timeline->stop().ok());
  const std::string text = text_of(path());
  EXPECT_TRUE(testing::is_json(text));
  EXPECT_EQ(count_in(text, "LOST"), 0u);
  EXPECT_EQ(count_in(text, "\"ph\": \"E\""), 8u * 3000);
  EXPECT_EQ(count_in(text, "\"process_name\""), 3u);
}

TEST_F(ControllerTimeline, WhatItHasNoRoomForIsCounted) {
  const auto timeline = start();
  const Time now = monotonic_now();
  for (int i = 0; i < 400'000; ++i) timeline->cycle(now);
  ASSERT_TRUE(timeline->stop().ok());
  const std::string text = text_of(path());
  EXPECT_TRUE(testing::is_json(text));
  const std::size_t written = count_in(text, "CYCLE_START");
  std::size_t lost = 0;
  for (std::size_t at = text.find("\"LOST "); at != std::string::npos;
       at = text.find("\"LOST ", at + 1)) {
    lost += std::stoul(text.substr(at + 6, 20));
  }
  EXPECT_EQ(written + lost, 400'000u);
}

TEST_F(ControllerTimeline, StopsOnceAndHearsNothingMore) {
  const auto timeline = start();
  std::thread other([&] { EXPECT_TRUE(timeline->stop().ok()); });
  EXPECT_TRUE(timeline->stop().ok());
  other.join();
  const std::string before = text_of(path());
  run_step(*timeline, monotonic_now());
  EXPECT_TRUE(timeline->stop().ok());
  EXPECT_EQ(text_of(path()), before);
}

TEST_F(ControllerTimeline, AFileThatCannotBeWrittenIsNamed) {
  const auto timeline = Timeline::start(folder_ / "no/such/folder.json", false);
  ASSERT_FALSE(timeline.ok());
  EXPECT_EQ(timeline.status().code(), Code::kInvalidArgument);
  EXPECT_NE(timeline.status().message().find("no/such/folder.json"), std::string::npos);
  EXPECT_FALSE(Timeline::start("/dev/full", false).ok());
}

TEST_F(ControllerTimeline, AForkedChildLeavesItToItsParent) {
  auto timeline = start();
  run_step(*timeline, monotonic_now());
  const pid_t child = fork();
  if (child == 0) {
    const bool stopped = timeline->stop().ok();
    timeline.reset();
    _exit(stopped ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ASSERT_TRUE(timeline->stop().ok());
  EXPECT_EQ(count_in(text_of(path()), "\"ph\": \"E\""), 8u);
}

}  // namespace
}  // namespace taco::pg::controller
