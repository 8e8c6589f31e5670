#include "harp/engine/interfaces.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "harp/engine/host_identity.h"
#include "support/ip.h"

namespace taco::harp {
namespace {

// As a Network finds it.
std::vector<Interface> with_bridge(std::vector<Interface> host) {
  for (Interface& each : host) each.overlay = each.name == "docker0";
  return host;
}

// A host with two networks, a container bridge and an interface that is down.
const std::vector<Interface> kHost = with_bridge(
    {interface("lo", "127.0.0.1"), interface("lo", "::1"), interface("docker0", "172.17.0.1"),
     interface("eth0", "10.0.0.5"), interface("eth0", "fe80::5"), interface("eth1", "192.168.7.5"),
     interface("eth2", "10.9.9.9", false)});

// 10.0.0.0/24 and everything else by eth0, 192.168.7.0/24 by eth1, loopback by itself.
std::vector<Endpoint> route(const Endpoint& to) {
  const std::string text = to_string(to);
  if (sockaddr_of(to)->sa_family == AF_INET6) return {};
  if (text.starts_with("127.")) return {ip("127.0.0.1")};
  if (text.starts_with("192.168.7.")) return {ip("192.168.7.5")};
  return {ip("10.0.0.5")};
}

std::string names(const Result<std::vector<Interface>>& chosen) {
  if (!chosen.ok()) return chosen.status().message();
  std::string text;
  for (const Interface& each : chosen.value()) {
    text += (text.empty() ? "" : " ") + each.name + "=" + to_string(each.address);
  }
  return text;
}

TEST(InterfacesTest, the_route_to_the_master_decides) {
  EXPECT_EQ(names(choose_interfaces(kHost, {{}, {}, {ip("192.168.7.1")}}, route)),
            "eth1=192.168.7.5 eth0=10.0.0.5");
  EXPECT_EQ(names(choose_interfaces(kHost, {{}, {}, {ip("10.0.0.1")}}, route)),
            "eth0=10.0.0.5 eth1=192.168.7.5");
}

TEST(InterfacesTest, the_masters_own_host_publishes_what_others_find_their_way_by_as_well) {
  EXPECT_EQ(names(choose_interfaces(kHost, {{}, {}, {ip("192.168.7.5")}}, route)),
            "eth1=192.168.7.5 eth0=10.0.0.5");
  EXPECT_EQ(names(choose_interfaces(kHost, {{}, {}, {ip("127.0.0.1")}}, route)),
            "eth0=10.0.0.5 eth1=192.168.7.5 lo=127.0.0.1");
}

// Each costs a descriptor. Of other interfaces both count: somebody may have one of the two alone.
TEST(InterfacesTest, one_address_of_loopback_will_do) {
  std::vector<Interface> host = kHost;
  host.push_back(interface("eth0", "fd00::5"));
  EXPECT_EQ(names(choose_interfaces(host, {{}, {}, {}}, route)),
            "eth0=10.0.0.5 eth1=192.168.7.5 eth0=fd00::5 lo=127.0.0.1");
  EXPECT_EQ(names(choose_interfaces(host, {{"lo"}, {}, {}}, route)), "lo=127.0.0.1 lo=::1");
}

TEST(InterfacesTest, a_bridge_is_used_where_there_is_nothing_else) {
  const std::vector<Interface> host =
      with_bridge({interface("lo", "127.0.0.1"), interface("docker0", "172.17.0.1")});
  const auto nowhere = [](const Endpoint&) { return std::vector<Endpoint>(); };
  EXPECT_EQ(names(choose_interfaces(host, {{}, {}, {}}, nowhere)),
            "docker0=172.17.0.1 lo=127.0.0.1");
}

TEST(InterfacesTest, an_address_of_one_link_is_published_over_ipv4_only) {
  const auto by_link = [](const Endpoint& to) -> std::vector<Endpoint> {
    return {ip(sockaddr_of(to)->sa_family == AF_INET6 ? "fe80::5" : "169.254.0.5")};
  };
  std::vector<Interface> host = kHost;
  host.push_back(interface("eth3", "169.254.0.5"));
  EXPECT_EQ(names(choose_interfaces(host, {{}, {}, {ip("169.254.0.1")}}, by_link)),
            "eth3=169.254.0.5 eth0=10.0.0.5 eth1=192.168.7.5");
  EXPECT_EQ(names(choose_interfaces(host, {{}, {}, {ip("169.254.0.5")}}, by_link)),
            "eth3=169.254.0.5 eth0=10.0.0.5 eth1=192.168.7.5");
  EXPECT_EQ(names(choose_interfaces(host, {{"eth3"}, {}, {}}, by_link)), "eth3=169.254.0.5");
  EXPECT_EQ(names(choose_interfaces(host, {{}, {"docker0", "lo"}, {ip("fe80::1")}}, by_link)),
            "eth0=10.0.0.5 eth1=192.168.7.5");
}

TEST(InterfacesTest, a_master_that_does_not_resolve_is_no_obstacle) {
  EXPECT_EQ(names(choose_interfaces(kHost, {{}, {}, resolve("no.such.host.invalid")}, route)),
            "eth0=10.0.0.5 eth1=192.168.7.5 lo=127.0.0.1");
}

TEST(InterfacesTest, names_pick_and_exclusions_drop) {
  EXPECT_EQ(names(choose_interfaces(kHost, {{"eth1", "eth0"}, {}, {}}, route)),
            "eth1=192.168.7.5 eth0=10.0.0.5");
  EXPECT_EQ(names(choose_interfaces(kHost, {{}, {"docker0", "lo"}, {}}, route)),
            "eth0=10.0.0.5 eth1=192.168.7.5");
  // Who only excludes still wants the way to the master first.
  EXPECT_EQ(names(choose_interfaces(kHost, {{}, {"docker0", "lo"}, {ip("192.168.7.1")}}, route)),
            "eth1=192.168.7.5 eth0=10.0.0.5");
}

TEST(InterfacesTest, an_unknown_or_dead_interface_is_an_error_that_lists_what_exists) {
  const auto unknown = choose_interfaces(kHost, {{"eth7"}, {}, {}}, route);
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.status().code(), Code::kInvalidArgument);
  EXPECT_NE(unknown.status().message().find("\"eth7\" does not exist"), std::string::npos);
  EXPECT_NE(unknown.status().message().find("docker0, eth0, eth1, eth2 (down), lo"),
            std::string::npos)
      << unknown.status().message();
  EXPECT_FALSE(choose_interfaces(kHost, {{"eth2"}, {}, {}}, route).ok());
  EXPECT_FALSE(choose_interfaces(kHost, {{}, {"docker0", "lo", "eth0", "eth1"}, {}}, route).ok());
}

TEST(InterfacesTest, the_variable_either_names_or_excludes) {
  std::vector<std::string> picked, dropped;
  ASSERT_TRUE(parse_interface_names("eth0,eth1", &picked, &dropped).ok());
  EXPECT_EQ(picked, (std::vector<std::string>{"eth0", "eth1"}));
  picked.clear();
  ASSERT_TRUE(parse_interface_names("^docker0,^lo", &picked, &dropped).ok());
  EXPECT_EQ(dropped, (std::vector<std::string>{"docker0", "lo"}));
  dropped.clear();
  EXPECT_TRUE(parse_interface_names("", &picked, &dropped).ok());
  EXPECT_FALSE(parse_interface_names("eth0,^lo", &picked, &dropped).ok());
  EXPECT_FALSE(parse_interface_names("eth0,,eth1", &picked, &dropped).ok());
}

TEST(InterfacesTest, once_a_job_runs_named_interfaces_are_used_as_they_come) {
  std::vector<Interface> host = kHost;
  const auto names = [&](const InterfaceWish& wish) {
    std::string found;
    for (const Interface& each : interfaces_by_now(host, wish, route)) found += each.name + " ";
    return found;
  };
  const InterfaceWish named{.names = {"eth2", "eth1", "lo"}, .excluded = {}, .master = {}};
  EXPECT_EQ(names(named), "eth1 ");  // eth2 is down, and nothing is wrong with that any more
  host.back().up = true;
  EXPECT_EQ(names(named), "eth1 eth2 ");
  const InterfaceWish reaching{.names = {}, .excluded = {}, .master = {ip("10.0.0.1")}};
  EXPECT_EQ(names(reaching), "eth0 eth1 eth2 ");
  EXPECT_EQ(names({.names = {}, .excluded = {"eth2"}, .master = {}}).find("lo"), std::string::npos);
}

TEST(InterfacesTest, every_address_gets_a_port_before_any_gets_a_second_one) {
  const std::vector<Interface> chosen{kHost[3], kHost[5]};
  std::string spread;
  for (const LocalPort& local : spread_ports(chosen, 2)) {
    spread += local.interface.name + "/" + std::to_string(local.port) + " ";
  }
  EXPECT_EQ(spread, "eth0/0 eth1/0 eth0/1 eth1/1 ");
  EXPECT_EQ(spread_ports(chosen, 30).size(), kMaxPaths);
}

TEST(InterfacesTest, several_paths_have_ports_to_spare) {
  EXPECT_EQ(ports_for(1), 1);
  EXPECT_EQ(ports_for(2), 4);
}

TEST(InterfacesTest, what_is_not_chosen_says_why) {
  InterfaceWish wish{{}, {}, {ip("10.0.0.1")}};
  const auto chosen = choose_interfaces(kHost, wish, route);
  ASSERT_TRUE(chosen.ok());
  const auto why = [&](std::size_t i) { return why_not_chosen(kHost[i], chosen.value(), wish); };
  EXPECT_EQ(why(0), "leads to no other host");
  EXPECT_NE(why(2).find("bridge"), std::string::npos);
  EXPECT_NE(why(4).find("one link only"), std::string::npos);
  EXPECT_EQ(why(6), "down");
  wish.names = {"eth1"};
  EXPECT_EQ(why(3), "not named in TACO_IFNAME");
  wish = {{}, {"eth0"}, {}};
  EXPECT_EQ(why(3), "excluded by TACO_IFNAME");
}

// eth0 and eth1 on one network, eth2 on another, and one without a carrier.
TEST(InterfacesTest, two_interfaces_may_share_a_network) {
  std::vector<Interface> host{interface("lo", "127.0.0.1"),  interface("eth0", "10.0.0.5"),
                              interface("eth0", "10.0.0.6"), interface("eth1", "10.0.0.7"),
                              interface("eth2", "10.0.1.5"), interface("eth3", "10.0.0.8", false)};
  for (Interface& each : host) each.network = {1, 24};
  EXPECT_TRUE(shares_network(host[1], host));
  EXPECT_TRUE(shares_network(host[3], host));
  EXPECT_FALSE(shares_network(host[4], host));
  EXPECT_FALSE(shares_network(host[0], host));
  host[3].up = false;
  EXPECT_TRUE(shares_network(host[1], host)) << "the kernel's route by it stays";
  std::erase_if(host,
                [](const Interface& each) { return each.name == "eth1" || each.name == "eth3"; });
  EXPECT_FALSE(shares_network(host[1], host)) << "two addresses of one interface";
}

TEST(InterfacesTest, networks_are_compared_by_their_first_bits) {
  EXPECT_TRUE(same_network(ip("10.0.0.5"), ip("10.0.0.200"), 24));
  EXPECT_FALSE(same_network(ip("10.0.0.5"), ip("10.0.0.200"), 25));
  EXPECT_TRUE(same_network(ip("10.0.0.5"), ip("10.0.0.127"), 25));
  EXPECT_FALSE(same_network(ip("10.0.0.5"), ip("10.0.0.7"), 32));
  EXPECT_TRUE(same_network(ip("fd00:1::5"), ip("fd00:1::77"), 64));
  EXPECT_FALSE(same_network(ip("fd00:1::5"), ip("fd00:2::5"), 32));
  EXPECT_FALSE(same_network(ip("10.0.0.5"), ip("fd00::5"), 1));
}

TEST(HostIdentityTest, is_stable_within_a_host_and_can_be_overridden) {
  EXPECT_EQ(host_identity(""), host_identity(""));
  EXPECT_NE(host_identity(""), "");
  EXPECT_EQ(host_identity("rack-3"), "rack-3");
  EXPECT_NE(host_name(), "");
}

}  // namespace
}  // namespace taco::harp
