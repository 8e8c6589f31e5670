#include "pg/planning/topology.h"

#include <gtest/gtest.h>

namespace taco::pg {
namespace {

TEST(Topology, groups_ranks_by_host_whatever_their_order) {
  const Topology topology = *Topology::make({1, 0, 1, 2, 0, 1}, {10, 25, 1});
  EXPECT_EQ(topology.world(), 6);
  EXPECT_EQ(topology.hosts(), 3);
  EXPECT_EQ(topology.ranks_of(1), (std::vector<int>{0, 2, 5}));
  EXPECT_EQ(topology.local_index_of(5), 2);
  EXPECT_EQ(topology.min_ranks_per_host(), 1);
  EXPECT_EQ(topology.max_ranks_per_host(), 3);
  EXPECT_EQ(topology.min_gbits(), 1);
  EXPECT_TRUE(topology.same_host(1, 4));
  EXPECT_FALSE(topology.same_host(0, 1));
}

TEST(Topology, host_order_enters_each_host_once) {
  const Topology topology = *Topology::make({1, 0, 1, 2, 0, 1}, {});
  EXPECT_EQ(topology.host_order(), (std::vector<int>{1, 4, 0, 2, 5, 3}));
  for (int rank = 0; rank < topology.world(); ++rank) {
    EXPECT_EQ(topology.host_order()[topology.position_of(rank)], rank);
  }
}

TEST(Topology, refuses_hosts_that_are_missing_or_negative) {
  EXPECT_EQ(Topology::make({}, {}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Topology::make({0, 2}, {}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Topology::make({0, -1}, {}).status().code(), Code::kInvalidArgument);
}

TEST(Topology, an_unknown_speed_is_not_the_slowest) {
  EXPECT_EQ(Topology::make({0, 1}, {0, 25})->min_gbits(), 25);
  EXPECT_EQ(Topology::make({0, 1}, {})->min_gbits(), 0);
}

TEST(Topology, groups_are_the_hosts_unless_their_size_is_given) {
  const Topology topology = *Topology::make({1, 0, 1, 0, 1, 0}, {10, 25});
  EXPECT_EQ(&topology.groups(), &topology);
  const Topology grouped = *topology.grouped(2);
  EXPECT_EQ(grouped.hosts(), 2) << "still the real one";
  EXPECT_EQ(grouped.min_gbits(), 10);
  EXPECT_EQ(grouped.groups().hosts(), 3);
  EXPECT_EQ(grouped.groups().ranks_of(0), (std::vector<int>{1, 3}));
  EXPECT_EQ(grouped.groups().ranks_of(1), (std::vector<int>{0, 5})) << "of both hosts";
  EXPECT_EQ(grouped.groups().ranks_of(2), (std::vector<int>{2, 4}));
  const Topology copy = grouped;
  EXPECT_EQ(copy.groups().hosts(), 3);
}

TEST(Topology, a_size_that_does_not_divide_the_world_is_refused_with_the_sizes_of_the_hosts) {
  const Topology topology = *Topology::make({0, 0, 0, 1, 1}, {});
  for (const int size : {2, 3, 4, 6, 0, -1}) {
    const Status status = topology.grouped(size).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << size;
    EXPECT_NE(status.message().find("hosts with 3, 2 ranks"), std::string::npos)
        << status.message();
  }
  EXPECT_TRUE(topology.grouped(1).ok());
  EXPECT_TRUE(topology.grouped(5).ok());
}

}  // namespace
}  // namespace taco::pg
