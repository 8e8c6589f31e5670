#include "zerocache/layout.h"

#include <algorithm>
#include <utility>

namespace taco::zerocache {
namespace {

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

// Pages that [offset, offset + bytes) touches.
std::uint64_t touched(std::uint64_t offset, std::uint64_t bytes, std::uint64_t page_bytes) {
  return bytes == 0 ? 0 : (offset + bytes - 1) / page_bytes - offset / page_bytes + 1;
}

// Far above what fits in any machine, and far below where sums of offsets overflow.
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 56;

}  // namespace

Result<Layout> Layout::make(const std::vector<TensorSpec>& tensors, std::size_t page_bytes) {
  if (!valid_page_bytes(page_bytes)) {
    return Status(Code::kInvalidArgument, "a page of " + std::to_string(page_bytes) +
                                              " bytes: it must be a power of two from " +
                                              std::to_string(kIoAlignment) + " to " +
                                              std::to_string(kMostPageBytes));
  }
  Layout layout;
  layout.page_bytes_ = page_bytes;
  layout.tensors_.reserve(tensors.size());
  std::uint64_t end = 0, gaps = 0;
  for (const TensorSpec& tensor : tensors) {
    if (tensor.name.empty()) {
      return Status(Code::kInvalidArgument,
                    "tensor " + std::to_string(layout.tensors_.size()) + " has no name");
    }
    const auto index = static_cast<std::uint32_t>(layout.tensors_.size());
    if (!layout.by_name_.emplace(tensor.name, index).second) {
      return Status(Code::kInvalidArgument,
                    "two tensors are called '" + tensor.name + "': each needs a name of its own");
    }
    const std::uint64_t most_bytes =
        std::min<std::uint64_t>(kMostBytes, std::uint64_t{kNoPage - 1} * page_bytes);
    if (tensor.bytes > most_bytes || end > most_bytes - tensor.bytes) {
      return Status(Code::kInvalidArgument, "tensor '" + tensor.name + "' of " +
                                                std::to_string(tensor.bytes) + " bytes begins at " +
                                                std::to_string(end) + ": a store has at most " +
                                                std::to_string(most_bytes) + " bytes");
    }
    const std::uint64_t padded = round_up(tensor.bytes, kTensorAlignment);
    layout.padded_bytes_ += padded;
    const std::uint64_t gap = round_up(end, page_bytes) - end;
    const bool saves_a_page = touched(end, padded, page_bytes) > touched(0, padded, page_bytes);
    if (saves_a_page && (gaps + gap) * kGapShare <= layout.padded_bytes_) {
      gaps += gap;
      end += gap;
    }
    layout.tensors_.push_back({tensor.name, tensor.bytes, end});
    end += padded;
  }
  layout.pages_ = static_cast<std::uint32_t>(round_up(end, page_bytes) / page_bytes);
  return layout;
}

const PlacedTensor* Layout::find(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

Run Layout::pages_of(const PlacedTensor& tensor) const {
  return {static_cast<std::uint32_t>(tensor.offset / page_bytes_),
          static_cast<std::uint32_t>(touched(tensor.offset, tensor.bytes, page_bytes_))};
}

Run Layout::tensors_on(PageId page) const {
  const std::uint64_t start = std::uint64_t{page} * page_bytes_, end = start + page_bytes_;
  const auto first = std::partition_point(
      tensors_.begin(), tensors_.end(),
      [&](const PlacedTensor& tensor) { return tensor.offset + tensor.bytes <= start; });
  const auto last = std::partition_point(
      first, tensors_.end(), [&](const PlacedTensor& tensor) { return tensor.offset < end; });
  return {static_cast<std::uint32_t>(first - tensors_.begin()),
          static_cast<std::uint32_t>(last - first)};
}

std::string Layout::describe(PageId page) const {
  constexpr std::size_t kNamed = 2;
  std::string text = "page " + std::to_string(page);
  const Run run = tensors_on(page);
  std::size_t named = 0, more = 0;
  for (std::uint32_t i = run.first; i < run.first + run.count; ++i) {
    if (tensors_[i].bytes == 0) continue;
    if (named == kNamed) {
      ++more;
      continue;
    }
    text += (named++ == 0 ? " (" : ", ") + tensors_[i].name;
  }
  if (more > 0) text += " and " + std::to_string(more) + " more";
  if (named > 0) text += ")";
  return text;
}

double Layout::waste() const {
  if (pages_ == 0) return 0;
  return 1 - static_cast<double>(padded_bytes_) / static_cast<double>(bytes());
}

}  // namespace taco::zerocache
