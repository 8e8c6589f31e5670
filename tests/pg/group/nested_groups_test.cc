#include "pg/group/nested_groups.h"

#include <gtest/gtest.h>

#include <set>

#include "support/pg_values.h"

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
