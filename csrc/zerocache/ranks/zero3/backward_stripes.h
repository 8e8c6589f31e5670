// The optimizer's step, taken while a backward pass goes on, where parameters are spread over ranks
// (stripes.h): each rank steps its page of a stripe as soon as the means of all gradients there are
// known, and copies that ranks have gathered of the stripe are given up, as out of date.
//
//   add(gradient, step)   the gradient of one tensor is final
//   finish()              the end of a backward pass: all that was added has been stepped
//   drop()                instead: ranks have parted, and nothing of the pass is there any more
//   forget()              the step is over
//
// That is the same point of the program on all ranks (lockstep.h), so whoever gathers the stripe
// later gets what all have stepped. Ranks compare the constants of steps before they average.
// Where they part in the middle, some pages may be of the next step already: begun() says so, the
// same on all ranks.
//
// Adafactor has to see a whole gradient first, of which each rank has the means on its pages: these
// wait until the last stripe of a tensor is averaged. Then the ranks measure it together
// (adafactor_ranks.h), and each steps its pages of it.
//
// Bits are those of StripedStep. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "base/status.h"
#include "zerocache/pages/layout.h"
#include "zerocache/ranks/stripes.h"
#include "zerocache/ranks/zero1/gradient_shards.h"
#include "zerocache/ranks/zero3/gathered_pages.h"
#include "zerocache/ranks/zero3/striped_step.h"
#include "zerocache/steps/optimizer_stream.h"

namespace taco::zerocache {

class BackwardStripes {
 public:
  // The others outlive it; the means of these gradients are used up from now on.
  BackwardStripes(const StripedStep& step, const Layout& layout, const Stripes& stripes,
                  const OptimizerStream& stream, GradientShards& gradients,
                  GatheredPages& gathered);
  ~BackwardStripes() { gradients_.use_averages(nullptr); }
  BackwardStripes(const BackwardStripes&) = delete;
  BackwardStripes& operator=(const BackwardStripes&) = delete;

  // As GradientShards::add(). kInvalidArgument, and nothing has changed, for what
  // OptimizerStream::check() refuses, and for a tensor that was added already.
  Status add(const FinalGradient& gradient, const StepConstants& step);
  // As GradientShards::finish().
  Status finish();
  // Tensors of passes that were finished since forget().
  const std::set<std::uint32_t>& stepped() const { return stepped_; }
  bool begun() const { return gradients_.used(); }
  void drop();
  void forget();

 private:
  Status step(StripeId stripe, std::span<const std::uint32_t> tensors);
  Status step_whole(StripeId stripe);
  Status step_measured(std::vector<Update> updates);
  std::vector<Update> updates_of(std::span<const std::uint32_t> tensors) const;
  bool waits(PageId page) const;

  StripedStep step_;
  const Layout& layout_;
  const Stripes& stripes_;
  const OptimizerStream& stream_;
  GradientShards& gradients_;
  GatheredPages& gathered_;
  std::map<std::uint32_t, StepConstants> updates_;  // of the pass, by tensor
  // Those of updates_ that are stepped whole, with how many of their stripes are not averaged yet.
  std::map<std::uint32_t, std::size_t> whole_;
  std::set<std::uint32_t> stepped_;
};

}  // namespace taco::zerocache
