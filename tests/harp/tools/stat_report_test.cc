// The report that harp-stat prints of given counters.
#include "harp/tools/stat_report.h"

#include <gtest/gtest.h>

#include "harp/address.h"

namespace taco::harp::statistics {
namespace {

Look look_of(std::uint64_t sent_bytes, Time seen) {
  Look look;
  look.pid = 42;
  look.program = "py\"thon";
  look.identity = 7;
  look.seen = seen;
  set_text(look.about.driver, "udp");
  set_text(look.about.transport, "shm+udp(eth0)");
  set_text(look.about.security, "auth");
  Totals& totals = look.state.totals;
  totals.time = static_cast<std::uint64_t>(seen);
  totals[Counter::kBytesSent] = sent_bytes;
  totals[Counter::kRetransmits] = 5;
  totals[Counter::kDroppedChecksum] = 3;
  totals[Counter::kDroppedDuplicate] = 2;
  Row& path = look.state.rows.emplace_back();
  path.reach = Reach::kNetwork;
  path.standing = Standing::kLive;
  path.local[10] = path.local[11] = path.remote[10] = path.remote[11] = std::byte{0xff};
  path.local[12] = path.remote[12] = std::byte{10};
  path.local[15] = std::byte{1};
  path.remote[15] = std::byte{2};
  path.local_port = 5000;
  path.remote_port = 6000;
  path.round_trip = 310'000;
  path.bytes_sent = sent_bytes;
  path.packets_lost = 4;
  set_text(path.name, "10.0.0.2:6000 (pid 5 on nodeb)");
  Row& memory = look.state.rows.emplace_back();
  memory.peer = 1;
  memory.reach = Reach::kMemory;
  memory.standing = Standing::kLive;
  set_text(memory.name, "pid 6 here");
  return look;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(StatReport, shows_rates_between_two_looks_and_drops_by_cause) {
  const std::vector<Look> before = {look_of(1'000'000, 10 * kSecond)};
  const std::vector<Look> now = {look_of(4'000'000'000, 12 * kSecond)};
  const std::string table = table_of(now, before);
  EXPECT_TRUE(has(table, "process 42, engine 0: driver udp, shm+udp(eth0), auth")) << table;
  EXPECT_TRUE(has(table, "out 2.00 GB/s")) << table;
  EXPECT_TRUE(has(table, "retransmits 5 (0 /s)")) << table;
  EXPECT_TRUE(has(table, "dropped: 3 checksum, 2 duplicate")) << table;
  EXPECT_TRUE(has(table, "10.0.0.1:5000 > 10.0.0.2:6000")) << table;
  EXPECT_TRUE(has(table, " 0.310 ")) << table;
  EXPECT_TRUE(has(table, "pid 6 here")) << table;
}

TEST(StatReport, has_no_rates_of_an_engine_that_was_not_there_before) {
  std::vector<Look> before = {look_of(1'000'000, 10 * kSecond)};
  before[0].identity = 8;
  EXPECT_TRUE(has(table_of({look_of(2'000'000, 11 * kSecond)}, before), "network: out -, in -"));
}

// An engine writes its page when something happens: of one that was idle for an hour and has just
// sent, the second between the looks counts, not the hour.
TEST(StatReport, does_not_spread_traffic_over_the_time_before_the_first_look) {
  std::vector<Look> before = {look_of(1'000'000, 5000 * kSecond)};
  before[0].state.totals.time = static_cast<std::uint64_t>(1400 * kSecond);
  std::vector<Look> now = {look_of(1'991'000'000, 5000 * kSecond + 900 * kMillisecond)};
  EXPECT_TRUE(has(table_of(now, before), "out 1.99 GB/s")) << table_of(now, before);
}

TEST(StatReport, is_json_for_machines) {
  Everything all;
  all.looks.push_back(look_of(4000, kSecond));
  all.problems.push_back("process 9 (a\n) is stopped");
  const std::string json = json_of(all);
  EXPECT_TRUE(has(json, R"("layout": 2)")) << json;
  EXPECT_TRUE(has(json, R"("program": "py\"thon")")) << json;
  EXPECT_TRUE(has(json, R"("sent_bytes": 4000)")) << json;
  EXPECT_TRUE(has(json, R"("dropped_packets": {"checksum": 3, "forged": 0)")) << json;
  EXPECT_TRUE(has(json, R"("local": "10.0.0.1:5000", "remote": "10.0.0.2:6000")")) << json;
  EXPECT_TRUE(has(json, R"("round_trip_s": 0.00031)")) << json;
  EXPECT_TRUE(has(json, R"("problems": ["process 9 (a\u000a) is stopped"])")) << json;
  EXPECT_EQ(json.find('\n'), std::string::npos);
}

TEST(StatReport, names_each_metric_of_prometheus_once) {
  Look second = look_of(9, kSecond);
  second.pid = 43;
  const std::string text = prometheus_of({look_of(4000, kSecond), second});
  EXPECT_TRUE(has(text, "# TYPE harp_sent_bytes_total counter\n")) << text;
  EXPECT_TRUE(has(text, "# TYPE harp_sessions gauge\n")) << text;
  EXPECT_TRUE(has(text, R"(program="py\"thon",driver="udp"} 4000)")) << text;
  EXPECT_TRUE(has(text, R"(cause="checksum"} 3)")) << text;
  EXPECT_TRUE(has(text, R"(remote="10.0.0.2:6000"} 0.00031)")) << text;
  const std::string heading = "# TYPE harp_dropped_packets_total";
  const std::size_t first = text.find(heading);
  ASSERT_NE(first, std::string::npos);
  EXPECT_EQ(text.find(heading, first + 1), std::string::npos);
  EXPECT_EQ(
      text.find("harp_path_live{pid=\"42\",engine=\"0\",program=\"py\\\"thon\",driver=\"udp\","
                "peer=\"pid 6"),
      std::string::npos);
}

}  // namespace
}  // namespace taco::harp::statistics
