// A table of states beside the function that should say the same. Test support.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/machine.h"

namespace taco {

template <class State>
struct Follows {
  State from;
  std::vector<State> to;
};

// Every state must have its row.
template <class State>
void expect_table(const std::vector<Follows<State>>& table) {
  for (const Follows<State>& row : table) {
    for (const Follows<State>& other : table) {
      const bool expected = std::find(row.to.begin(), row.to.end(), other.from) != row.to.end();
      EXPECT_EQ(leads_to(row.from, other.from), expected)
          << "from " << static_cast<int>(row.from) << " to " << static_cast<int>(other.from);
    }
  }
}

}  // namespace taco
