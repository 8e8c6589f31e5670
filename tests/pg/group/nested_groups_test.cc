#include "pg/group/nested_groups.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "support/pg_values.h"
#include "support/rank_threads.h"

namespace taco::pg {
namespace {

using testing::Bytes;
using testing::piece;

GroupOptions alone() {
  GroupOptions options;
  options.id = 7;
  options.name = "root";
  options.timeout = kSecond;
  return options;
}

Status run(Communicator& group) {
  Bytes data(4);
  OperationSpec spec{.kind = Kind::kBroadcast};
  spec.outputs = {piece(data)};
  const Result<OperationPtr> operation = group.start(std::move(spec));
  return operation.ok() ? operation.value()->wait(0) : operation.status();
}

TEST(NestedGroups, IdsAreTheServicesAndFarApart) {
  std::set<std::uint64_t> ids;
  for (std::uint64_t of = 1; of <= 50; ++of) {
    for (std::uint64_t number = 0; number < 50; ++number) {
      const std::uint64_t id = NestedGroups::id_of(of, number);
      EXPECT_EQ(id, NestedGroups::id_of(of, number)) << "the same on all ranks";
      EXPECT_EQ(harp::service_of_group(id), harp::Service::kCollectives);
      EXPECT_NE(id, 0u);
      ids.insert(id);
      ids.insert(NestedGroups::id_of(of, ~number));
    }
  }
  EXPECT_EQ(ids.size(), 2u * 50 * 50);
}

TEST(NestedGroups, HaveTheRootsSettingsAndANameThatSaysSo) {
  NestedGroups groups(nullptr, alone());
  const auto first = *groups.open(11, groups.child_of(7), "/callback");
  EXPECT_EQ(first->options().name, "root/callback");
  EXPECT_EQ(first->options().parent.group, 7u);
  EXPECT_EQ(first->options().parent.root, 7u);
  EXPECT_EQ(first->options().timeout, kSecond);
  groups.set_timeout(3 * kSecond);
  EXPECT_EQ((*groups.open(12, {}, "/tuning"))->options().timeout, 3 * kSecond);
}

TEST(NestedGroups, OfSomeOfTheRanksNumberThemAndTheirHostsAnew) {
  testing::RankThreads ranks({.world = 6, .ranks_per_host = 2});
  GroupOptions root = ranks.group(3).options();
  root.host_gbits = {1, 2, 3};
  root.intra_size = 2;
  NestedGroups groups(ranks.network().stack(3), root);
  const std::vector<int> members = {2, 3, 5};
  const auto group =
      *groups.open(NestedGroups::id_of(root.id, 1), groups.child_of(root.id), "/some", {}, members);
  const GroupOptions& options = group->options();
  EXPECT_EQ(options.rank, 1);
  EXPECT_EQ(options.world, 3);
  EXPECT_EQ(options.global_ranks, members);
  EXPECT_EQ(options.host_of_rank, (std::vector<int>{0, 0, 1}));
  EXPECT_EQ(options.host_gbits, (std::vector<double>{2, 3}));
  EXPECT_EQ(options.peers,
            (std::vector<harp::PeerId>{root.peers[2], root.peers[3], root.peers[5]}));
  EXPECT_EQ(options.intra_size, 0);
  EXPECT_EQ(options.timeout, root.timeout);
  (void)group->close(0);
}

TEST(NestedGroups, OfSomeOfTheRanksRunWhatTheirMembersStart) {
  testing::RankThreads ranks({.world = 4});
  const std::vector<int> members = {0, 2, 3};
  testing::on_threads(4, [&](int rank) {
    if (rank == 1) return;
    const GroupOptions& root = ranks.group(rank).options();
    NestedGroups groups(ranks.network().stack(rank), root);
    const std::uint64_t id = NestedGroups::id_of(root.id, groups.next_family());
    const auto group = *groups.open(id, groups.child_of(root.id), "/some", {}, members);
    std::int64_t sum = rank;
    OperationSpec spec{.kind = Kind::kAllReduce, .dtype = kernels::Dtype::kI64};
    spec.inputs = spec.outputs = {{reinterpret_cast<std::byte*>(&sum), sizeof sum}};
    const auto operation = group->start(std::move(spec));
    ASSERT_TRUE(operation.ok()) << operation.status().message();
    EXPECT_TRUE(operation.value()->wait(0).ok());
    EXPECT_EQ(sum, 5);
    EXPECT_TRUE(groups.close(kSecond).ok());
  });
}

TEST(NestedGroups, RefuseMembersThatAreNone) {
  testing::RankThreads ranks({.world = 3});
  NestedGroups groups(ranks.network().stack(1), ranks.group(1).options());
  const std::vector<std::vector<int>> wrong = {{1, 0}, {1, 1}, {1, 3}, {-1, 1}, {0, 2}};
  for (const std::vector<int>& members : wrong) {
    const auto opened = groups.open(NestedGroups::id_of(9, 9), {}, "/some", {}, members);
    EXPECT_EQ(opened.status().code(), Code::kInvalidArgument) << opened.status().message();
  }
}

TEST(NestedGroups, NumberFamiliesInTheOrderInWhichTheyBegin) {
  NestedGroups groups(nullptr, alone());
  EXPECT_EQ(groups.next_family(), 0u);
  EXPECT_EQ(groups.next_family(), 1u);
}

TEST(NestedGroups, EndWithTheirRoot) {
  NestedGroups groups(nullptr, alone());
  const auto child = *groups.open(11, groups.child_of(7), "/callback");
  EXPECT_TRUE(run(*child).ok());
  EXPECT_TRUE(groups.close(kSecond).ok());
  EXPECT_EQ(run(*child).code(), Code::kAborted);
  EXPECT_EQ(groups.open(12, {}, "/callback").status().code(), Code::kAborted);
}

}  // namespace
}  // namespace taco::pg
