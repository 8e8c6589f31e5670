// Adafactor's second moments, which mirror no pages: small tensors of float32 beside the
// parameters, called as torch calls them. They are in memory as a whole while their parameter is
// stepped: for a matrix that is a number a row and one a column, for a vector as many as it has
// itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/adafactor.h"
#include "zerocache/pages/layout.h"
#include "zerocache/pages/page_uses.h"
#include "zerocache/steps/workers.h"

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

// The values that a step needs to know of a whole parameter and its gradient before their elements
// are stepped. Its moments are used in `tier`.
class AdafactorMeasure {
 public:
  AdafactorMeasure(const kernels::AdafactorStep& step, Tier tier) : step_(step), tier_(tier) {}

  // For a caller that has the whole gradient: reads the moments, moves them by it, and finds the
  // updates' size.
  Status take(PageUses& pages, const Layout& layout, const PlacedTensor& parameter,
              const kernels::GradientSpan& gradient, Workers& workers);
  // For a caller that has sums of the gradient's squares (adafactor_ranks.h), for each row and each
  // column, or for each element of a vector: reads the moments, and moves them.
  Status take_sums(PageUses& pages, const Layout& layout, const PlacedTensor& parameter,
                   std::span<const double> rows, std::span<const double> columns);
  void note_updates(double squares) { squares_of_updates_ = squares; }
  void note_parameters(double squares) { squares_of_parameters_ = squares; }
  // Others get it as bytes, the same number for the same shape.
  std::size_t bytes() const;
  void tell(std::span<std::byte> to) const;
  void hear(std::span<const std::byte> from);
  Status write_back(PageUses& pages, const Layout& layout, const PlacedTensor& parameter) const;

  const kernels::AdafactorStep& step() const { return step_; }
  kernels::AdafactorMoments moments() const;
  // Adds to `sum` the squares of updates, before they are multiplied, by `count` elements of the
  // gradient, the first of which is the tensor's `first`.
  void add_updates(const kernels::GradientSpan& gradient, std::size_t first, std::size_t count,
                   Workers& workers, double& sum) const;
  // The factor that updates are multiplied by.
  float factor() const;

 private:
  Status read(PageUses& pages, const Layout& layout, const PlacedTensor& parameter);
  void move_matrices(const kernels::GradientSpan& gradient, Workers& workers);
  void move_rows(const kernels::GradientSpan& gradient, std::size_t matrix, std::size_t first,
                 std::size_t rows, double* column_sums);
  void move_vector(const kernels::GradientSpan& gradient, Workers& workers);
  void scale_rows();
  kernels::AdafactorStep step_;
  Tier tier_;
  std::vector<float> rows_, columns_;  // of a vector, `columns_` is its variance
  std::vector<float> scaled_rows_;
  double squares_of_updates_ = 0, squares_of_parameters_ = 0;
};

// This worker's share of `count` things.
struct WorkShare {
  std::size_t begin, end;
};
inline WorkShare share_of(std::size_t count, unsigned worker, unsigned workers) {
  return {count * worker / workers, count * (worker + 1) / workers};
}

// Elements whose squares are added up on their own before they are added to others': whatever pages
// and threads there are, the sum is the same.
inline constexpr std::size_t kSumSegment = 4096;
inline std::size_t sum_segments(std::size_t elements) {
  return (elements + kSumSegment - 1) / kSumSegment;
}

}  // namespace taco::zerocache
