// The form of a tensor: what it is beside its bytes. Checkpoints record it, so that bytes are never
// taken for another dtype or shape, and elements that lie in another order are put in theirs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace taco::zerocache {

struct TensorForm {
  std::string dtype;                          // "float32", as torch calls it; empty: not known
  std::vector<std::uint64_t> shape, strides;  // in elements; as long as each other
  bool known() const { return !dtype.empty(); }
};

// By the index of a tensor in its layout; those beyond the end are not known.
using TensorForms = std::span<const TensorForm>;

// Whether so many bytes are just the elements of this form, each once: as many bytes for each, and
// no gap between them. Takes any numbers. A form that is not known fits everything.
bool fits(const TensorForm& form, std::uint64_t bytes);
// Whether both have the same dtype and the same shape.
bool same_tensor(const TensorForm& one, const TensorForm& other);
// Whether elements lie in the same order; both fit and are the same tensor.
bool same_order(const TensorForm& one, const TensorForm& other);
// Copies elements to where they lie in the other form. Both are the same tensor and fit the bytes.
void reorder(const TensorForm& from, std::span<const std::byte> bytes, const TensorForm& to,
             std::span<std::byte> into);
// "float32 of shape (3, 4)"
std::string described(const TensorForm& form);

}  // namespace taco::zerocache
