// Arithmetic of Adafactor: Shazeer and Stern, "Adafactor: Adaptive Learning Rates with Sublinear
// Memory Cost", 2018, with the step sizes and the defaults of torch.optim.Adafactor. Second moments
// of a matrix are kept as one number a row and one a column.
//
// Each step needs sums over a whole tensor before its first element can be stepped, so this comes
// in parts for whoever has the tensor in parts. The same bits however it is cut: sums are taken in
// double, in lanes by an element's place, and added up in one order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "kernels/optimizers.h"

namespace taco::kernels {

struct AdafactorOptions {
  double lr = 1e-2;
  double beta2_decay = -0.8;
  double eps1 = -1;  // below 0: the distance from 1 to the next number of the parameters' type
  double eps2 = 1e-3;
  double clip = 1;  // torch's d
  double weight_decay = 0;
};
Status check(const AdafactorOptions& options);

// A parameter as Adafactor sees it: `matrices` of `rows` and `columns`, its last two dimensions;
// or, with rows = 0, a vector of `columns`.
struct AdafactorShape {
  std::size_t matrices = 1, rows = 0, columns = 0;
  bool is_vector() const { return rows == 0; }
  std::size_t elements() const { return is_vector() ? columns : matrices * rows * columns; }
};

// The constants of step t, counted from 1:
//   g = gradient_factor * gradient
//   R, C = lerp(R, mean of g^2 of each row, share), lerp(C, that of each column, share)
//   v = R C / max(mean of R, eps1);   of a vector v = lerp(v, g^2, share) and is kept itself
//   u = g / sqrt(max(v, eps1^2))
//   p = shrink * p - max(eps2, rms of p before) * rho / max(1, rms of u / clip) * u
struct AdafactorStep {
  AdafactorShape shape;
  float gradient_factor;
  float shrink;
  float share;
  double rho, eps1, eps2, clip;
};
AdafactorStep adafactor_step(const AdafactorOptions& options, const AdafactorShape& shape,
                             std::int64_t step, bool bf16_parameter, double gradient_factor = 1);

// Squares of elements added up by their place in a tensor, modulo the number of lanes.
inline constexpr std::size_t kSumLanes = 8;
using LaneSums = std::array<double, kSumLanes>;
void add_squares(const float* values, std::size_t count, std::size_t place, LaneSums& sums);
void add_squares(const std::uint16_t* bf16, std::size_t count, std::size_t place, LaneSums& sums);
double total(const LaneSums& sums);

// One of the two is null.
struct GradientSpan {
  const float* f32 = nullptr;
  const std::uint16_t* bf16 = nullptr;
  GradientSpan from(std::size_t first) const {
    return {f32 == nullptr ? nullptr : f32 + first, bf16 == nullptr ? nullptr : bf16 + first};
  }
};

// Takes `rows` rows into account: of each, `row_moments` moves to the mean of its squares, and its
// squares are added to `column_sums`.
void adafactor_rows(const AdafactorStep& step, const GradientSpan& gradient, std::size_t rows,
                    float* row_moments, double* column_sums);
// For a matrix: moves to the mean of the sums over its rows.
void adafactor_columns(const AdafactorStep& step, const double* sums, float* column_moments);
void adafactor_vector(const AdafactorStep& step, const GradientSpan& gradient, std::size_t count,
                      float* moments);

// For who has parts of a tensor (of a matrix that is, parts of rows): squares of `count` elements
// from `first` on are added to the sums of their rows and of their columns, which are in double and
// of all matrices. Of rows those from `begin` to `end` alone, of columns those within each matrix.
struct AdafactorSpan {
  std::size_t begin, end;
};
void adafactor_add_to_rows(const AdafactorStep& step, const float* gradient, std::size_t first,
                           std::size_t count, const AdafactorSpan& rows, double* row_sums);
void adafactor_add_to_columns(const AdafactorStep& step, const float* gradient, std::size_t first,
                              std::size_t count, const AdafactorSpan& columns, double* column_sums);
// Moves to the means of such sums, as adafactor_rows() does to its own.
void adafactor_move_rows(const AdafactorStep& step, const double* sums, std::size_t rows,
                         float* row_moments);
// For a vector each square is its own sum.
void adafactor_add_to_vector(const AdafactorStep& step, const float* gradient, std::size_t count,
                             double* squares);
void adafactor_move_vector(const AdafactorStep& step, const double* squares, std::size_t count,
                           float* moments);

// The moments that v is computed from.
struct AdafactorMoments {
  const float* rows = nullptr;     // of all matrices; divided by max(mean of R, eps1)
  const float* columns = nullptr;  // of all matrices
  const float* vector = nullptr;   // of a vector, and nothing else
};
// Divides the row moments of one matrix, for AdafactorMoments.
void adafactor_scale_rows(const AdafactorStep& step, const float* row_moments, float* scaled);

// u^2 of elements from `first` on; `gradient` begins with the first of them.
void adafactor_add_updates(const AdafactorStep& step, const AdafactorMoments& moments,
                           const GradientSpan& gradient, std::size_t first, std::size_t count,
                           LaneSums& sums);
// p of elements from `first` on, where the range begins. `factor`: what u is multiplied by.
void adafactor(const AdafactorStep& step, const AdafactorMoments& moments, float factor,
               std::size_t first, const ParameterRange& range);

}  // namespace taco::kernels
