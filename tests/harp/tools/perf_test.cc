// harp-perf: its arguments, the plan that it makes of them, and its report.
#include <gtest/gtest.h>

#include <algorithm>

#include "harp/tools/perf_plan.h"
#include "harp/tools/perf_report.h"

namespace taco::harp::perf {
namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::vector<Job> jobs_for(const std::vector<std::string>& arguments) {
  Choices choices;
  const Status status = take_choices(arguments, choices);
  EXPECT_TRUE(status.ok()) << status.message();
  return jobs_of(choices);
}

TEST(PerfPlan, measures_what_was_asked_for_in_that_order_with_tcp_beside) {
  const auto jobs = jobs_for({"--measure", "rate,latency", "--sizes", "8,2K", "--tcp", "--batch",
                              "16", "--rounds=7", "--seconds", "0.5"});
  std::vector<std::string> lines;
  for (const Job& job : jobs) lines.push_back(line_of(job));
  const std::vector<std::string> expected = {
      "job harp rate 8 7 16 2 0.5",          "job tcp rate 8 7 16 2 0.5",
      "job harp rate 2048 7 16 2 0.5",       "job tcp rate 2048 7 16 2 0.5",
      "job harp latency 8 7 1 1 0.5",        "job tcp latency 8 7 1 1 0.5",
      "job tcp-polling latency 8 7 1 1 0.5", "job harp latency 2048 7 1 1 0.5",
      "job tcp latency 2048 7 1 1 0.5",      "job tcp-polling latency 2048 7 1 1 0.5"};
  EXPECT_EQ(lines, expected);
}

TEST(PerfPlan, has_some_of_every_measure_where_nothing_was_asked_for) {
  const auto jobs = jobs_for({});
  for (const Measure measure : {Measure::kLatency, Measure::kBandwidth, Measure::kRate}) {
    EXPECT_GT(std::ranges::count(jobs, measure, &Job::measure), 1);
  }
}

TEST(PerfPlan, sets_on_both_sides_what_was_asked_for) {
  Choices choices;
  ASSERT_TRUE(take_choices({"--paths", "4", "--driver", "udp", "--security=none", "--engines", "2",
                            "--cores", "0,1"},
                           choices)
                  .ok());
  std::string text;
  for (const Setting& each : settings_of(choices)) {
    if (!each.value.empty()) text += each.name + "=" + each.value + " ";
  }
  EXPECT_EQ(text,
            "TACO_HARP_DRIVER=udp TACO_PATHS=4 TACO_HARP_SECURITY=none TACO_HARP_ENGINES=2 "
            "TACO_HARP_CORES=0,1 ");
}

TEST(PerfPlan, names_what_is_wrong_and_what_to_do) {
  const struct {
    std::vector<std::string> arguments;
    const char* said;
  } cases[] = {
      {{"nodeb"}, "\"nodeb\" is no option; a server is named by --client nodeb"},
      {{"--client", "a", "--server"}, "--server or --client, not both"},
      {{"--measure", "speed"}, "--measure speed: must be some of latency, bandwidth and rate"},
      {{"--sizes", "8,x"}, "--sizes 8,x: must be bytes from 1 to 1073741824"},
      {{"--sizes", "0"}, "--sizes 0: must be bytes from 1"},
      {{"--paths", "9"}, "--paths 9: must be an integer from 1 to 8"},
      {{"--security", "high"}, "--security high: must be one of none, auth, encrypt"},
      {{"--sizes", "1G", "--window", "8"}, "lessen --sizes, --window or --batch"},
      {{"--once"}, "--once and --listen are for --server"},
      {{"--server", "--json"}, "--json and --tcp are the client's to say"},
      {{"--bytes", "8"}, "--bytes is for ranks that meet by files: it needs --files"},
      {{"--rank", "0", "--ranks", "3"}, "--rank needs --files"},
      {{"--files", "meet", "--rank", "5"}, "--rank 5 is none of 2 (--ranks): give 0 to 1"},
      {{"--files", "meet", "--rank", "3", "--ranks", "3"}, "--rank 3 is none of 3"},
      {{"--engines", "65"}, "--engines 65: must be an integer from 1 to 64"},
      {{"--files", "meet", "--engines", "2"}, "have one engine, without --engines or --cores"},
      {{"--files", "meet", "--tcp"}, "ranks that meet by files take no"},
  };
  for (const auto& each : cases) {
    Choices choices;
    const Status status = take_choices(each.arguments, choices);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << each.said;
    EXPECT_TRUE(has(status.message(), each.said)) << status.message();
  }
}

TEST(PerfJob, is_the_same_on_the_other_side) {
  const Job job{By::kTcpPolling, Measure::kBandwidth, 4096, 9, 3, 5, 0.25};
  const auto read = job_from(line_of(job));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(line_of(read.value()), line_of(job));
}

TEST(PerfJob, that_asks_for_too_much_or_is_none_is_refused) {
  for (const char* line :
       {"", "job", "job harp latency 8 1 1 1", "job harp latency 8 1 1 1 1 1",
        "job rdma latency 8 1 1 1 1", "job harp speed 8 1 1 1 1", "job harp rate 0 1 1 1 1",
        "job harp rate -1 1 1 1 1", "job harp rate 8 0 1 1 1", "job harp rate 8 1 0 1 1",
        "job harp rate 8 1 1 0 1", "job harp rate 8 1 1 1 0", "job harp rate 8 1 1 1 nan",
        "job harp rate 1073741824 1 5 1 1", "job harp rate 8 1 65536 65536 1",
        "jobs harp rate 8 1 1 1 1"}) {
    EXPECT_EQ(job_from(line).status().code(), Code::kInvalidArgument) << line;
  }
}

Row row_of(By by, Measure measure, std::uint64_t messages, double processor) {
  Row row;
  row.job = {.by = by, .measure = measure, .bytes = 1'000'000};
  row.client.messages = messages;
  row.client.seconds = 2;
  row.client.processor = processor;
  row.server.processor = 3 * processor;
  for (int i = 100; i > 0; --i) row.client.half_round_trips.push_back(i * 1000);
  return row;
}

TEST(PerfReport, puts_tcp_beside_with_the_ratio_and_the_processor_time_of_both_sides) {
  const std::string table = table_of({row_of(By::kHarp, Measure::kBandwidth, 8000, 0.2),
                                      row_of(By::kTcp, Measure::kBandwidth, 2000, 0.1)});
  EXPECT_TRUE(has(table, "4.000 0.100 CPU s/GB")) << table;
  EXPECT_TRUE(has(table, "1.000 0.200 CPU s/GB")) << table;
  EXPECT_TRUE(has(table, " 4.000x")) << table;
}

TEST(PerfReport, gives_the_median_and_the_tail_of_latencies_in_any_order) {
  Findings findings;
  findings.rows.push_back(row_of(By::kHarp, Measure::kLatency, 0, 0));
  EXPECT_TRUE(has(table_of(findings.rows), "50.000 p99 99.0")) << table_of(findings.rows);
  const std::string json = json_of(findings, {{"TACO_PATHS", "2"}, {"TACO_TRANSPORT", ""}});
  EXPECT_TRUE(has(json, R"("p50_us": 50, "p90_us": 90, "p99_us": 99)")) << json;
  EXPECT_TRUE(has(json, R"("settings": {"TACO_PATHS": "2"})")) << json;
}

}  // namespace
}  // namespace taco::harp::perf
