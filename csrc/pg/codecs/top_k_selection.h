// The elements that one block of a gradient and its Feedback (pg/codec.h) send: chosen, taken out
// of the residual, and remembered for restore() and rewind(). Lives as long as encode() works on
// the block.
#pragma once

#include <cstddef>

#include "pg/codec.h"
#include "pg/codecs/top_k_scratch.h"

namespace taco::pg {

class TopKSelection {
 public:
  // Selects from `n` elements from element `from` of the shard on, which the feedback covers.
  // `factor` is that of the momentum correction; 0: there is none.
  TopKSelection(Feedback& feedback, std::size_t from, const float* gradient, std::size_t n,
                std::size_t k, float factor, TopKScratch& scratch);

  // False when the block holds NaN or infinity: nothing has changed then. Otherwise `scratch.taken`
  // and `scratch.indices` are the k largest elements, and the residual is what is left.
  bool take();
  // Puts back into the residual by how much `scratch.decoded`, as which they were sent, differs
  // from them.
  void keep_difference();
  // Remembers that `sent` was sent, so that restore() can take it back.
  void remember(const float* sent);

 private:
  void copy_before();
  void hold_back();
  void put_back();
  bool select();
  Feedback::Sent& record() const;

  Feedback& feedback_;
  const std::size_t from_;
  const float* const gradient_;
  const std::size_t n_, k_;
  const float factor_;
  TopKScratch& scratch_;
  float* const residual_;  // of the block
  float* const momentum_;  // null: none
};

}  // namespace taco::pg
