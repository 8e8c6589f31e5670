// The groups that are over in this process, so that messages for them can be distinguished from
// messages for a group that is not made here yet. Only the last few thousand: a message for an
// older one waits like any unmatched message, which uses up its sender's quota and no more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_set>
#include <vector>

namespace taco::harp {

class OverGroups {
 public:
  static constexpr std::size_t kMax = 4096;

  bool contains(std::uint64_t group) const { return known_.contains(group); }
  void add(std::uint64_t group) {
    if (!known_.insert(group).second) return;
    if (order_.size() < kMax) {
      order_.push_back(group);
      return;
    }
    known_.erase(order_[oldest_]);
    order_[oldest_] = group;
    oldest_ = (oldest_ + 1) % kMax;
  }
  std::size_t size() const { return known_.size(); }

 private:
  std::unordered_set<std::uint64_t> known_;
  std::vector<std::uint64_t> order_;  // a ring once it is full
  std::size_t oldest_ = 0;
};

}  // namespace taco::harp
