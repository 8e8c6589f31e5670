#include "base/list.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <vector>

namespace taco {
namespace {

struct Item {
  int value = 0;
  Links<Item> links;
};
using Items = List<Item, &Item::links>;

class ListTest : public ::testing::Test {
 protected:
  Item& item(int value) { return made_.emplace_back(Item{.value = value}); }
  static std::vector<int> values(const Items& items) {
    std::vector<int> all;
    for (const Item& one : items) all.push_back(one.value);
    return all;
  }

  std::deque<Item> made_;
  Items items_;
};

TEST_F(ListTest, an_empty_list_has_no_ends) {
  EXPECT_TRUE(items_.empty());
  EXPECT_EQ(items_.size(), 0u);
  EXPECT_EQ(items_.front(), nullptr);
  EXPECT_EQ(items_.back(), nullptr);
  EXPECT_EQ(items_.pop_front(), nullptr);
  EXPECT_EQ(items_.begin(), items_.end());
}

TEST_F(ListTest, objects_stand_where_they_were_put) {
  Item& two = item(2);
  items_.push_back(two);
  items_.push_front(item(1));
  items_.push_back(item(4));
  items_.insert_after(&two, item(3));
  items_.insert_after(nullptr, item(0));
  items_.insert_after(items_.back(), item(5));
  EXPECT_EQ(values(items_), (std::vector<int>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(items_.size(), 6u);
  EXPECT_EQ(Items::next(two)->value, 3);
  EXPECT_EQ(Items::previous(two)->value, 1);
}

TEST_F(ListTest, an_object_knows_whether_it_is_in_a_list_and_may_come_back) {
  Item& one = item(1);
  EXPECT_FALSE(Items::is_linked(one));
  items_.push_back(one);
  EXPECT_TRUE(Items::is_linked(one)) << "though it has no neighbours";
  items_.erase(one);
  EXPECT_FALSE(Items::is_linked(one));
  Items other;
  other.push_back(one);
  EXPECT_EQ(values(other), std::vector<int>{1});
  EXPECT_EQ(other.pop_front(), &one);
}

TEST_F(ListTest, a_loop_may_erase_the_object_it_is_at_and_append_others) {
  for (int i = 0; i < 6; ++i) items_.push_back(item(i));
  for (Item& one : items_) {
    if (one.value % 2 == 0) items_.erase(one);
    if (one.value == 3) items_.push_back(item(7));
  }
  EXPECT_EQ(values(items_), (std::vector<int>{1, 3, 5, 7}));
}

TEST_F(ListTest, it_agrees_with_a_vector_whatever_is_done) {
  std::mt19937 random(7);
  std::vector<Item*> expected, outside;
  for (int i = 0; i < 20; ++i) outside.push_back(&item(i));
  for (int step = 0; step < 20000; ++step) {
    const bool add = expected.empty() || (!outside.empty() && random() % 2 == 0);
    if (add) {
      Item* const one = outside.back();
      outside.pop_back();
      const std::size_t at = random() % (expected.size() + 1);
      items_.insert_after(at == 0 ? nullptr : expected[at - 1], *one);
      expected.insert(expected.begin() + static_cast<std::ptrdiff_t>(at), one);
    } else {
      const auto at = expected.begin() + static_cast<std::ptrdiff_t>(random() % expected.size());
      items_.erase(**at);
      outside.insert(outside.begin(), *at);
      expected.erase(at);
    }
    ASSERT_EQ(items_.size(), expected.size());
    ASSERT_TRUE(std::equal(items_.begin(), items_.end(), expected.begin(), expected.end(),
                           [](const Item& mine, const Item* theirs) { return &mine == theirs; }));
  }
}

TEST_F(ListTest, what_would_tear_a_list_apart_is_noticed) {
  if (!kAssertions) GTEST_SKIP() << "assertions are off in this build";
  Item& one = item(1);
  EXPECT_DEATH(items_.erase(one), "links.linked");
  items_.push_back(one);
  EXPECT_DEATH(items_.push_back(one), "it is in a list already");
  Items other;
  other.push_back(item(2));
  EXPECT_DEATH(other.erase(one), "it is in another list");
}

}  // namespace
}  // namespace taco
