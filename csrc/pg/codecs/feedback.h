// Operations that the owner of a Feedback (pg/codec.h) does on it while no operation uses it. All
// of it is arithmetic in float32, rounded to nearest, whatever the calling thread's mode.
#pragma once

#include "base/status.h"
#include "pg/codec.h"

namespace taco::pg {

// Takes back what the newest encoding of each block has sent, as if nothing had been taken: the
// residual is exactly what had been added up then, and so is the momentum. For a step whose
// result nobody uses. Does nothing unless Feedback::undoable was set; a second call does nothing.
void restore(Feedback& feedback);

// Makes what has been sent final: restore() gives none of it back. To be called before the next
// operation, which may send other blocks, or none.
void forget_sent(Feedback& feedback);

// All that is kept, times `factor`: when the gradients' own scale changes. kInvalidArgument, and
// nothing has changed, when the factor is not a positive finite number or the largest element would
// overflow.
Status scale(Feedback& feedback, double factor);

// The sum of the residual, in double precision.
double residual_sum(const Feedback& feedback);
double residual_norm(const Feedback& feedback);  // Euclidean

}  // namespace taco::pg
