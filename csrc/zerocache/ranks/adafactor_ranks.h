// A step of Adafactor that several ranks take: before any element is stepped, they find together
// what has to be known of whole parameters and gradients, and all of them know the same then.
//
//   measure_in_turns()  every rank has all of both (sharded_step.h): each looks at some of the
//                       tensors, and tells the others; bits are those of one rank alone
//   measure_parts()     each has its own pages of both (striped_step.h): they add up sums of
//                       squares, of rows and columns; bits are the same on all ranks, and depend on
//                       how many there are, as a sum in double does on its order
//
// Nothing is changed; the moments after the step are in what is found. All ranks make the same
// calls with updates of the same tensors; all succeed, or fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "base/status.h"
#include "zerocache/pages/layout.h"
#include "zerocache/pages/page.h"
#include "zerocache/ranks/collectives.h"
#include "zerocache/steps/adafactor_state.h"
#include "zerocache/steps/optimizer_stream.h"

namespace taco::zerocache {

// The measures by tensor. They are in memory all at once, for the length of a step: a few numbers
// for each row and each column of a matrix, and as many as a vector has elements.
using AdafactorMeasures = std::map<std::uint32_t, AdafactorMeasure>;

// Whether there is something to be measured.
bool has_adafactor(std::span<const Update> updates);

// Updates that are no steps of Adafactor are left out here.
Result<AdafactorMeasures> measure_in_turns(Collectives& ranks, const Layout& layout,
                                           OptimizerStream& stream,
                                           std::span<const Update> updates);

// The part of a gradient that a rank has: elements of the tensor that lie on one page, from `first`
// on.
struct GradientPart {
  PageId page = 0;
  std::size_t first = 0;
  std::span<const float> values;
};
using PartsOf = std::function<std::vector<GradientPart>(const Update&)>;  // by rising page

inline constexpr std::size_t kSumBytes = std::size_t{32} << 20;

// `memory`, in bytes: for the sums that ranks tell each other, if those of one tensor need no more.
Result<AdafactorMeasures> measure_parts(Collectives& ranks, const Layout& layout,
                                        OptimizerStream& stream, std::span<const Update> updates,
                                        const PartsOf& parts_of, std::size_t memory = kSumBytes);

// Once they are the same on all ranks: has each update's step know of its measure, and the moments
// move on this rank.
Status begin_measured(OptimizerStream& stream, const AdafactorMeasures& measures,
                      std::span<Update> updates);

}  // namespace taco::zerocache
