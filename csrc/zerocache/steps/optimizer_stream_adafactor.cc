// A step of Adafactor goes over a parameter's pages twice: for the size of what is there, and to
// change it. In between its whole gradient has been looked at.
#include <algorithm>
#include <vector>

#include "zerocache/steps/adafactor_state.h"
#include "zerocache/steps/optimizer_stream.h"

namespace taco::zerocache {
namespace {

using kernels::LaneSums;

// Marks the failure of a step that has begun to change something, which a refusal by step() has
// not.
Status in_the_middle(const Status& status) {
  return status.code() == Code::kInvalidArgument ? Status(Code::kResource, status.message())
                                                 : status;
}

}  // namespace

// Adds the squares of the elements on one page. Pages cut segments of a sum in two, so their sums
// are kept open.
Status OptimizerStream::add_squares(const PlacedTensor& tensor, PageId page,
                                    std::vector<LaneSums>& sums) {
  const std::size_t element = tensor.element_bytes;
  const std::uint64_t start = tensor.offset / element;
  const std::uint64_t per_page = layout_.page_bytes() / element;
  const Access access = access_in(parameter_tier_, page, true, false);
  TACO_RETURN_IF_ERROR(pages_.begin(kLookKeys + page, {&access, 1}));
  const std::byte* const memory = pages_.address(page, pages_.tier_of(page));
  const std::uint64_t page_start = page * per_page;
  const std::uint64_t begin = std::max(start, page_start) - start;
  const std::uint64_t end = std::min(start + tensor.bytes / element, page_start + per_page) - start;
  const std::size_t first = begin / kSumSegment, last = sum_segments(end);
  workers_->run([&](unsigned worker) {
    const WorkShare share = share_of(last - first, worker, workers_->count());
    for (std::size_t segment = first + share.begin; segment < first + share.end; ++segment) {
      const std::uint64_t from = std::max<std::uint64_t>(begin, segment * kSumSegment);
      const std::uint64_t to = std::min<std::uint64_t>(end, (segment + 1) * kSumSegment);
      const std::byte* const at = memory + (start + from - page_start) * element;
      if (element == kStateElementBytes) {
        kernels::add_squares(reinterpret_cast<const float*>(at), to - from, from, sums[segment]);
      } else {
        kernels::add_squares(reinterpret_cast<const std::uint16_t*>(at), to - from, from,
                             sums[segment]);
      }
    }
  });
  pages_.end(kLookKeys + page);
  return {};
}

Result<double> OptimizerStream::squares_on(const PlacedTensor& tensor,
                                           std::span<const PageId> pages) {
  std::vector<LaneSums> sums(sum_segments(tensor.bytes / tensor.element_bytes));
  for (const PageId page : pages) TACO_RETURN_IF_ERROR(add_squares(tensor, page, sums));
  double all = 0;
  for (const LaneSums& lanes : sums) all += kernels::total(lanes);
  return all;
}

Result<double> OptimizerStream::squares_of(const PlacedTensor& tensor) {
  return squares_on(tensor, layout_.pages_of(tensor).pages());
}

// Its sums need the whole gradient, which is in memory meanwhile.
Status OptimizerStream::step_adafactor_from_pages(const Part& part) {
  Update update = *part.update;
  const PlacedTensor& tensor = layout_.tensors()[update.tensor];
  std::vector<std::byte> gradient(tensor.bytes);
  TACO_RETURN_IF_ERROR(gradients_->read(pages_, layout_, update.tensor, gradient));
  update.gradient = gradient.data();
  update.bf16_gradient = tensor.element_bytes != kStateElementBytes;
  Part in_memory = part;
  in_memory.update = &update;
  return step_adafactor(in_memory, nullptr);
}

Result<AdafactorMeasure> OptimizerStream::measure(const Update& update) {
  const PlacedTensor& tensor = layout_.tensors()[update.tensor];
  kernels::GradientSpan gradient;
  std::vector<std::byte> read;
  if (update.gradient == nullptr) {
    read.resize(tensor.bytes);
    TACO_RETURN_IF_ERROR(gradients_->read(pages_, layout_, update.tensor, read));
    gradient =
        tensor.element_bytes == kStateElementBytes
            ? kernels::GradientSpan{.f32 = reinterpret_cast<const float*>(read.data())}
            : kernels::GradientSpan{.bf16 = reinterpret_cast<const std::uint16_t*>(read.data())};
  } else if (update.bf16_gradient) {
    gradient.bf16 = static_cast<const std::uint16_t*>(update.gradient);
  } else {
    gradient.f32 = static_cast<const float*>(update.gradient);
  }
  const auto squares = squares_of(tensor);
  if (!squares.ok()) return squares.status();
  AdafactorMeasure measure(std::get<kernels::AdafactorStep>(update.step), moments_tier());
  TACO_RETURN_IF_ERROR(measure.take(pages_, layout_, tensor, gradient, *workers_));
  measure.note_parameters(squares.value());
  return measure;
}

Result<AdafactorMeasure> OptimizerStream::measure(const Update& update,
                                                  std::span<const double> rows,
                                                  std::span<const double> columns) {
  AdafactorMeasure measure(std::get<kernels::AdafactorStep>(update.step), moments_tier());
  const PlacedTensor& tensor = layout_.tensors()[update.tensor];
  TACO_RETURN_IF_ERROR(measure.take_sums(pages_, layout_, tensor, rows, columns));
  return measure;
}

Status OptimizerStream::write_back(std::uint32_t tensor, const AdafactorMeasure& measure) {
  ++changes_;
  return in_the_middle(measure.write_back(pages_, layout_, layout_.tensors()[tensor]));
}

Status OptimizerStream::step_adafactor(const Update& update, const OwnPages& own) {
  auto parts = sorted({&update, 1});
  if (!parts.ok()) return parts.status();
  if (parts->empty()) return {};
  return step_adafactor(parts->front(), own)
      .with_prefix("the optimizer's step ended at '" + layout_.tensors()[update.tensor].name +
                   "': ");
}

Status OptimizerStream::step_adafactor(Part part, const OwnPages& own) {
  const Update& update = *part.update;
  const auto measured = measure(update);
  if (!measured.ok()) return measured.status();
  TACO_RETURN_IF_ERROR(write_back(update.tensor, measured.value()));
  part.moments = measured.value().moments();
  part.factor = measured.value().factor();
  const Run run = layout_.pages_of(layout_.tensors()[update.tensor]);
  for (PageId page = run.first; page < run.first + run.count; ++page) {
    if (own != nullptr && !own(page)) continue;
    TACO_RETURN_IF_ERROR(in_the_middle(step_chunks(page, {&part, 1})));
  }
  return {};
}

}  // namespace taco::zerocache
