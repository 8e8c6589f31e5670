// Adafactor's second moments, which mirror no pages: small tensors of float32 beside the
// parameters, called as torch calls them. They are in memory as a whole while their parameter is
// stepped: for a matrix that is a number a row and one a column, for a vector as many as it has
// itself.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/adafactor.h"
#include "zerocache/layout.h"
#include "zerocache/page_uses.h"
#include "zerocache/workers.h"

namespace taco::zerocache {

struct AdafactorParameter {
  std::uint32_t tensor = 0;  // index in the layout
  kernels::AdafactorShape shape;
};

// Appends "<parameter>/row_var" and "/col_var" of each, or "/variance" of a vector.
// kInvalidArgument names a parameter that has another number of elements than its shape.
Status append_adafactor_state(Layout& layout, std::span<const AdafactorParameter> parameters);
// Whether that was done for this one.
bool has_adafactor_state(const Layout& layout, const PlacedTensor& parameter,
                         const kernels::AdafactorShape& shape);

// What a step needs of one parameter's gradient before its elements are stepped. Its moments are
// used in `tier`.
class AdafactorMeasure {
 public:
  AdafactorMeasure(const kernels::AdafactorStep& step, const kernels::GradientSpan& gradient,
                   Tier tier)
      : step_(step), gradient_(gradient), tier_(tier) {}

  // Reads the moments, moves them by the gradient, and finds the updates' size.
  Status take(PageUses& pages, const Layout& layout, const PlacedTensor& parameter,
              Workers& workers);
  Status write_back(PageUses& pages, const Layout& layout, const PlacedTensor& parameter) const;

  kernels::AdafactorMoments moments() const;
  // What updates are multiplied by, if the squares of the parameters add up to this.
  float factor(double squares_of_parameters) const;

 private:
  void move_matrices(Workers& workers);
  void move_rows(std::size_t matrix, std::size_t first, std::size_t rows, double* column_sums);
  void move_vector(Workers& workers);
  void measure_updates(Workers& workers);

  const kernels::AdafactorStep step_;
  const kernels::GradientSpan gradient_;
  const Tier tier_;
  std::vector<float> rows_, columns_;  // of a vector, `columns_` is its variance
  std::vector<float> scaled_rows_;
  double squares_of_updates_ = 0;
};

// Elements whose squares are added up on their own before they are added to others': whatever pages
// and threads there are, the sum is the same.
inline constexpr std::size_t kSumSegment = 4096;
inline std::size_t sum_segments(std::size_t elements) {
  return (elements + kSumSegment - 1) / kSumSegment;
}

}  // namespace taco::zerocache
