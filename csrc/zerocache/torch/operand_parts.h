// The parts that are made of what operators of torch are given: which pages of which parameters.
// A program may give ever other slices (rows that a batch draws), so those that were not asked for
// of late are forgotten.
//
// One thread at a time, as Uses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "zerocache/pages/page.h"
#include "zerocache/torch/uses.h"

namespace taco::zerocache {

class OperandParts {
 public:
  // A parameter, its first page that is touched, and how many are: sorted.
  using Pages = std::vector<std::tuple<Uses::Parameter, PageId, std::uint32_t>>;

  // `uses` outlives this object.
  explicit OperandParts(Uses& uses) : uses_(uses) {}

  // The same part for the same pages, as long as it is in use, or is asked for again before so many
  // others are.
  Uses::Part part_of(const Pages& pages);
  static constexpr std::size_t kMax = 1024;

 private:
  struct Known {
    Uses::Part part = 0;
    std::uint64_t asked = 0;  // when it was asked for last
  };
  void make_room();

  Uses& uses_;
  std::map<Pages, Known> parts_;
  std::uint64_t asked_ = 0;
};

}  // namespace taco::zerocache
