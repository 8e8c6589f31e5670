// Gradients where parameters are spread over ranks (stripes.h): as soon as those of a stripe are
// final they are averaged over all ranks, and each rank keeps the mean of its own page alone.
//
//   add(gradient)   the gradient of one tensor is final
//   finish()        the end of a backward pass: what is left of it
//   on(page)        the means, for the step
//   clear()         zero_grad()
//
// A caller that steps while the backward pass goes on is told of each stripe whose means are there,
// and gives them up page by page (backward_stripes.h).
//
// Means are of float32, whatever gradients are, and do not depend on who was when ready: the sum of
// a reduce_scatter(), divided by the number of ranks. A pass that ends before clear() is added to
// what is there, as gradients are accumulated in torch. All ranks make the same calls with the same
// tensors; a rank that does not is found out (lockstep.h). While stripes are averaged the backward
// pass goes on.
//
// Each rank needs memory for its share of float32 means, and for the gradients of each stripe that
// is under way.
//
// One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "zerocache/pages/layout.h"
#include "zerocache/ranks/collectives.h"
#include "zerocache/ranks/lockstep.h"
#include "zerocache/ranks/stripes.h"

namespace taco::zerocache {

struct FinalGradient {
  std::uint32_t tensor = 0;      // index in the layout
  const void* values = nullptr;  // as many elements as the tensor has, contiguous
  bool bf16 = false;             // otherwise float32
  std::uint64_t purpose = 0;     // what it is for, which has to be alike on all ranks
};

class GradientShards {
 public:
  // `trained`: what gets gradients, by index in the layout. The others outlive it.
  GradientShards(Collectives& ranks, Lockstep& lockstep, const Layout& layout,
                 const Stripes& stripes, std::span<const std::uint32_t> trained,
                 std::size_t max_under_way = 2);
  // Waits for what is under way.
  ~GradientShards();
  GradientShards(const GradientShards&) = delete;
  GradientShards& operator=(const GradientShards&) = delete;

  // A function that is called when the means of a stripe are there, at the same point of the
  // program on all ranks, with the tensors on this rank's page that have one. use_up() ends those
  // of a page. A failure is one of this rank alone, and of the call that it arose in: its caller
  // tells the others.
  using Averaged = std::function<Status(StripeId, std::span<const std::uint32_t> tensors)>;
  void use_averages(Averaged averaged) { averaged_here_ = std::move(averaged); }
  void use_up(PageId page) { averages_.erase(page); }
  // Whether that has happened, or is about to on all ranks, since the last finish() that succeeded,
  // or clear().
  bool used() const { return used_; }

  // The gradient's memory stays until take_done() names the tensor. kInvalidArgument, and nothing
  // has changed, for a tensor that is not trained or has one in this pass; else what is said of
  // finish().
  Status add(const FinalGradient& gradient);
  // Tensors whose gradients are not needed any more, each once.
  std::vector<std::uint32_t> take_done();
  // Averages the rest: where a tensor has no gradient, a stripe goes without it. Means are there
  // afterwards. Fails on all ranks if on one; then nothing is there any more.
  Status finish();
  // Clears all means, those not finished too.
  void clear();

  // Whether the tensor was averaged since clear().
  bool has(std::uint32_t tensor) const { return averaged_.contains(tensor); }
  // For a page that this rank owns: a mean for each of its elements, zero where there is no
  // gradient; empty where nothing was averaged.
  std::span<const float> on(PageId page) const;
  // The norm of all means on all ranks, of that order, which may be infinite: the same bits on all
  // ranks. What is finished.
  Result<double> norm(double order);
  // Multiplies the means of this rank.
  void multiply(float factor);
  // All means on all ranks, by the inverse of what a loss was scaled by; what is finished. Whether
  // one of them was infinite or NaN before: the same on all ranks. kMismatch, and nothing has
  // changed, where ranks have other factors.
  Result<bool> unscale(float factor);

 private:
  struct Page {
    std::vector<std::uint32_t> tensors;
    std::uint32_t element_bytes = 4;
  };
  struct Stripe {
    std::size_t gradients = 0;  // that its pages need, and how many have come
    std::size_t come = 0;
    std::size_t elements = 0;  // of the page that has most
  };
  struct Given {
    FinalGradient gradient;
    std::size_t pages_left = 0;
  };
  struct Reduction {
    StripeId stripe = 0;
    std::vector<float> all, own;
    std::vector<std::uint32_t> tensors;  // that have a gradient on this rank's page
    Status failed;
    Time started = 0;
    std::unique_ptr<Collectives::Work> work;  // goes first
  };

  Status reduce(StripeId stripe);
  std::vector<std::uint32_t> pack(PageId page, std::span<float> to, Digest& digest);
  Status finish_first();
  Status add_mean(StripeId stripe, std::vector<float> own);
  void end_pass();
  void drop();

  Collectives& ranks_;
  Lockstep& lockstep_;
  const Layout& layout_;
  const Stripes& stripes_;
  const std::size_t max_under_way_;
  std::map<PageId, Page> pages_;
  std::map<StripeId, Stripe> by_stripe_;

  std::map<std::uint32_t, Given> given_;  // in this pass, by tensor
  std::deque<std::unique_ptr<Reduction>> under_way_;
  std::vector<std::uint32_t> done_;
  std::set<std::uint32_t> averaged_;
  std::map<PageId, std::vector<float>> averages_;
  Averaged averaged_here_;  // null: means stay for the step
  bool used_ = false, clearing_ = false;
};

}  // namespace taco::zerocache
