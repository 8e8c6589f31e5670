// A step of Adafactor goes over a parameter's pages twice: for the size of what is there, and to
// change it. In between its whole gradient has been looked at.
#include <algorithm>
#include <vector>

#include "zerocache/adafactor_state.h"
#include "zerocache/optimizer_stream.h"

namespace taco::zerocache {
namespace {

using kernels::LaneSums;

// Looks at pages only; the other uses of the stream change them.
constexpr OperatorKey kLookKeys = kChunkKeys + (OperatorKey{1} << 40);

// Of a step that has begun to change something: not what step() refuses.
Status in_the_middle(const Status& status) {
  return status.code() == Code::kInvalidArgument ? Status(Code::kResource, status.message())
                                                 : status;
}

}  // namespace

// Pages cut segments of a sum in two, so their sums are kept open until the tensor's end.
Result<double> OptimizerStream::squares_of(const PlacedTensor& tensor) {
  const std::size_t element = tensor.element_bytes;
  const std::uint64_t start = tensor.offset / element;
  const std::uint64_t per_page = layout_.page_bytes() / element;
  std::vector<LaneSums> sums(sum_segments(tensor.bytes / element));
  const Run run = layout_.pages_of(tensor);
  for (PageId page = run.first; page < run.first + run.count; ++page) {
    const Access access = access_in(parameter_tier_, page, true, false);
    TACO_RETURN_IF_ERROR(pages_.begin(kLookKeys + page, {&access, 1}));
    const std::byte* const memory = pages_.address(page, pages_.tier_of(page));
    const std::uint64_t page_start = page * per_page;
    const std::uint64_t begin = std::max(start, page_start) - start;
    const std::uint64_t end =
        std::min(start + tensor.bytes / element, page_start + per_page) - start;
    const std::size_t first = begin / kSumSegment, last = sum_segments(end);
    workers_->run([&](unsigned worker) {
      const std::size_t count = last - first;
      for (std::size_t segment = first + count * worker / workers_->count();
           segment < first + count * (worker + 1) / workers_->count(); ++segment) {
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
  }
  double all = 0;
  for (const LaneSums& lanes : sums) all += kernels::total(lanes);
  return all;
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
  return step_adafactor(in_memory);
}

Status OptimizerStream::step_adafactor(Part part) {
  const Update& update = *part.update;
  const auto& step = std::get<kernels::AdafactorStep>(update.step);
  const PlacedTensor& tensor = layout_.tensors()[update.tensor];
  kernels::GradientSpan gradient;
  if (update.bf16_gradient) {
    gradient.bf16 = static_cast<const std::uint16_t*>(update.gradient);
  } else {
    gradient.f32 = static_cast<const float*>(update.gradient);
  }
  const auto squares = squares_of(tensor);
  if (!squares.ok()) return squares.status();
  // Where parameters are stepped anywhere, the device's memory is the host's, and has a page free:
  // host memory need have none but those that pages pass through.
  AdafactorMeasure measure(step, gradient, parameter_tier_.value_or(Tier::kDevice));
  TACO_RETURN_IF_ERROR(measure.take(pages_, layout_, tensor, *workers_));
  TACO_RETURN_IF_ERROR(in_the_middle(measure.write_back(pages_, layout_, tensor)));
  part.moments = measure.moments();
  part.factor = measure.factor(squares.value());
  const Run run = layout_.pages_of(tensor);
  for (PageId page = run.first; page < run.first + run.count; ++page) {
    TACO_RETURN_IF_ERROR(in_the_middle(step_chunks(page, {&part, 1})));
  }
  return {};
}

}  // namespace taco::zerocache
