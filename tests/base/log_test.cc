#include "base/log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <regex>
#include <string>
#include <thread>
#include <vector>

namespace taco {
namespace {

std::vector<std::string> lines;
std::vector<LogLevel> levels;  // of the lines
void capture(LogLevel level, std::string_view line) {
  levels.push_back(level);
  lines.emplace_back(line);
}

class Log : public ::testing::Test {
 protected:
  Log() {
    lines.clear();
    levels.clear();
    set_log_sink(capture);
    set_log_level(LogLevel::kInfo);
    set_log_rank(-1);
  }
  ~Log() override {
    set_log_sink(nullptr);
    set_log_level(LogLevel::kInfo);
    set_log_rank(-1);
  }
};

TEST_F(Log, ALineHasTimeLevelRankComponentAndText) {
  set_log_rank(3);
  TACO_LOG_INFO("harp", "session to %s:%d established", "10.0.0.2", 4123);
  ASSERT_EQ(lines.size(), 1u);
  const std::regex form(
      R"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6} INFO rank 3 harp: session to 10\.0\.0\.2:4123 )"
      R"(established)");
  EXPECT_TRUE(std::regex_match(lines[0], form)) << lines[0];
}

TEST_F(Log, AnUnknownRankIsADash) {
  TACO_LOG_ERROR("pg", "x");
  EXPECT_NE(lines.at(0).find(" ERROR rank - pg: x"), std::string::npos) << lines.at(0);
  EXPECT_EQ(levels.at(0), LogLevel::kError);
}

TEST_F(Log, LinesBelowTheLevelAreNeitherWrittenNorFormatted) {
  int formatted = 0;
  const auto count = [&formatted] { return ++formatted; };
  TACO_LOG_DEBUG("pg", "%d", count());
  set_log_level(LogLevel::kError);
  TACO_LOG_INFO("pg", "%d", count());
  log(LogLevel::kWarning, "pg", "no");
  EXPECT_TRUE(lines.empty());
  EXPECT_EQ(formatted, 0);
  set_log_level(LogLevel::kOff);
  TACO_LOG_ERROR("pg", "no");
  EXPECT_TRUE(lines.empty());
}

TEST_F(Log, LongTextIsWholeAndNewlinesBecomeSpaces) {
  const std::string text(10'000, 'x');
  TACO_LOG_INFO("pg", "%s\nend", text.c_str());
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find(text + " end"), std::string::npos);
}

TEST_F(Log, WithoutASinkWholeLinesReachStandardError) {
  set_log_sink(nullptr);
  ::testing::internal::CaptureStderr();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 100; ++i) TACO_LOG_INFO("pg", "line of a thread");
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string written = ::testing::internal::GetCapturedStderr();
  const std::regex form(R"([^\n]* INFO rank - pg: line of a thread\n)");
  const auto begin = std::sregex_iterator(written.begin(), written.end(), form);
  EXPECT_EQ(std::distance(begin, std::sregex_iterator()), 400);
  EXPECT_EQ(std::count(written.begin(), written.end(), '\n'), 400);
}

}  // namespace
}  // namespace taco
