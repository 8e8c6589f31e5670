#include "zerocache/pages/tensor_form.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace taco::zerocache {
namespace {

// Dimensions of more than one element, those of the smallest strides first.
std::vector<std::size_t> dimensions_in_order(const TensorForm& form) {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < form.shape.size(); ++i) {
    if (form.shape[i] > 1) found.push_back(i);
  }
  std::stable_sort(found.begin(), found.end(),
                   [&](std::size_t a, std::size_t b) { return form.strides[a] < form.strides[b]; });
  return found;
}

}  // namespace

bool fits(const TensorForm& form, std::uint64_t bytes) {
  if (!form.known()) return form.shape.empty() && form.strides.empty();
  if (form.shape.size() != form.strides.size()) return false;
  if (std::count(form.shape.begin(), form.shape.end(), 0) > 0) return bytes == 0;
  std::uint64_t elements = 1;
  for (const std::size_t dimension : dimensions_in_order(form)) {
    if (form.strides[dimension] != elements) return false;
    if (__builtin_mul_overflow(elements, form.shape[dimension], &elements)) return false;
  }
  return bytes > 0 && bytes % elements == 0;
}

bool same_tensor(const TensorForm& one, const TensorForm& other) {
  return one.dtype == other.dtype && one.shape == other.shape;
}

bool same_order(const TensorForm& one, const TensorForm& other) {
  return dimensions_in_order(one) == dimensions_in_order(other);
}

void reorder(const TensorForm& from, std::span<const std::byte> bytes, const TensorForm& to,
             std::span<std::byte> into) {
  const std::uint64_t elements =
      std::accumulate(to.shape.begin(), to.shape.end(), std::uint64_t{1}, std::multiplies<>());
  if (elements == 0) return;
  const std::size_t size = bytes.size() / elements;
  const std::vector<std::size_t> order = dimensions_in_order(to);
  std::vector<std::uint64_t> place(order.size());
  std::uint64_t source = 0;
  for (std::uint64_t element = 0; element < elements; ++element) {
    std::memcpy(into.data() + element * size, bytes.data() + source * size, size);
    for (std::size_t i = 0; i < order.size(); ++i) {
      source += from.strides[order[i]];
      if (++place[i] < to.shape[order[i]]) break;
      source -= from.strides[order[i]] * to.shape[order[i]];
      place[i] = 0;
    }
  }
}

std::string described(const TensorForm& form) {
  std::string text = form.dtype + " of shape (";
  for (std::size_t i = 0; i < form.shape.size(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(form.shape[i]);
  }
  return text + (form.shape.size() == 1 ? ",)" : ")");
}

}  // namespace taco::zerocache
