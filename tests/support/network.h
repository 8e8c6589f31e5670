// Hosts for tests: network namespaces on one bridge, 10.77.x.1, 10.77.x.2, ... Needs root; tests
// that use it skip with the reason where it cannot be had. Everything is taken down on destruction.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace taco::testing {

class Network {
 public:
  // `why_not` is set when the network could not be made.
  Network(int hosts, std::string* why_not, int mtu = 1500);
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  const std::vector<std::string>& namespaces() const { return hosts_; }
  std::string address(int host) const;
  // Runs a command in a host, quietly; true when it succeeded.
  bool run_in(int host, const std::string& command) const;
  // A cable of its own between hosts 0 and 1, of so many queues: q0 at the one, q1 at the other,
  // 10.99.1.1 and 10.99.1.2.
  bool lay_cable(int queues) const;
  // From now on (or no longer) the host's link loses everything, without losing carrier. One host
  // at a time.
  bool cut(int host) const;
  bool mend(int host) const;

 private:
  std::string prefix_;
  int subnet_ = 0;
  std::vector<std::string> hosts_;
};

// Declares `network`, of so many hosts (and of that MTU), or skips the test.
#define HOSTS_OR_SKIP(count, ...)                                               \
  std::string why_not;                                                          \
  ::taco::testing::Network network(count, &why_not __VA_OPT__(, ) __VA_ARGS__); \
  if (!why_not.empty()) GTEST_SKIP() << why_not

}  // namespace taco::testing
