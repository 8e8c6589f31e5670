// Reductions, scaling and conversions of kernels/kernels.h on a GPU, each by its host's definition.
// Bytes that must move, an element of b bytes: reduce 3b, scale and divide 2b, a conversion the sum
// of both types' b, accumulate 10.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "kernels/cuda/arithmetic.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/kernels.h"

namespace taco::kernels::cuda {

template <class Operation, class Format>
struct Reduced {
  using Stored = typename Format::Stored;
  TACO_DEVICE Stored operator()(Stored a, Stored b) const {
    using P = Scalar<typename Format::Computed>;
    return Format::encode(Operation::template apply<P>(Format::decode(a), Format::decode(b)));
  }
};

template <class Operation, class Format, class Launcher>
Status reduce_as(const Launcher& launch, void* out, const void* a, const void* b,
                 std::size_t count) {
  using T = typename Format::Stored;
  const BinaryBody<T, T, T, Reduced<Operation, Format>> body{
      static_cast<T*>(out), static_cast<const T*>(a), static_cast<const T*>(b), {}};
  return launch_elementwise(launch, body, count);
}

// Calls visit(format) with the Format of a dtype; kUnsupported where there is none here.
template <class Visit>
Status with_format(const char* what, Dtype dtype, const Visit& visit) {
  switch (dtype) {
    case Dtype::kF32:
      return visit(Plain<float>());
    case Dtype::kF64:
      return visit(Plain<double>());
    case Dtype::kF16:
      return visit(Float16());
    case Dtype::kBF16:
      return visit(Bfloat16());
    case Dtype::kI8:
      return visit(Plain<std::int8_t>());
    case Dtype::kU8:
      return visit(Plain<std::uint8_t>());
    case Dtype::kI32:
      return visit(Plain<std::int32_t>());
    case Dtype::kI64:
      return visit(Plain<std::int64_t>());
    default:
      return Status(Code::kUnsupported,
                    std::string(what) + " of " + name_of(dtype) +
                        " is not supported on a GPU: float32, float64, float16, bfloat16, int8, "
                        "uint8, int32 and int64 are");
  }
}

template <class Launcher>
Status reduce_on(const Launcher& launch, ReduceOp op, Dtype dtype, void* out, const void* a,
                 const void* b, std::size_t count) {
  return with_format("a reduction", dtype, [&](auto format) {
    using Format = decltype(format);
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kAvg:
      case ReduceOp::kPremulSum:
        return reduce_as<Sum, Format>(launch, out, a, b, count);
      case ReduceOp::kProduct:
        return reduce_as<Product, Format>(launch, out, a, b, count);
      case ReduceOp::kMin:
        return reduce_as<Min, Format>(launch, out, a, b, count);
      case ReduceOp::kMax:
        return reduce_as<Max, Format>(launch, out, a, b, count);
      default:
        return Status(Code::kUnsupported,
                      std::string("reduction ") + name_of(op) +
                          " is not supported on a GPU: SUM, AVG, PRODUCT, MIN, MAX and PREMUL_SUM "
                          "are");
    }
  });
}

template <class Format>
struct Times {
  typename Format::Computed by;
  TACO_DEVICE typename Format::Stored operator()(typename Format::Stored in) const {
    using T = typename Format::Computed;
    if constexpr (std::is_integral_v<T>) {
      return wrapping_multiply<Scalar<T>>(in, by);
    } else {
      return Format::encode(canonical_nan<Scalar<T>>(Format::decode(in) * by));
    }
  }
};
template <class Format>
struct Over {
  typename Format::Computed by;
  TACO_DEVICE typename Format::Stored operator()(typename Format::Stored in) const {
    using T = typename Format::Computed;
    return Format::encode(canonical_nan<Scalar<T>>(Format::decode(in) / by));
  }
};
// Toward zero. The least number over -1 has no place in its type: it is multiplied instead.
template <class T, class Divisor>
struct WholeOver {
  Divisor by;
  TACO_DEVICE T operator()(T in) const { return static_cast<T>(static_cast<Divisor>(in) / by); }
};
// By a factor that is neither whole nor 1/n, through double: saturates, NaN is 0.
template <class T>
struct TimesDouble {
  double by;
  TACO_DEVICE T operator()(T in) const {
    constexpr T kLeast = std::numeric_limits<T>::min(), kMost = std::numeric_limits<T>::max();
    const double value = static_cast<double>(in) * by;
    if (value >= static_cast<double>(kMost)) return kMost;
    if (value <= static_cast<double>(kLeast)) return kLeast;
    return value == value ? static_cast<T>(value) : T{0};
  }
};

template <class T, class Launcher, class Function>
Status map_on(const Launcher& launch, void* out, const void* in, std::size_t count,
              const Function& function) {
  const UnaryBody<T, T, Function> body{static_cast<T*>(out), static_cast<const T*>(in), function};
  return launch_elementwise(launch, body, count);
}

template <class T, class Launcher>
Status divide_whole(const Launcher& launch, void* out, const void* in, std::size_t count,
                    std::int64_t n) {
  if (n == -1) return map_on<T>(launch, out, in, count, Times<Plain<T>>{static_cast<T>(-1)});
  // In 32 bits where all of the type and the divisor fit: a GPU divides 64 bits by a loop.
  if constexpr (sizeof(T) <= 4) {
    if (n > std::numeric_limits<std::int32_t>::min() &&
        n <= std::numeric_limits<std::int32_t>::max()) {
      const WholeOver<T, std::int32_t> over{static_cast<std::int32_t>(n)};
      return map_on<T>(launch, out, in, count, over);
    }
  }
  return map_on<T>(launch, out, in, count, WholeOver<T, std::int64_t>{n});
}

template <class Launcher>
Status divide_on(const Launcher& launch, Dtype dtype, void* out, const void* in, std::size_t count,
                 std::int64_t n) {
  if (n == 0) return invalid("a division by 0: a world has a size of 1 at least");
  return with_format("a division", dtype, [&](auto format) {
    using Format = decltype(format);
    using T = typename Format::Computed;
    if constexpr (std::is_integral_v<T>) {
      return divide_whole<T>(launch, out, in, count, n);
    } else {
      const Over<Format> over{static_cast<T>(n)};
      return map_on<typename Format::Stored>(launch, out, in, count, over);
    }
  });
}

template <class T, class Launcher>
Status scale_whole(const Launcher& launch, void* out, const void* in, std::size_t count,
                   double factor) {
  const IntegerScale scale = integer_scale(factor);
  switch (scale.by) {
    case IntegerScale::By::kProduct:
      return map_on<T>(launch, out, in, count, Times<Plain<T>>{static_cast<T>(scale.whole)});
    case IntegerScale::By::kQuotient:
      return divide_whole<T>(launch, out, in, count, scale.whole);
    case IntegerScale::By::kDouble:
      break;
  }
  return map_on<T>(launch, out, in, count, TimesDouble<T>{factor});
}

template <class Launcher>
Status scale_on(const Launcher& launch, Dtype dtype, void* out, const void* in, std::size_t count,
                double factor) {
  return with_format("scaling", dtype, [&](auto format) {
    using Format = decltype(format);
    using T = typename Format::Computed;
    if constexpr (std::is_integral_v<T>) {
      return scale_whole<T>(launch, out, in, count, factor);
    } else {
      const Times<Format> times{static_cast<T>(factor)};
      return map_on<typename Format::Stored>(launch, out, in, count, times);
    }
  });
}

template <class Format>
struct Encoded {
  TACO_DEVICE std::uint16_t operator()(float value) const { return Format::encode(value); }
};
template <class Format>
struct Decoded {
  TACO_DEVICE float operator()(std::uint16_t half) const { return Format::decode(half); }
};
template <class Format>
struct Accumulated {
  TACO_DEVICE float operator()(float sum, std::uint16_t half) const {
    return Sum::apply<Scalar<float>>(sum, Format::decode(half));
  }
};

template <class Format, class Launcher>
Status encode_on(const Launcher& launch, std::uint16_t* out, const float* in, std::size_t count) {
  return launch_elementwise(launch, UnaryBody<std::uint16_t, float, Encoded<Format>>{out, in, {}},
                            count);
}
template <class Format, class Launcher>
Status decode_on(const Launcher& launch, float* out, const std::uint16_t* in, std::size_t count) {
  return launch_elementwise(launch, UnaryBody<float, std::uint16_t, Decoded<Format>>{out, in, {}},
                            count);
}
// sum[i] += in[i]
template <class Format, class Launcher>
Status accumulate_on(const Launcher& launch, float* sum, const std::uint16_t* in,
                     std::size_t count) {
  return launch_elementwise(
      launch, BinaryBody<float, float, std::uint16_t, Accumulated<Format>>{sum, sum, in, {}},
      count);
}

}  // namespace taco::kernels::cuda
