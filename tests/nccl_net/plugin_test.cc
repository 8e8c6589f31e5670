// The plugin as NCCL's proxies drive it: every table, inside a host and between two.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <array>
#include <cstdio>
#include <regex>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ext/nccl/check/checks.h"
#include "ext/nccl/check/processes.h"
#include "support/network.h"

namespace harp::nccl::check {
namespace {

Part part_of(int table, std::vector<std::string> namespaces = {}) {
  return {.program = HARP_NCCL_CHECK,
          .plugin = HARP_NCCL_PLUGIN,
          .table = table,
          .limit = 500 * taco::kSecond,
          .namespaces = std::move(namespaces)};
}

// A variable for the processes that are started meanwhile.
class Setting {
 public:
  Setting(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Setting() { unsetenv(name_); }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  const char* const name_;
};

std::vector<std::string> names_of_checks() {
  std::vector<std::string> names;
  for (const Check& check : all_checks()) names.emplace_back(check.name);
  return names;
}

std::string joined(std::string name) {
  for (char& each : name) each = each == '-' ? '_' : each;
  return name;
}

// Why the plugin fails it; "": it does not.
std::string failure_of(const std::string& check, const Part& part) {
  const Check* const known = check_named(check);
  return known == nullptr ? "there is no check " + check : run(*known, part);
}

struct Way {
  const char* transport;
  int table;
  const char* engines = "1";
};

class Plugin : public ::testing::TestWithParam<std::tuple<std::string, Way>> {};

TEST_P(Plugin, does_as_NCCL_demands) {
  const auto& [check, way] = GetParam();
  const Setting transport("TACO_TRANSPORT", way.transport);
  const Setting engines("TACO_HARP_ENGINES", way.engines);
  EXPECT_EQ(failure_of(check, part_of(way.table)), "");
}

INSTANTIATE_TEST_SUITE_P(All, Plugin,
                         ::testing::Combine(::testing::ValuesIn(names_of_checks()),
                                            ::testing::Values(Way{"shm", 12}, Way{"udp", 11},
                                                              Way{"auto", 10},
                                                              Way{"udp", 12, "2"})),
                         [](const auto& instance) {
                           const Way way = std::get<Way>(instance.param);
                           return joined(std::get<std::string>(instance.param)) + "_" +
                                  way.transport + "_v" + std::to_string(way.table) + "_" +
                                  way.engines + (way.engines[0] == '1' ? "_engine" : "_engines");
                         });

// The last namespace is the bridge's.
std::vector<std::string> two_of(const taco::testing::Network& network) {
  return {network.namespaces()[0], network.namespaces()[1]};
}

class PluginBetweenHosts : public ::testing::TestWithParam<std::string> {};

TEST_P(PluginBetweenHosts, does_as_NCCL_demands) {
  HOSTS_OR_SKIP(2);
  EXPECT_EQ(failure_of(GetParam(), part_of(0, two_of(network))), "");
}

INSTANTIATE_TEST_SUITE_P(All, PluginBetweenHosts, ::testing::ValuesIn(names_of_checks()),
                         [](const auto& instance) { return joined(instance.param); });

// The value of a counter of the host's kernel: "Tcp OutSegs".
long counter(const std::string& host, const std::string& protocol, const std::string& name) {
  const std::string command = "ip netns exec " + host + " cat /proc/net/snmp";
  FILE* const out = popen(command.c_str(), "r");
  std::array<char, 4096> line;
  std::vector<std::string> names;
  while (out != nullptr && fgets(line.data(), line.size(), out) != nullptr) {
    std::istringstream words(line.data());
    std::string word;
    words >> word;
    if (word != protocol + ":") continue;
    std::vector<std::string> row;
    while (words >> word) row.push_back(word);
    if (names.empty()) {
      names = row;
      continue;
    }
    pclose(out);
    for (std::size_t i = 0; i < names.size() && i < row.size(); ++i) {
      if (names[i] == name) return std::stol(row[i]);
    }
    return -1;
  }
  if (out != nullptr) pclose(out);
  return -1;
}

// The exchange carries more than 20 MB each way, which TCP would cut into segments of 1,448 bytes.
TEST(PluginsPackets, are_HARP_s) {
  HOSTS_OR_SKIP(2);
  const std::string& host = network.namespaces()[0];
  ASSERT_EQ(failure_of("exchange", part_of(0, two_of(network))), "");
  EXPECT_GT(counter(host, "Udp", "OutDatagrams"), 100);
  const long segments = counter(host, "Tcp", "OutSegs");
  EXPECT_GE(segments, 1) << "where they connected";
  EXPECT_LT(segments, 100);
}

// In NCCL's log, which the processes show on stderr like this.
TEST(PluginsLog, names_the_process_that_was_killed) {
  const Setting debug("NCCL_DEBUG", "WARN");
  ::testing::internal::CaptureStderr();
  const std::string failure = failure_of("killed", part_of(0));
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(failure, "");
  const std::regex named("the connection (to|from) pid [0-9]+ on .* has failed: ");
  EXPECT_TRUE(std::regex_search(log, named)) << log;
}

}  // namespace
}  // namespace harp::nccl::check
