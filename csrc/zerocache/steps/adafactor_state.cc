#include "zerocache/steps/adafactor_state.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "zerocache/mover/tensor_bytes.h"
#include "zerocache/pages/state_layout.h"

namespace taco::zerocache {
namespace {

using kernels::AdafactorShape;
using kernels::LaneSums;

// Rows whose columns are added up on their own, for the same reason as kSumSegment.
constexpr std::size_t kRowBlock = 256;

std::vector<TensorSpec> specs_of(const std::string& parameter, const AdafactorShape& shape) {
  const auto spec = [&](const char* kind, std::size_t elements) {
    return TensorSpec{state_name(parameter, kind), elements * sizeof(float), sizeof(float)};
  };
  if (shape.is_vector()) return {spec("variance", shape.columns)};
  return {spec("row_var", shape.matrices * shape.rows),
          spec("col_var", shape.matrices * shape.columns)};
}

std::size_t rows_in(const AdafactorShape& shape) { return shape.matrices * shape.rows; }
std::size_t columns_in(const AdafactorShape& shape) { return shape.matrices * shape.columns; }

}  // namespace

Status append_adafactor_state(Layout& layout, std::span<const AdafactorParameter> parameters) {
  std::vector<TensorSpec> specs;
  std::uint64_t bytes = 0;
  for (const AdafactorParameter& parameter : parameters) {
    const PlacedTensor& tensor = layout.tensors()[parameter.tensor];
    if (parameter.shape.elements() * tensor.element_bytes != tensor.bytes) {
      return Status(Code::kInvalidArgument,
                    "parameter '" + tensor.name + "' of " + std::to_string(tensor.bytes) +
                        " bytes has not " + std::to_string(parameter.shape.elements()) +
                        " elements of " + std::to_string(tensor.element_bytes));
    }
    if (tensor.bytes == 0) continue;
    for (TensorSpec& spec : specs_of(tensor.name, parameter.shape)) {
      bytes += (spec.bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
      specs.push_back(std::move(spec));
    }
  }
  const auto first = layout.reserve((bytes + layout.page_bytes() - 1) / layout.page_bytes());
  if (!first.ok()) return first.status();
  std::uint64_t offset = std::uint64_t{first.value()} * layout.page_bytes();
  for (const TensorSpec& spec : specs) {
    if (const auto placed = layout.append_at(spec, offset); !placed.ok()) return placed.status();
    offset += (spec.bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
  }
  return {};
}

bool has_adafactor_state(const Layout& layout, const PlacedTensor& parameter,
                         const AdafactorShape& shape) {
  if (shape.elements() * parameter.element_bytes != parameter.bytes) return false;
  const std::vector<TensorSpec> specs = specs_of(parameter.name, shape);
  return std::all_of(specs.begin(), specs.end(), [&](const TensorSpec& spec) {
    const PlacedTensor* const tensor = layout.find(spec.name);
    return tensor != nullptr && tensor->bytes == spec.bytes;
  });
}

Status AdafactorMeasure::read(PageUses& pages, const Layout& layout,
                              const PlacedTensor& parameter) {
  const std::vector<TensorSpec> specs = specs_of(parameter.name, step_.shape);
  std::vector<float>* const targets[] = {specs.size() == 1 ? &columns_ : &rows_, &columns_};
  for (std::size_t i = 0; i < specs.size(); ++i) {
    targets[i]->resize(specs[i].bytes / sizeof(float));
    TACO_RETURN_IF_ERROR(read_bytes(pages, layout.page_bytes(), *layout.find(specs[i].name), tier_,
                                    0, std::as_writable_bytes(std::span(*targets[i]))));
  }
  return {};
}

Status AdafactorMeasure::take(PageUses& pages, const Layout& layout, const PlacedTensor& parameter,
                              const kernels::GradientSpan& gradient, Workers& workers) {
  TACO_RETURN_IF_ERROR(read(pages, layout, parameter));
  if (step_.shape.is_vector()) {
    move_vector(gradient, workers);
  } else {
    move_matrices(gradient, workers);
  }
  squares_of_updates_ = 0;
  add_updates(gradient, 0, step_.shape.elements(), workers, squares_of_updates_);
  return {};
}

Status AdafactorMeasure::take_sums(PageUses& pages, const Layout& layout,
                                   const PlacedTensor& parameter, std::span<const double> rows,
                                   std::span<const double> columns) {
  TACO_RETURN_IF_ERROR(read(pages, layout, parameter));
  const AdafactorShape& shape = step_.shape;
  if (shape.is_vector()) {
    kernels::adafactor_move_vector(step_, columns.data(), columns.size(), columns_.data());
    return {};
  }
  kernels::adafactor_move_rows(step_, rows.data(), rows.size(), rows_.data());
  for (std::size_t at = 0; at < columns.size(); at += shape.columns) {
    kernels::adafactor_columns(step_, columns.data() + at, columns_.data() + at);
  }
  scale_rows();
  return {};
}

std::size_t AdafactorMeasure::bytes() const {
  const AdafactorShape& shape = step_.shape;
  return (rows_in(shape) + columns_in(shape)) * sizeof(float) + 2 * sizeof(double);
}

void AdafactorMeasure::tell(std::span<std::byte> to) const {
  const double squares[] = {squares_of_updates_, squares_of_parameters_};
  for (const auto& part : {std::as_bytes(std::span<const double>(squares)),
                           std::as_bytes(std::span(rows_)), std::as_bytes(std::span(columns_))}) {
    std::copy(part.begin(), part.end(), to.begin());
    to = to.subspan(part.size());
  }
}

void AdafactorMeasure::hear(std::span<const std::byte> from) {
  double squares[2];
  rows_.resize(rows_in(step_.shape));
  columns_.resize(columns_in(step_.shape));
  for (const auto& part :
       {std::as_writable_bytes(std::span<double>(squares)),
        std::as_writable_bytes(std::span(rows_)), std::as_writable_bytes(std::span(columns_))}) {
    std::copy_n(from.begin(), part.size(), part.begin());
    from = from.subspan(part.size());
  }
  squares_of_updates_ = squares[0];
  squares_of_parameters_ = squares[1];
  scale_rows();
}

void AdafactorMeasure::move_vector(const kernels::GradientSpan& gradient, Workers& workers) {
  workers.run([&](unsigned worker) {
    const WorkShare share = share_of(step_.shape.columns, worker, workers.count());
    kernels::adafactor_vector(step_, gradient.from(share.begin), share.end - share.begin,
                              columns_.data() + share.begin);
  });
}

// Matrices of one block of rows, as those of convolutions, go to one worker each; of larger ones
// the blocks do.
void AdafactorMeasure::move_matrices(const kernels::GradientSpan& gradient, Workers& workers) {
  const AdafactorShape& shape = step_.shape;
  const std::size_t blocks = (shape.rows + kRowBlock - 1) / kRowBlock;
  if (blocks == 1) {
    workers.run([&](unsigned worker) {
      const WorkShare share = share_of(shape.matrices, worker, workers.count());
      std::vector<double> sums(shape.columns);
      for (std::size_t matrix = share.begin; matrix < share.end; ++matrix) {
        std::fill(sums.begin(), sums.end(), 0);
        move_rows(gradient, matrix, 0, shape.rows, sums.data());
        kernels::adafactor_columns(step_, sums.data(), columns_.data() + matrix * shape.columns);
      }
    });
  } else {
    std::vector<double> sums(blocks * shape.columns);
    for (std::size_t matrix = 0; matrix < shape.matrices; ++matrix) {
      std::fill(sums.begin(), sums.end(), 0);
      workers.run([&](unsigned worker) {
        const WorkShare share = share_of(blocks, worker, workers.count());
        for (std::size_t block = share.begin; block < share.end; ++block) {
          const std::size_t first = block * kRowBlock;
          move_rows(gradient, matrix, first, std::min(kRowBlock, shape.rows - first),
                    sums.data() + block * shape.columns);
        }
      });
      for (std::size_t block = 1; block < blocks; ++block) {
        const double* const more = sums.data() + block * shape.columns;
        for (std::size_t i = 0; i < shape.columns; ++i) sums[i] += more[i];
      }
      kernels::adafactor_columns(step_, sums.data(), columns_.data() + matrix * shape.columns);
    }
  }
  scale_rows();
}

void AdafactorMeasure::scale_rows() {
  scaled_rows_.resize(rows_.size());
  for (std::size_t row = 0; row < rows_.size(); row += step_.shape.rows) {
    kernels::adafactor_scale_rows(step_, rows_.data() + row, scaled_rows_.data() + row);
  }
}

void AdafactorMeasure::move_rows(const kernels::GradientSpan& gradient, std::size_t matrix,
                                 std::size_t first, std::size_t rows, double* column_sums) {
  const std::size_t row = matrix * step_.shape.rows + first;
  kernels::adafactor_rows(step_, gradient.from(row * step_.shape.columns), rows, rows_.data() + row,
                          column_sums);
}

kernels::AdafactorMoments AdafactorMeasure::moments() const {
  if (step_.shape.is_vector()) return {.vector = columns_.data()};
  return {.rows = scaled_rows_.data(), .columns = columns_.data()};
}

void AdafactorMeasure::add_updates(const kernels::GradientSpan& gradient, std::size_t first,
                                   std::size_t count, Workers& workers, double& sum) const {
  std::vector<double> sums(sum_segments(count));
  workers.run([&](unsigned worker) {
    const WorkShare share = share_of(sums.size(), worker, workers.count());
    for (std::size_t segment = share.begin; segment < share.end; ++segment) {
      const std::size_t from = segment * kSumSegment;
      LaneSums lanes = {};
      kernels::adafactor_add_updates(step_, moments(), gradient.from(from), first + from,
                                     std::min(kSumSegment, count - from), lanes);
      sums[segment] = kernels::total(lanes);
    }
  });
  for (const double segment : sums) sum += segment;
}

float AdafactorMeasure::factor() const {
  const auto elements = static_cast<double>(step_.shape.elements());
  const double rms = std::sqrt(squares_of_parameters_ / elements);
  const double alpha = std::max(step_.eps2, rms) * step_.rho;
  const double of_updates = std::sqrt(squares_of_updates_ / elements);
  return static_cast<float>(-alpha / std::max(1.0, of_updates / step_.clip));
}

Status AdafactorMeasure::write_back(PageUses& pages, const Layout& layout,
                                    const PlacedTensor& parameter) const {
  const std::vector<TensorSpec> specs = specs_of(parameter.name, step_.shape);
  const std::vector<float>* const sources[] = {specs.size() == 1 ? &columns_ : &rows_, &columns_};
  for (std::size_t i = 0; i < specs.size(); ++i) {
    TACO_RETURN_IF_ERROR(write_bytes(pages, layout.page_bytes(), *layout.find(specs[i].name), tier_,
                                     0, std::as_bytes(std::span(*sources[i]))));
  }
  return {};
}

}  // namespace taco::zerocache
