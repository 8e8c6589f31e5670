// Parameters that a pass of DDP does not use (find_unused_parameters). What earlier passes have
// left in their gradients lies in the bucket, too, and on ranks that have used them it is part of
// what is sent. Whether any rank has is known only at the end of the pass, by DDP's own map. So a
// rank that has not used one takes what was left out of the bucket; afterwards it owes that, or,
// where no rank has used the parameter, it comes back to its place.
//
// One pass of one model after the other; of the thread that runs the pass.
#pragma once

#include <memory>
#include <span>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <vector>

#include "pg/c10d/gradient_watch.h"
#include "pg/lightcc/gradients.h"

namespace taco::pg {

class UnusedGradients {
 public:
  // `order`: of the reducer's parameters the numbers that Gradients knows them by; -1: none.
  UnusedGradients(std::weak_ptr<c10d::Reducer> reducer, std::vector<int> order);

  // Called for a bucket that is about to be coded.
  void take_out(const lightcc::Gradients& gradients, const lightcc::Pass& pass);
  // Forgets what a pass that has failed has taken out.
  void clear() { left_.clear(); }
  // The pass over these parameters is over.
  void put_back(lightcc::Gradients& gradients, const GradientWatch& watch,
                const lightcc::Layout& parameters);

 private:
  struct Left {
    int parameter = 0;
    std::vector<float> values;  // empty: zeros
  };

  std::vector<int> used_by() const;  // so many ranks; by Gradients' numbers

  const std::weak_ptr<c10d::Reducer> reducer_;
  const std::vector<int> order_;
  std::vector<Left> left_;
};

}  // namespace taco::pg
