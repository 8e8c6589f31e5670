#include "support/pg_values.h"

#include <array>
#include <complex>
#include <cstring>

namespace taco::testing {

using kernels::Dtype;
using kernels::ReduceOp;

namespace {

template <class T>
void store(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof value);
}

void store(Dtype dtype, std::byte* at, int value) {
  switch (dtype) {
    case Dtype::kF32:
      return store(at, static_cast<float>(value));
    case Dtype::kF64:
      return store(at, static_cast<double>(value));
    case Dtype::kF16:
    case Dtype::kBF16: {
      const float wide = static_cast<float>(value);
      std::uint16_t narrow = 0;
      (dtype == Dtype::kF16 ? kernels::f32_to_f16 : kernels::f32_to_bf16)(&narrow, &wide, 1);
      return store(at, narrow);
    }
    case Dtype::kI8:
    case Dtype::kU8:
      return store(at, static_cast<std::uint8_t>(value));
    case Dtype::kI16:
      return store(at, static_cast<std::int16_t>(value));
    case Dtype::kI32:
      return store(at, static_cast<std::int32_t>(value));
    case Dtype::kI64:
      return store(at, static_cast<std::int64_t>(value));
    case Dtype::kBool:
      return store(at, static_cast<std::uint8_t>(value > 1));
    case Dtype::kC64:
      return store(at, std::complex<float>(static_cast<float>(value), 0));
    case Dtype::kC32: {
      const float wide[] = {static_cast<float>(value), 0};
      std::array<std::uint16_t, 2> narrow{};
      kernels::f32_to_f16(narrow.data(), wide, 2);
      return store(at, narrow);
    }
    case Dtype::kC128:
      return store(at, std::complex<double>(value, 0));
  }
}

}  // namespace

Bytes values(Dtype dtype, std::size_t count, int rank, int salt) {
  const std::size_t element = kernels::size_of(dtype);
  Bytes bytes(count * element);
  for (std::size_t i = 0; i < count; ++i) {
    const bool two = rank < 6 && (i * 7 + static_cast<std::size_t>(rank * 5 + salt)) % 3 == 0;
    store(dtype, bytes.data() + i * element, two ? 2 : 1);
  }
  return bytes;
}

Bytes reduced(ReduceOp op, Dtype dtype, const std::vector<Bytes>& operands, double premul) {
  const std::size_t count = operands[0].size() / kernels::size_of(dtype);
  std::vector<Bytes> scaled = operands;
  if (op == ReduceOp::kPremulSum)
    for (Bytes& bytes : scaled) kernels::scale(dtype, bytes.data(), bytes.data(), count, premul);
  Bytes result = scaled[0];
  for (std::size_t i = 1; i < scaled.size(); ++i)
    kernels::reduce_function(op, dtype)(result.data(), result.data(), scaled[i].data(), count);
  if (op == ReduceOp::kAvg) {
    kernels::divide(dtype, result.data(), result.data(), count,
                    static_cast<std::int64_t>(operands.size()));
  }
  return result;
}

::testing::AssertionResult same(const Bytes& got, const Bytes& expected) {
  if (got == expected) return ::testing::AssertionSuccess();
  if (got.size() != expected.size())
    return ::testing::AssertionFailure() << got.size() << " bytes instead of " << expected.size();
  std::size_t at = 0;
  while (got[at] == expected[at]) ++at;
  return ::testing::AssertionFailure()
         << "byte " << at << " of " << got.size() << " is " << static_cast<int>(got[at])
         << " instead of " << static_cast<int>(expected[at]);
}

}  // namespace taco::testing
