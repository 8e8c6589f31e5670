// Parameters for those that no module announces (lending.cc): one, or all that an operator is
// given.
#include <algorithm>
#include <map>

#include "zerocache/torch/store.h"

namespace taco::zerocache {
namespace {

// Bytes of a storage, from the first to the end.
struct ByteRange {
  std::uint64_t begin, end;
};

// The bytes that a tensor lies on, which has elements.
ByteRange bytes_under(const at::Tensor& tensor) {
  std::int64_t last = tensor.storage_offset();
  for (std::int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  const auto element = static_cast<std::uint64_t>(tensor.element_size());
  return {static_cast<std::uint64_t>(tensor.storage_offset()) * element,
          (static_cast<std::uint64_t>(last) + 1) * element};
}

}  // namespace

std::optional<Uses::Part> Store::part_of(const at::Tensor& tensor) {
  Entry* entry = find(tensor);
  if (entry == nullptr) return std::nullopt;
  if (!entry->alone) entry->alone = uses_.add_part({entry->parameter});
  return entry->alone;
}

void Store::note_change(const at::Tensor& tensor) {
  if (const Entry* entry = find(tensor)) uses_.note_write(entry->parameter);
}

void Store::say_why(const at::Tensor& tensor, const std::string& reason) {
  const Entry* entry = find(tensor);
  if (entry != nullptr && !entry->storage->present()) entry->storage->set_absent(reason.c_str());
}

Uses::Part Store::part_of_operands(const std::vector<at::Tensor>& operands, bool whole) {
  std::map<const Entry*, ByteRange> touched;
  for (const at::Tensor& operand : operands) {
    const Entry* const entry = find(operand);
    if (entry == nullptr || operand.numel() == 0) continue;
    const ByteRange bytes = whole ? ByteRange{0, entry->storage->bytes()} : bytes_under(operand);
    ByteRange& all = touched.try_emplace(entry, bytes).first->second;
    all = {std::min(all.begin, bytes.begin), std::max(all.end, bytes.end)};
  }
  OperandParts::Pages found;
  for (const auto& [entry, bytes] : touched) {
    const std::uint64_t start = layout_.tensors()[entry->tensor].offset;
    const auto first = static_cast<PageId>((start + bytes.begin) / page_bytes());
    const auto last = static_cast<PageId>((start + bytes.end - 1) / page_bytes());
    found.push_back({entry->parameter, first, last - first + 1});
  }
  std::sort(found.begin(), found.end());
  return parts_of_operands_.part_of(found);
}

}  // namespace taco::zerocache
