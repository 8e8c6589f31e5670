#include "kernels/adafactor.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>

#include "base/assert.h"
#include "kernels/half.h"

namespace taco::kernels {
namespace {

// Elements that are worked on at once, in the first-level cache.
constexpr std::size_t kBlock = 1024;
constexpr double kBf16Epsilon = 0x1p-7;

Status refuse(const char* option, double value, const char* wanted) {
  char text[160];
  std::snprintf(text, sizeof text, "Adafactor: %s is %g, but has to be %s", option, value, wanted);
  return Status(Code::kInvalidArgument, text);
}

void load(const GradientSpan& gradient, float factor, std::size_t first, std::size_t count,
          float* out) {
  if (gradient.f32 != nullptr) {
    for (std::size_t i = 0; i < count; ++i) out[i] = factor * gradient.f32[first + i];
  } else {
    for (std::size_t i = 0; i < count; ++i) {
      out[i] = factor * bf16_to_float(gradient.bf16[first + i]);
    }
  }
}

float lerp(float from, float to, float share) { return from + share * (to - from); }

// work(offset, count) over `count` elements, a block at a time.
template <class Work>
void each_block(std::size_t count, const Work& work) {
  for (std::size_t at = 0; at < count; at += kBlock) work(at, std::min(kBlock, count - at));
}

// u of elements from `first` on, which are at most a block; `g` holds their gradient.
void make_updates(const AdafactorStep& step, const AdafactorMoments& moments, std::size_t first,
                  std::size_t count, const float* g, float* u) {
  const auto least = static_cast<float>(step.eps1 * step.eps1);
  const auto update = [least](float v, float gradient) {
    return 1 / std::sqrt(v < least ? least : v) * gradient;
  };
  if (step.shape.is_vector()) {
    for (std::size_t i = 0; i < count; ++i) u[i] = update(moments.vector[first + i], g[i]);
    return;
  }
  const std::size_t columns = step.shape.columns;
  for (std::size_t done = 0; done < count;) {
    const std::size_t row = (first + done) / columns, column = (first + done) % columns;
    const std::size_t part = std::min(count - done, columns - column);
    const float of_row = moments.rows[row];
    const float* const of_columns = moments.columns + row / step.shape.rows * columns + column;
    for (std::size_t i = 0; i < part; ++i) {
      u[done + i] = update(of_row * of_columns[i], g[done + i]);
    }
    done += part;
  }
}

template <class Value>
void add_squares_of(std::size_t count, std::size_t place, LaneSums& sums, const Value& value) {
  std::size_t i = 0;
  for (; i < count && (place + i) % kSumLanes != 0; ++i) {
    sums[(place + i) % kSumLanes] += value(i) * value(i);
  }
  for (; i + kSumLanes <= count; i += kSumLanes) {
    for (std::size_t lane = 0; lane < kSumLanes; ++lane) {
      sums[lane] += value(i + lane) * value(i + lane);
    }
  }
  for (; i < count; ++i) sums[(place + i) % kSumLanes] += value(i) * value(i);
}

}  // namespace

Status check(const AdafactorOptions& options) {
  const auto not_negative = [](const char* option, double value) -> Status {
    if (value >= 0 && std::isfinite(value)) return {};
    return refuse(option, value, "at least 0 and finite");
  };
  TACO_RETURN_IF_ERROR(not_negative("lr", options.lr));
  TACO_RETURN_IF_ERROR(not_negative("eps2", options.eps2));
  TACO_RETURN_IF_ERROR(not_negative("weight_decay", options.weight_decay));
  if (!std::isfinite(options.eps1)) return refuse("eps1", options.eps1, "finite");
  if (!(options.beta2_decay <= 0)) return refuse("beta2_decay", options.beta2_decay, "at most 0");
  if (!(options.clip >= 1)) return refuse("d", options.clip, "at least 1");
  return {};
}

AdafactorStep adafactor_step(const AdafactorOptions& options, const AdafactorShape& shape,
                             std::int64_t step, bool bf16_parameter, double gradient_factor) {
  TACO_ASSERT(step >= 1);
  const auto t = static_cast<double>(step);
  const double epsilon = bf16_parameter ? kBf16Epsilon : std::numeric_limits<float>::epsilon();
  return {.shape = shape,
          .gradient_factor = static_cast<float>(gradient_factor),
          .shrink = static_cast<float>(1 - options.lr * options.weight_decay),
          .share = static_cast<float>(std::pow(t, options.beta2_decay)),
          .rho = std::min(options.lr, 1 / std::sqrt(t)),
          .eps1 = options.eps1 < 0 ? epsilon : options.eps1,
          .eps2 = options.eps2,
          .clip = options.clip};
}

void add_squares(const float* values, std::size_t count, std::size_t place, LaneSums& sums) {
  add_squares_of(count, place, sums, [values](std::size_t i) { return double{values[i]}; });
}
void add_squares(const std::uint16_t* bf16, std::size_t count, std::size_t place, LaneSums& sums) {
  add_squares_of(count, place, sums,
                 [bf16](std::size_t i) { return double{bf16_to_float(bf16[i])}; });
}
double total(const LaneSums& sums) {
  double all = 0;
  for (const double lane : sums) all += lane;
  return all;
}

void adafactor_rows(const AdafactorStep& step, const GradientSpan& gradient, std::size_t rows,
                    float* row_moments, double* column_sums) {
  const std::size_t columns = step.shape.columns;
  float g[kBlock];
  for (std::size_t row = 0; row < rows; ++row) {
    LaneSums sums = {};
    each_block(columns, [&](std::size_t at, std::size_t count) {
      load(gradient, step.gradient_factor, row * columns + at, count, g);
      add_squares(g, count, at, sums);
      double* const to = column_sums + at;
      for (std::size_t i = 0; i < count; ++i) to[i] += double{g[i]} * double{g[i]};
    });
    const auto mean = static_cast<float>(total(sums) / static_cast<double>(columns));
    row_moments[row] = lerp(row_moments[row], mean, step.share);
  }
}

void adafactor_columns(const AdafactorStep& step, const double* sums, float* column_moments) {
  const auto rows = static_cast<double>(step.shape.rows);
  for (std::size_t i = 0; i < step.shape.columns; ++i) {
    column_moments[i] = lerp(column_moments[i], static_cast<float>(sums[i] / rows), step.share);
  }
}

void adafactor_vector(const AdafactorStep& step, const GradientSpan& gradient, std::size_t count,
                      float* moments) {
  float g[kBlock];
  each_block(count, [&](std::size_t at, std::size_t part) {
    load(gradient, step.gradient_factor, at, part, g);
    for (std::size_t i = 0; i < part; ++i) {
      moments[at + i] = lerp(moments[at + i], g[i] * g[i], step.share);
    }
  });
}

void adafactor_add_to_rows(const AdafactorStep& step, const float* gradient, std::size_t first,
                           std::size_t count, const AdafactorSpan& rows, double* row_sums) {
  const std::size_t columns = step.shape.columns;
  std::size_t at = std::max(first, rows.begin * columns);
  const std::size_t end = std::min(first + count, rows.end * columns);
  float g[kBlock];
  while (at < end) {
    const std::size_t row = at / columns;
    const std::size_t part = std::min(end, (row + 1) * columns) - at;
    LaneSums sums = {};
    each_block(part, [&](std::size_t done, std::size_t size) {
      load({.f32 = gradient}, step.gradient_factor, at - first + done, size, g);
      add_squares(g, size, at % columns + done, sums);
    });
    row_sums[row] += total(sums);
    at += part;
  }
}

void adafactor_add_to_columns(const AdafactorStep& step, const float* gradient, std::size_t first,
                              std::size_t count, const AdafactorSpan& columns,
                              double* column_sums) {
  const std::size_t width = step.shape.columns;
  for (std::size_t at = first; at < first + count;) {
    const std::size_t row = at / width, row_end = std::min(first + count, (row + 1) * width);
    const std::size_t begin = std::max(at, row * width + columns.begin);
    const std::size_t end = std::min(row_end, row * width + columns.end);
    double* const to = column_sums + row / step.shape.rows * width;
    for (std::size_t i = begin; i < end; ++i) {
      const double g = step.gradient_factor * gradient[i - first];
      to[i - row * width] += g * g;
    }
    at = row_end;
  }
}

void adafactor_move_rows(const AdafactorStep& step, const double* sums, std::size_t rows,
                         float* row_moments) {
  const auto columns = static_cast<double>(step.shape.columns);
  for (std::size_t row = 0; row < rows; ++row) {
    const auto mean = static_cast<float>(sums[row] / columns);
    row_moments[row] = lerp(row_moments[row], mean, step.share);
  }
}

void adafactor_add_to_vector(const AdafactorStep& step, const float* gradient, std::size_t count,
                             double* squares) {
  for (std::size_t i = 0; i < count; ++i) {
    const float g = step.gradient_factor * gradient[i];
    squares[i] += double{g * g};
  }
}

void adafactor_move_vector(const AdafactorStep& step, const double* squares, std::size_t count,
                           float* moments) {
  for (std::size_t i = 0; i < count; ++i) {
    moments[i] = lerp(moments[i], static_cast<float>(squares[i]), step.share);
  }
}

void adafactor_scale_rows(const AdafactorStep& step, const float* row_moments, float* scaled) {
  double sum = 0;
  for (std::size_t i = 0; i < step.shape.rows; ++i) sum += double{row_moments[i]};
  const double mean = std::max(sum / static_cast<double>(step.shape.rows), step.eps1);
  for (std::size_t i = 0; i < step.shape.rows; ++i) {
    scaled[i] = static_cast<float>(double{row_moments[i]} / mean);
  }
}

void adafactor_add_updates(const AdafactorStep& step, const AdafactorMoments& moments,
                           const GradientSpan& gradient, std::size_t first, std::size_t count,
                           LaneSums& sums) {
  float g[kBlock], u[kBlock];
  each_block(count, [&](std::size_t at, std::size_t part) {
    load(gradient, step.gradient_factor, at, part, g);
    make_updates(step, moments, first + at, part, g, u);
    add_squares(u, part, first + at, sums);
  });
}

void adafactor(const AdafactorStep& step, const AdafactorMoments& moments, float factor,
               std::size_t first, const ParameterRange& range) {
  const GradientSpan gradient = {range.gradient, range.bf16_gradient};
  float g[kBlock], u[kBlock];
  each_block(range.count, [&](std::size_t at, std::size_t part) {
    load(gradient, step.gradient_factor, at, part, g);
    make_updates(step, moments, first + at, part, g, u);
    float* const p = range.parameter + at;
    for (std::size_t i = 0; i < part; ++i) p[i] = step.shrink * p[i] + factor * u[i];
    if (range.bf16_parameter != nullptr) {
      for (std::size_t i = 0; i < part; ++i) {
        range.bf16_parameter[at + i] = float_to_bf16(p[i]);
      }
    }
  });
}

}  // namespace taco::kernels
