#include "harp/engine/routes.h"

#include <gtest/gtest.h>

#include "support/ip.h"

namespace taco::harp {
namespace {

// 10.0.0.0/24 and everything else by one interface, loopback by itself.
std::vector<Endpoint> route(const Endpoint& to) {
  if (sockaddr_of(to)->sa_family == AF_INET6) return {};
  return {ip(to_string(to).starts_with("127.") ? "127.0.0.1" : "10.0.0.5")};
}

std::vector<PathAddress> own_paths() {
  return {{ip("10.0.0.5", 1000), 1500, 0}, {ip("127.0.0.1", 1001), 65'536, 0}};
}

TEST(RoutesTest, a_peer_on_another_host_is_never_reached_over_loopback) {
  Address peer;
  peer.host_name = "nodeb";
  peer.pid = 77;
  peer.paths = {{ip("127.0.0.1", 2000), 65'536, 0}};
  const auto refused = choose_routes(own_paths(), peer, false, route);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kRendezvous);
  EXPECT_NE(refused.status().message().find("nodeb"), std::string::npos);
  EXPECT_NE(refused.status().message().find("TACO_IFNAME"), std::string::npos);

  peer.paths.push_back({ip("10.0.0.6", 2001), 1500, 0});
  const auto reached = choose_routes(own_paths(), peer, false, route);
  ASSERT_TRUE(reached.ok()) << reached.status().message();
  EXPECT_EQ(reached.value().front().local_path, 0u);
  EXPECT_EQ(to_string(reached.value().front().remote.endpoint), "10.0.0.6:2001");
}

TEST(RoutesTest, a_peer_of_the_other_internet_protocol_is_an_error_that_says_so) {
  Address peer;
  peer.host_name = "nodeb";
  peer.paths = {{ip("fd00::7", 2000), 1500, 0}};
  const auto refused = choose_routes(own_paths(), peer, false, route);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kRendezvous);
  for (const char* word : {"[fd00::7]:2000", "10.0.0.5:1000", "IPv4", "IPv6", "TACO_IFNAME"}) {
    EXPECT_NE(refused.status().message().find(word), std::string::npos)
        << refused.status().message();
  }
}

TEST(RoutesTest, a_peer_on_this_host_is_reached_over_loopback) {
  Address peer;
  peer.paths = {{ip("10.0.0.5", 2001), 1500, 0}, {ip("127.0.0.1", 2000), 65'536, 0}};
  const auto reached = choose_routes(own_paths(), peer, true, route);
  ASSERT_TRUE(reached.ok()) << reached.status().message();
  EXPECT_EQ(reached.value().front().local_path, 1u);
}

TEST(RoutesTest, each_network_that_both_have_is_a_way_of_its_own) {
  const std::vector<PathAddress> own = {{ip("10.0.0.5", 1000), 1500, 0},
                                        {ip("10.1.0.5", 1001), 1500, 0},
                                        {ip("172.17.0.1", 1002), 1500, 0},
                                        {ip("127.0.0.1", 1003), 65'536, 0}};
  // By networks of 16 bits; everything else goes by the default route, from the first.
  const RouteLookup by_network = [&](const Endpoint& to) -> std::vector<Endpoint> {
    const std::string network = to_string(to).substr(0, 5);
    for (const PathAddress& local : own) {
      if (to_string(local.endpoint).substr(0, 5) == network) return {local.endpoint};
    }
    return {own.front().endpoint};
  };
  Address peer;
  peer.paths = {{ip("10.1.0.6", 2001), 1500, 0},   {ip("10.0.0.6", 2000), 1500, 0},
                {ip("10.0.0.7", 2004), 1500, 0},   {ip("192.168.0.6", 2002), 1500, 0},
                {ip("172.17.0.1", 2003), 1500, 0}, {ip("127.0.0.1", 2005), 65'536, 0}};
  const auto routes = choose_routes(own, peer, false, by_network);
  ASSERT_TRUE(routes.ok()) << routes.status().message();
  ASSERT_EQ(routes.value().size(), 2u);  // the bridge, which both have, is none; nor is loopback
  EXPECT_EQ(routes.value()[0].local_path, 1u);
  EXPECT_EQ(to_string(routes.value()[0].remote.endpoint), "10.1.0.6:2001");
  EXPECT_EQ(routes.value()[1].local_path, 0u);
  EXPECT_EQ(to_string(routes.value()[1].remote.endpoint), "10.0.0.6:2000");
}

std::string text_of(const std::vector<PathAddress>& locals,
                    const Result<std::vector<Route>>& routes) {
  if (!routes.ok()) return routes.status().message();
  std::string text;
  for (const Route& each : routes.value()) {
    text +=
        to_string(locals[each.local_path].endpoint) + ">" + to_string(each.remote.endpoint) + " ";
  }
  return text;
}

// The kernel would send everything from the first.
TEST(RoutesTest, two_interfaces_on_one_network_are_two_ways) {
  const std::vector<PathAddress> own = {{ip("10.0.0.5", 1), 1500, 0}, {ip("10.0.0.6", 2), 1500, 0}};
  const RouteLookup both = [&](const Endpoint&) {
    return std::vector<Endpoint>{ip("10.0.0.5"), ip("10.0.0.6")};
  };
  Address peer;
  peer.paths = {{ip("10.0.0.7", 3), 1500, 0}, {ip("10.0.0.8", 4), 1500, 0}};
  EXPECT_EQ(text_of(own, choose_routes(own, peer, false, both)),
            "10.0.0.5:1>10.0.0.7:3 10.0.0.6:2>10.0.0.8:4 ");
  peer.paths.resize(1);
  EXPECT_EQ(text_of(own, choose_routes(own, peer, false, both)), "10.0.0.5:1>10.0.0.7:3 ");
}

TEST(RoutesTest, there_are_as_many_by_ports_as_the_side_with_more_has) {
  std::vector<PathAddress> own = {{ip("10.0.0.5", 1), 1500, 0}, {ip("10.0.0.5", 2), 1500, 0}};
  Address peer;
  peer.paths = {{ip("10.0.3.7", 5), 1500, 0}, {ip("10.0.3.7", 6), 1500, 0}};
  const auto chosen = [&](const RouterLookup& router = nullptr) {
    return text_of(own, choose_routes(own, peer, false, route, router));
  };
  EXPECT_EQ(chosen(), "10.0.0.5:1>10.0.3.7:5 10.0.0.5:2>10.0.3.7:6 ");
  EXPECT_EQ(chosen([](const Endpoint&) { return true; }), chosen());
  EXPECT_EQ(chosen([](const Endpoint&) { return false; }), "10.0.0.5:1>10.0.3.7:5 ");
  peer.paths.resize(1);
  EXPECT_EQ(chosen(), "10.0.0.5:1>10.0.3.7:5 10.0.0.5:2>10.0.3.7:5 ");
  own.resize(1);
  peer.paths = {
      {ip("10.0.3.7", 5), 1500, 0}, {ip("10.0.3.7", 6), 1500, 0}, {ip("10.0.3.7", 7), 1500, 0}};
  EXPECT_EQ(chosen(), "10.0.0.5:1>10.0.3.7:5 10.0.0.5:1>10.0.3.7:6 10.0.0.5:1>10.0.3.7:7 ");
}

TEST(RoutesTest, nobody_asks_for_routers_where_there_is_one_port_at_either_end) {
  const std::vector<PathAddress> own = {{ip("10.0.0.5", 1), 1500, 0}};
  Address peer;
  peer.paths = {{ip("10.0.3.7", 5), 1500, 0}};
  int asked = 0;
  const RouterLookup router = [&](const Endpoint&) { return ++asked > 0; };
  EXPECT_EQ(text_of(own, choose_routes(own, peer, false, route, router)), "10.0.0.5:1>10.0.3.7:5 ");
  EXPECT_EQ(asked, 0);
}

TEST(RoutesTest, several_ports_are_there_if_asked_for_or_behind_a_router) {
  const auto yes = [](const Endpoint&) { return true; };
  const auto no = [](const Endpoint&) { return false; };
  EXPECT_EQ(ports_wanted(0, 0, {ip("10.0.3.7")}, no), 1);
  EXPECT_EQ(ports_wanted(0, 0, {ip("10.0.3.7")}, yes), 4);
  EXPECT_EQ(ports_wanted(0, 4000, {ip("10.0.3.7")}, yes), 1) << "firewalls know of one";
  EXPECT_EQ(ports_wanted(0, 0, {}, yes), 1);
  EXPECT_EQ(ports_wanted(2, 4000, {ip("10.0.3.7")}, no), 2);
  EXPECT_EQ(ports_wanted(1, 0, {ip("10.0.3.7")}, yes), 1);
}

}  // namespace
}  // namespace taco::harp
