// Names and sizes, and the sentence that says what a pair of type and reduction could be instead.
#include <string>

#include "base/names.h"
#include "kernels/kernels.h"

namespace taco::kernels {
namespace {

struct DtypeFacts {
  const char* name;
  std::size_t size;
};
constexpr DtypeFacts kDtypeFacts[kDtypes] = {
    {"float32", 4},   {"float64", 8},     {"float16", 2},   {"bfloat16", 2}, {"int8", 1},
    {"uint8", 1},     {"int16", 2},       {"int32", 4},     {"int64", 8},    {"bool", 1},
    {"complex64", 8}, {"complex128", 16}, {"complex32", 4},
};
constexpr const char* kReduceOpNames[kReduceOps] = {
    "SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM",
};

bool in_range(Dtype dtype) { return static_cast<int>(dtype) < kDtypes; }
bool in_range(ReduceOp op) { return static_cast<int>(op) < kReduceOps; }

}  // namespace

std::size_t size_of(Dtype dtype) {
  return in_range(dtype) ? kDtypeFacts[static_cast<int>(dtype)].size : 0;
}
const char* name_of(Dtype dtype) {
  return in_range(dtype) ? kDtypeFacts[static_cast<int>(dtype)].name : "unknown dtype";
}
const char* name_of(ReduceOp op) {
  return in_range(op) ? kReduceOpNames[static_cast<int>(op)] : "unknown reduction";
}

Status check_supported(ReduceOp op, Dtype dtype) {
  if (reduce_function(op, dtype) != nullptr) return Status();
  std::string operations;
  for (int i = 0; i < kReduceOps; ++i) {
    const auto other = static_cast<ReduceOp>(i);
    if (reduce_function(other, dtype) != nullptr) append_name(operations, name_of(other));
  }
  std::string dtypes;
  for (int i = 0; i < kDtypes; ++i) {
    const auto other = static_cast<Dtype>(i);
    if (reduce_function(op, other) != nullptr) append_name(dtypes, name_of(other));
  }
  std::string text =
      std::string("reduction ") + name_of(op) + " of " + name_of(dtype) + " is not supported";
  if (!operations.empty()) text += std::string("; ") + name_of(dtype) + " supports " + operations;
  if (!dtypes.empty()) text += std::string("; ") + name_of(op) + " supports " + dtypes;
  return Status(Code::kUnsupported, text);
}

}  // namespace taco::kernels
