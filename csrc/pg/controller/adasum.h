// Adasum: the sum of gradients, less what they have in common. Two gradients a and b become
//   (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b,
// which is their sum where they are orthogonal and their mean where they are equal; each tensor of
// a request by itself (Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys
// 2021). Ranks combine in pairs at distance 1, 2, 4, ...; where their number is no power of two,
// the ranks beyond the largest one give theirs to a rank below at first, and get the result in the
// end.
//
// A pure machine: it says what to exchange with whom, and combines what has come. Both ranks of a
// pair compute the same from the same operands in the same order, so all end with the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/kernels.h"
#include "pg/operation.h"

namespace taco::pg::controller {

class Adasum {
 public:
  // All elements of all tensors, one after the other, are at `mine`, with room for as many at
  // `theirs`. `counts`: elements of each tensor. `dtype` is a floating one.
  Adasum(int rank, int world, kernels::Dtype dtype, std::vector<std::size_t> counts,
         std::byte* mine, std::byte* theirs);

  // Whole vectors: `outgoing` to one rank, `incoming` from one; -1: none.
  struct Exchange {
    int to = -1, from = -1;
    Piece outgoing, incoming;
  };
  // The next one, once the one before is done; none: the result is at `mine`.
  std::optional<Exchange> next();

  static bool supports(kernels::Dtype dtype);

 private:
  enum class Stage : std::uint8_t { kFold, kPairs, kUnfold, kDone };
  void combine(bool mine_first);
  Exchange exchange(int to, int from, bool replaces = false) const;

  const int rank_;
  const int paired_;  // ranks that pair up: a power of two
  const int world_;
  const kernels::Dtype dtype_;
  const std::vector<std::size_t> counts_;
  std::byte* const mine_;
  std::byte* const theirs_;
  std::size_t bytes_ = 0;
  Stage stage_ = Stage::kFold;
  int distance_ = 1;
  std::optional<bool> combines_;  // what has come, and is `mine` the first operand?
};

}  // namespace taco::pg::controller
