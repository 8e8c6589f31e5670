// An optimizer's step where parameters, gradients and state are spread over ranks by stripes: each
// rank steps the pages that it owns, with the means that it has of their gradients. Nothing else
// travels: others get the new parameters when they gather them next. Of Adafactor the ranks add up
// sums before (adafactor_ranks.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "zerocache/pages/layout.h"
#include "zerocache/ranks/adafactor_ranks.h"
#include "zerocache/ranks/collectives.h"
#include "zerocache/ranks/lockstep.h"
#include "zerocache/ranks/stripes.h"
#include "zerocache/ranks/zero1/gradient_shards.h"
#include "zerocache/steps/optimizer_stream.h"

namespace taco::zerocache {

struct StripedUpdate {
  std::uint32_t tensor = 0;  // index in the layout
  StepConstants step;
};

class StripedStep {
 public:
  // All outlive it.
  StripedStep(Collectives& ranks, Lockstep& lockstep, const Layout& layout, const Stripes& stripes,
              OptimizerStream& stream)
      : ranks_(ranks), lockstep_(lockstep), layout_(layout), stripes_(stripes), stream_(stream) {}

  // Before anything has changed; gradients are finished. OK on all ranks if `own` is and nothing
  // else is against it, or a failure on all: ranks that would step otherwise or other tensors
  // (kMismatch), what OptimizerStream::check() refuses, a tensor without a gradient.
  Status agree_on(std::span<const StripedUpdate> updates, const GradientShards& gradients,
                  const Status& own = {});
  // Takes the step that agree_on() has found to be alike, while nobody holds copies of parameters
  // (GatheredPages::release()). OK on all ranks or a failure on all: a page that cannot be had;
  // after a failure parameters may be of two steps.
  Status run(std::span<const StripedUpdate> updates, const GradientShards& gradients);
  // For Adafactor, called by all ranks at once, when the averaged gradients of these tensors are
  // there: the updates, by rising place, learn of what is returned, and the moments move.
  Result<AdafactorMeasures> measure(std::span<Update> updates, const GradientShards& gradients);
  // Steps the part of the updates, by rising place, that lies on one page which this rank owns,
  // once averaged gradients are there; Adafactor's must have been measured. No other rank takes
  // part.
  Status step_page(PageId page, std::span<const Update> updates, const GradientShards& gradients);

 private:
  std::vector<Update> sorted(std::span<const StripedUpdate> updates) const;
  Result<AdafactorMeasures> measure_all(std::span<const Update> updates,
                                        const GradientShards& gradients);
  Status check(std::span<const Update> updates, const GradientShards& gradients) const;
  struct Place {
    std::size_t in_tensor = 0, on_page = 0, elements = 0;
  };
  Place place(const PlacedTensor& tensor, PageId page) const;
  std::vector<GradientPart> parts(const Update& update, const GradientShards& gradients) const;

  Collectives& ranks_;
  Lockstep& lockstep_;
  const Layout& layout_;
  const Stripes& stripes_;
  OptimizerStream& stream_;
};

}  // namespace taco::zerocache
