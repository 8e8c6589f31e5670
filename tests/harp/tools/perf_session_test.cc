// A server of harp-perf and its client, as processes of this host.
#include "harp/tools/perf_session.h"

#include <gtest/gtest.h>

#include <functional>

#include "support/processes.h"

namespace taco::harp::perf {
namespace {

using ::taco::testing::Fellowship;
using ::taco::testing::run_processes;

// Rank 0 is the server; the other one gets a connection to it.
void with_server(const std::function<void(Connection)>& client, Code expected = Code::kOk) {
  const auto statuses = run_processes({2, 60 * kSecond, {}}, [&](Fellowship& fellowship) {
    if (fellowship.rank() == 0) {
      auto listener = Listener::at("127.0.0.1", 0);
      ASSERT_TRUE(listener.ok()) << listener.status().message();
      fellowship.all_gather(std::to_string(listener->port()));
      auto connection = listener->accept();
      ASSERT_TRUE(connection.ok());
      EXPECT_EQ(serve(std::move(connection).value()).code(), expected);
    } else {
      const auto port = static_cast<std::uint16_t>(std::stoi(fellowship.all_gather("")[0]));
      auto connection = Connection::to("127.0.0.1", port);
      ASSERT_TRUE(connection.ok()) << connection.status().message();
      client(std::move(connection).value());
    }
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

std::vector<Job> short_jobs() {
  std::vector<Job> jobs;
  for (const By by : {By::kHarp, By::kTcp, By::kTcpPolling}) {
    jobs.push_back({by, Measure::kLatency, 64, 20, 1, 1, 60});
    jobs.push_back({by, Measure::kBandwidth, 300'000, 1, 1, 3, 0.05});
    jobs.push_back({by, Measure::kRate, 8, 1, 16, 2, 0.05});
  }
  return jobs;
}

class Sessions : public ::testing::TestWithParam<const char*> {};

TEST_P(Sessions, measure_every_job_by_every_way) {
  with_server([](Connection connection) {
    std::size_t told = 0;
    const auto findings =
        measure(std::move(connection), {{"TACO_TRANSPORT", GetParam()}, {"TACO_PATHS", "2"}},
                short_jobs(), [&](const Row&) { ++told; });
    ASSERT_TRUE(findings.ok()) << findings.status().message();
    EXPECT_EQ(findings.value().transport.starts_with(GetParam()), true);
    EXPECT_EQ(told, short_jobs().size());
    for (const Row& row : findings.value().rows) {
      if (row.job.measure == Measure::kLatency) {
        EXPECT_EQ(row.client.half_round_trips.size(), 20u);
        continue;
      }
      EXPECT_GE(row.client.seconds, 0.05);
      EXPECT_GT(row.client.messages, 0u);
      EXPECT_EQ(row.client.messages % row.job.batch, 0u);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Transports, Sessions, ::testing::Values("shm", "udp"),
                         [](const auto& instance) { return std::string(instance.param); });

// On a slow way, or with large messages, as many rounds as by a fast one take minutes.
TEST(Sessions, end_a_latency_when_its_time_is_over) {
  with_server([](Connection connection) {
    std::vector<Job> jobs;
    for (const By by : {By::kHarp, By::kTcp, By::kTcpPolling}) {
      jobs.push_back({by, Measure::kLatency, 1 << 20, 100'000'000, 1, 1, 0.05});
      jobs.push_back({by, Measure::kLatency, 1, 100'000'000, 1, 1, 0.05});
    }
    const auto findings =
        measure(std::move(connection), {{"TACO_TRANSPORT", "udp"}}, jobs, [](const Row&) {});
    ASSERT_TRUE(findings.ok()) << findings.status().message();
    ASSERT_EQ(findings.value().rows.size(), jobs.size());
    for (const Row& row : findings.value().rows) {
      EXPECT_GT(row.client.half_round_trips.size(), 0u);
    }
  });
}

TEST(Sessions, have_all_engines_of_both_sides_measure_at_once) {
  with_server([](Connection connection) {
    const auto findings =
        measure(std::move(connection), {{"TACO_TRANSPORT", "udp"}, {"TACO_HARP_ENGINES", "2"}},
                short_jobs(), [](const Row&) {});
    ASSERT_TRUE(findings.ok()) << findings.status().message();
    EXPECT_EQ(findings.value().engines, 2u);
    for (const Row& row : findings.value().rows) {
      if (row.job.measure != Measure::kLatency) continue;
      EXPECT_EQ(row.client.half_round_trips.size(), row.job.by == By::kHarp ? 40u : 20u);
    }
  });
}

TEST(Sessions, end_where_the_sides_have_different_numbers_of_engines) {
  with_server(
      [](Connection connection) {
        setenv("TACO_HARP_ENGINES", "2", 1);
        const auto findings = measure(std::move(connection), {}, short_jobs(), {});
        EXPECT_NE(
            findings.status().message().find("TACO_HARP_ENGINES is 2 here and 1 on the other"),
            std::string::npos)
            << findings.status().message();
      },
      Code::kInvalidArgument);
}

TEST(Sessions, end_by_name_where_a_setting_is_wrong_on_either_side) {
  with_server(
      [](Connection connection) {
        const auto findings =
            measure(std::move(connection), {{"TACO_HARP_DRIVER", "pigeon"}}, short_jobs(), {});
        EXPECT_NE(findings.status().message().find("TACO_HARP_DRIVER=\"pigeon\""),
                  std::string::npos)
            << findings.status().message();
      },
      Code::kInvalidArgument);
}

void expect_failure(Connection& connection, const std::string& said) {
  const auto answer = connection.expect("ready");
  EXPECT_FALSE(answer.ok());
  EXPECT_NE(answer.status().message().find(said), std::string::npos) << answer.status().message();
}

TEST(Server, sets_nothing_for_a_client_but_what_is_for_it_to_set) {
  with_server(
      [](Connection connection) {
        ASSERT_TRUE(connection.send_line("harp-perf 3").ok());
        ASSERT_TRUE(connection.receive_line().ok());
        ASSERT_TRUE(connection.send_line("set LD_PRELOAD=/tmp/evil.so").ok());
        expect_failure(connection, "is not for a client of harp-perf to set");
      },
      Code::kInvalidArgument);
}

TEST(Server, refuses_a_client_of_another_version) {
  with_server(
      [](Connection connection) {
        ASSERT_TRUE(connection.send_line("harp-perf 9").ok());
        ASSERT_TRUE(connection.receive_line().ok());
        expect_failure(connection, "the other side says \"harp-perf 9\"");
      },
      Code::kVersionMismatch);
}

TEST(Server, ends_when_its_client_is_gone) {
  with_server([](Connection) {}, Code::kRendezvous);
}

TEST(Client, names_the_host_where_no_server_answers) {
  auto listener = Listener::at("127.0.0.1", 0);
  ASSERT_TRUE(listener.ok());
  const std::uint16_t port = listener->port();
  { const Listener closed = std::move(listener).value(); }
  const auto connection = Connection::to("127.0.0.1", port);
  EXPECT_NE(connection.status().message().find("no harp-perf --server answers at 127.0.0.1, port " +
                                               std::to_string(port)),
            std::string::npos)
      << connection.status().message();
}

}  // namespace
}  // namespace taco::harp::perf
