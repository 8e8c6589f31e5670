#include "zerocache/pages/layout.h"

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
constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 56;

}  // namespace

Result<Layout> Layout::make(const std::vector<TensorSpec>& tensors, std::size_t page_bytes) {
  if (!valid_page_bytes(page_bytes)) {
    return Status(Code::kInvalidArgument, "a page of " + std::to_string(page_bytes) +
                                              " bytes: it must be a power of two from " +
                                              std::to_string(kIoAlignment) + " to " +
                                              std::to_string(kMaxPageBytes));
  }
  Layout layout;
  layout.page_bytes_ = page_bytes;
  layout.tensors_.reserve(tensors.size());
  for (const TensorSpec& tensor : tensors) {
    if (const auto placed = layout.append(tensor); !placed.ok()) return placed.status();
  }
  return layout;
}

std::uint64_t Layout::max_bytes() const {
  return std::min<std::uint64_t>(kMaxBytes, std::uint64_t{kNoPage - 1} * page_bytes_);
}

Status Layout::check(const TensorSpec& tensor) const {
  const auto refuse = [](std::string text) {
    return Status(Code::kInvalidArgument, std::move(text));
  };
  if (tensor.name.empty())
    return refuse("tensor " + std::to_string(tensors_.size()) + " has no name");
  const std::string described =
      "tensor '" + tensor.name + "' of " + std::to_string(tensor.bytes) + " bytes";
  if (by_name_.count(tensor.name) > 0) {
    return refuse("two tensors are called '" + tensor.name + "': each needs a name of its own");
  }
  const std::uint32_t element = tensor.element_bytes;
  if (element == 0 || kTensorAlignment % element != 0) {
    return refuse(described + " has elements of " + std::to_string(element) +
                  " bytes: their size must be a power of two up to " +
                  std::to_string(kTensorAlignment));
  }
  if (tensor.bytes % element != 0) {
    return refuse(described + " has no whole number of elements of " + std::to_string(element));
  }
  if (tensor.bytes > max_bytes()) {
    return refuse(described + ": a store has at most " + std::to_string(max_bytes()) + " bytes");
  }
  return {};
}

Result<std::uint32_t> Layout::append(const TensorSpec& tensor) {
  TACO_RETURN_IF_ERROR(check(tensor));
  const std::uint64_t padded = round_up(tensor.bytes, kTensorAlignment);
  Region region = regions_[tensor.element_bytes];
  region.padded += padded;
  const std::uint64_t gap = round_up(region.end, page_bytes_) - region.end;
  const bool saves_a_page =
      touched(region.end, padded, page_bytes_) > touched(0, padded, page_bytes_);
  const bool moves_on = saves_a_page && (region.gaps + gap) * kGapShare <= region.padded;
  if (moves_on) region.end += gap;
  const bool is_last = region.all > 0 && region.limit == range_end_;
  if (region.end + padded <= region.limit || is_last) {
    if (moves_on) region.gaps += gap;
  } else {
    const std::uint64_t least =
        std::max<std::uint64_t>(region.all, std::uint64_t{kMinRegion} * page_bytes_);
    region.end = range_end_;
    region.limit = std::min(range_end_ + least, max_bytes());
  }
  if (region.end + padded > max_bytes()) {
    return Status(Code::kInvalidArgument,
                  "tensor '" + tensor.name + "' of " + std::to_string(tensor.bytes) +
                      " bytes begins at " + std::to_string(region.end) + ": a store has at most " +
                      std::to_string(max_bytes()) + " bytes");
  }
  region.limit = std::max(region.limit, round_up(region.end + padded, page_bytes_));
  if (region.limit > range_end_) {
    region.all += region.limit - range_end_;
    range_end_ = region.limit;
  }
  const std::uint64_t offset = region.end;
  region.end += padded;
  regions_[tensor.element_bytes] = region;
  const std::uint64_t end = round_up(region.end, page_bytes_) / page_bytes_;
  pages_ = std::max(pages_, static_cast<std::uint32_t>(end));
  return insert(tensor, offset);
}

Result<PageId> Layout::reserve(std::uint64_t pages) {
  const std::uint64_t most = (max_bytes() - range_end_) / page_bytes_;
  if (pages > most) {
    return Status(Code::kInvalidArgument,
                  std::to_string(pages) + " more pages of " + std::to_string(page_bytes_) +
                      " bytes: a store has room for " + std::to_string(most));
  }
  const Run run = {static_cast<PageId>(range_end_ / page_bytes_),
                   static_cast<std::uint32_t>(pages)};
  reserved_.push_back(run);
  range_end_ += pages * page_bytes_;
  pages_ = run.first + run.count;
  return run.first;
}

Result<std::uint32_t> Layout::append_at(const TensorSpec& tensor, std::uint64_t offset) {
  TACO_RETURN_IF_ERROR(check(tensor));
  const std::uint64_t end = offset + tensor.bytes;
  const bool is_reserved = std::any_of(reserved_.begin(), reserved_.end(), [&](const Run& run) {
    const std::uint64_t first = std::uint64_t{run.first} * page_bytes_;
    return first <= offset && end <= first + std::uint64_t{run.count} * page_bytes_;
  });
  const auto next =
      std::partition_point(by_offset_.begin(), by_offset_.end(), [&](std::uint32_t index) {
        return tensors_[index].offset + tensors_[index].bytes <= offset;
      });
  const bool is_free = next == by_offset_.end() || tensors_[*next].offset >= end;
  if (!is_reserved || !is_free || offset % kTensorAlignment != 0) {
    return Status(Code::kInvalidArgument,
                  "tensor '" + tensor.name + "' of " + std::to_string(tensor.bytes) +
                      " bytes cannot begin at " + std::to_string(offset) + ": " +
                      (!is_reserved ? "that is not reserved"
                       : !is_free   ? "'" + tensors_[*next].name + "' is there"
                                    : "no multiple of " + std::to_string(kTensorAlignment)));
  }
  return insert(tensor, offset);
}

Status Layout::rename(std::uint32_t index, const std::string& name) {
  PlacedTensor& tensor = tensors_[index];
  if (tensor.name == name) return {};
  if (name.empty() || by_name_.contains(name)) {
    return Status(Code::kInvalidArgument,
                  "tensor '" + tensor.name + "' cannot be called '" + name +
                      "': " + (name.empty() ? "that is no name" : "another tensor is"));
  }
  by_name_.erase(tensor.name);
  by_name_.emplace(name, index);
  tensor.name = name;
  return {};
}

void Layout::remove(std::uint32_t index) {
  PlacedTensor& tensor = tensors_[index];
  by_name_.erase(tensor.name);
  std::erase(by_offset_, index);
  tensor.name.clear();
  tensor.bytes = 0;
}

std::uint32_t Layout::insert(const TensorSpec& tensor, std::uint64_t offset) {
  const auto index = static_cast<std::uint32_t>(tensors_.size());
  tensors_.push_back({tensor.name, tensor.bytes, offset, tensor.element_bytes});
  by_name_.emplace(tensor.name, index);
  if (tensor.bytes > 0) {
    const auto place =
        std::partition_point(by_offset_.begin(), by_offset_.end(),
                             [&](std::uint32_t other) { return tensors_[other].offset < offset; });
    by_offset_.insert(place, index);
  }
  return index;
}

const PlacedTensor* Layout::find(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

Run Layout::pages_of(const PlacedTensor& tensor) const {
  return {static_cast<std::uint32_t>(tensor.offset / page_bytes_),
          static_cast<std::uint32_t>(touched(tensor.offset, tensor.bytes, page_bytes_))};
}

std::span<const std::uint32_t> Layout::tensors_on(PageId page) const {
  const std::uint64_t start = std::uint64_t{page} * page_bytes_, end = start + page_bytes_;
  const auto first = std::partition_point(
      by_offset_.begin(), by_offset_.end(),
      [&](std::uint32_t index) { return tensors_[index].offset + tensors_[index].bytes <= start; });
  const auto last = std::partition_point(
      first, by_offset_.end(), [&](std::uint32_t index) { return tensors_[index].offset < end; });
  return {first, last};
}

const PlacedTensor* Layout::tensor_at(std::uint64_t offset) const {
  for (const std::uint32_t index : tensors_on(static_cast<PageId>(offset / page_bytes_))) {
    const PlacedTensor& tensor = tensors_[index];
    if (offset >= tensor.offset && offset - tensor.offset < tensor.bytes) return &tensor;
  }
  return nullptr;
}

std::string Layout::describe(PageId page) const {
  constexpr std::size_t kNamed = 2;
  const std::span<const std::uint32_t> tensors = tensors_on(page);
  std::string text = "page " + std::to_string(page);
  for (std::size_t i = 0; i < std::min(tensors.size(), kNamed); ++i) {
    text += (i == 0 ? " (" : ", ") + tensors_[tensors[i]].name;
  }
  if (tensors.size() > kNamed) {
    text += " and " + std::to_string(tensors.size() - kNamed) + " more";
  }
  if (!tensors.empty()) text += ")";
  return text;
}

double Layout::waste() const {
  std::uint64_t pages = 0, padded = 0, next = 0;  // next: the first page not counted yet
  for (const std::uint32_t index : by_offset_) {
    const PlacedTensor& tensor = tensors_[index];
    const Run run = pages_of(tensor);
    const std::uint64_t end = std::uint64_t{run.first} + run.count;
    pages += end - std::min<std::uint64_t>(std::max<std::uint64_t>(run.first, next), end);
    next = end;
    padded += round_up(tensor.bytes, kTensorAlignment);
  }
  if (pages == 0) return 0;
  return 1 - static_cast<double>(padded) / static_cast<double>(pages * page_bytes_);
}

}  // namespace taco::zerocache
