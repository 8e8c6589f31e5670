// Operations that the owner of a Feedback (pg/codec.h) does on it while no operation uses it. All
// of it is arithmetic in float32, rounded to nearest, whatever the calling thread's mode.
#pragma once

#include <span>

#include "base/status.h"
#include "pg/codec.h"

namespace taco::pg {

// Elements of the shard.
struct Extent {
  std::size_t from = 0, count = 0;
};

// Takes back what has been sent of the run, for a step whose result nobody uses: the residual is
// what had been added up by then, and so is the momentum. Of a single encoding that is exact.
// Nothing is forgotten: a second call adds it once more. Does nothing unless Feedback::undoable was
// set.
void restore(Feedback& feedback, Extent run);
// As if no encoding since the one that was the first (Feedback::Before) had been: to the bit.
void rewind(Feedback& feedback, Extent run);

// Owes nothing of the run any more. Not for one that may yet be taken back.
void clear(Feedback& feedback, Extent run);

// Makes final what has been sent, but for that of `runs`, which ascend. To be called before the
// next operation. However many of them there are, what is remembered is at most as long as the
// residual.
void forget_sent_but(Feedback& feedback, std::span<const Extent> runs);

// Multiplies all that is kept by `factor`, when the gradients' own scale changes. kInvalidArgument,
// and nothing has changed, when the factor is not a positive finite number or the largest element
// would overflow.
Status scale(Feedback& feedback, double factor);

// The sum of the residual, in double precision.
double residual_sum(const Feedback& feedback);
double residual_norm(const Feedback& feedback);  // Euclidean

}  // namespace taco::pg
