// Fills a Variant from `Loops`, the loops of one instruction set:
//   Loops::reduce<Operation, T>(out, a, b, count)              T an arithmetic type
//   Loops::reduce_halves<Operation, Halves>(out, a, b, count)  Halves: Loops::F16 or Loops::Bf16
//   Loops::multiply_complex<T>(out, a, b, count)             T the type of one part
//   Loops::accumulate<Halves>(acc, in, count)
//   Loops::Floats, a pack of floats (Scalar or Vector of kernels/operations.h), and Loops::Lanes,
//   those of kernels/select_loops.h
// Halves::to_floats(float*, const void*, count) and from_floats(void*, const float*, count).
//
// Included by files that are compiled for different instruction sets: everything is internal.
#pragma once

#include "kernels/elementwise.h"
#include "kernels/scaled_loops.h"
#include "kernels/select_loops.h"
#include "kernels/variant.h"

namespace taco::kernels {
namespace {

template <class Loops, class Operation, class T>
void reduce_complex(void* out, const void* a, const void* b, std::size_t count) {
  Loops::template reduce<Operation, T>(out, a, b, 2 * count);
}
template <class T>
void scale_complex(void* out, const void* in, std::size_t count, double factor) {
  scale_floats<T>(out, in, 2 * count, factor);
}
template <class T>
void divide_complex(void* out, const void* in, std::size_t count, std::int64_t n) {
  divide_floats<T>(out, in, 2 * count, n);
}

template <class Loops, class Halves>
void reduce_complex_halves(void* out, const void* a, const void* b, std::size_t count) {
  Loops::template reduce_halves<Sum, Halves>(out, a, b, 2 * count);
}
template <class Halves>
void scale_complex_halves(void* out, const void* in, std::size_t count, double factor) {
  scale_halves<Halves>(out, in, 2 * count, factor);
}
template <class Halves>
void divide_complex_halves(void* out, const void* in, std::size_t count, std::int64_t n) {
  divide_halves<Halves>(out, in, 2 * count, n);
}

template <class Loops>
struct Table {
  Variant variant{};

  constexpr ReduceFn& reduce(ReduceOp op, Dtype dtype) {
    return variant.reduce[static_cast<int>(op)][static_cast<int>(dtype)];
  }
  constexpr void set_additions(Dtype dtype, ReduceFn sum) {
    reduce(ReduceOp::kSum, dtype) = sum;
    reduce(ReduceOp::kAvg, dtype) = sum;
    reduce(ReduceOp::kPremulSum, dtype) = sum;
  }
  constexpr void set_scaling(Dtype dtype, ScaleFn scale, DivideFn divide) {
    variant.scale[static_cast<int>(dtype)] = scale;
    variant.divide[static_cast<int>(dtype)] = divide;
  }

  template <class T>
  constexpr void set_arithmetic(Dtype dtype) {
    set_additions(dtype, Loops::template reduce<Sum, T>);
    reduce(ReduceOp::kProduct, dtype) = Loops::template reduce<Product, T>;
    reduce(ReduceOp::kMin, dtype) = Loops::template reduce<Min, T>;
    reduce(ReduceOp::kMax, dtype) = Loops::template reduce<Max, T>;
  }
  template <class T>
  constexpr void set_float(Dtype dtype) {
    set_arithmetic<T>(dtype);
    set_scaling(dtype, scale_floats<T>, divide_floats<T>);
  }
  template <class T>
  constexpr void set_integer(Dtype dtype) {
    set_arithmetic<T>(dtype);
    reduce(ReduceOp::kBand, dtype) = Loops::template reduce<BitAnd, T>;
    reduce(ReduceOp::kBor, dtype) = Loops::template reduce<BitOr, T>;
    reduce(ReduceOp::kBxor, dtype) = Loops::template reduce<BitXor, T>;
    set_scaling(dtype, scale_integers<T>, divide_integers<T>);
  }
  template <class Halves>
  constexpr void set_half(Dtype dtype) {
    set_additions(dtype, Loops::template reduce_halves<Sum, Halves>);
    reduce(ReduceOp::kProduct, dtype) = Loops::template reduce_halves<Product, Halves>;
    reduce(ReduceOp::kMin, dtype) = Loops::template reduce_halves<Min, Halves>;
    reduce(ReduceOp::kMax, dtype) = Loops::template reduce_halves<Max, Halves>;
    set_scaling(dtype, scale_halves<Halves>, divide_halves<Halves>);
  }
  template <class T>
  constexpr void set_complex(Dtype dtype) {
    set_additions(dtype, reduce_complex<Loops, Sum, T>);
    reduce(ReduceOp::kProduct, dtype) = Loops::template multiply_complex<T>;
    set_scaling(dtype, scale_complex<T>, divide_complex<T>);
  }
  template <class Halves>
  constexpr void set_complex_halves(Dtype dtype) {
    set_additions(dtype, reduce_complex_halves<Loops, Halves>);
    set_scaling(dtype, scale_complex_halves<Halves>, divide_complex_halves<Halves>);
  }
  constexpr void set_bool() {  // as torch: + is "or", * is "and"
    constexpr ReduceFn kAnd = Loops::template reduce<Logical<BitAnd>, std::uint8_t>;
    constexpr ReduceFn kOr = Loops::template reduce<Logical<BitOr>, std::uint8_t>;
    reduce(ReduceOp::kSum, Dtype::kBool) = kOr;
    reduce(ReduceOp::kMax, Dtype::kBool) = kOr;
    reduce(ReduceOp::kBor, Dtype::kBool) = kOr;
    reduce(ReduceOp::kProduct, Dtype::kBool) = kAnd;
    reduce(ReduceOp::kMin, Dtype::kBool) = kAnd;
    reduce(ReduceOp::kBand, Dtype::kBool) = kAnd;
    reduce(ReduceOp::kBxor, Dtype::kBool) = Loops::template reduce<Logical<BitXor>, std::uint8_t>;
  }
};

template <class Halves>
void halves_from_floats(std::uint16_t* out, const float* in, std::size_t count) {
  const FpMode mode;
  Halves::from_floats(out, in, count);
}
template <class Halves>
void floats_from_halves(float* out, const std::uint16_t* in, std::size_t count) {
  const FpMode mode;
  Halves::to_floats(out, in, count);
}

template <class Loops>
constexpr Variant make_variant(const char* name) {
  using F16 = typename Loops::F16;
  using Bf16 = typename Loops::Bf16;
  Table<Loops> table;
  table.variant.name = name;
  table.template set_float<float>(Dtype::kF32);
  table.template set_float<double>(Dtype::kF64);
  table.template set_half<F16>(Dtype::kF16);
  table.template set_half<Bf16>(Dtype::kBF16);
  table.template set_integer<std::int8_t>(Dtype::kI8);
  table.template set_integer<std::uint8_t>(Dtype::kU8);
  table.template set_integer<std::int16_t>(Dtype::kI16);
  table.template set_integer<std::int32_t>(Dtype::kI32);
  table.template set_integer<std::int64_t>(Dtype::kI64);
  table.set_bool();
  table.template set_complex<float>(Dtype::kC64);
  table.template set_complex<double>(Dtype::kC128);
  table.template set_complex_halves<F16>(Dtype::kC32);
  table.variant.f32_to_f16 = halves_from_floats<F16>;
  table.variant.f16_to_f32 = floats_from_halves<F16>;
  table.variant.f32_to_bf16 = halves_from_floats<Bf16>;
  table.variant.bf16_to_f32 = floats_from_halves<Bf16>;
  table.variant.accumulate_f16 = Loops::template accumulate<F16>;
  table.variant.accumulate_bf16 = Loops::template accumulate<Bf16>;
  using Select = SelectLoops<typename Loops::Lanes>;
  table.variant.collect = Select::collect;
  table.variant.count_above = Select::count_above;
  table.variant.keep_above = Select::keep_above;
  table.variant.add_momentum = Select::add_momentum;
  using Scaled = ScaledLoops<F16, typename Loops::Floats>;
  table.variant.largest_finite = largest_finite_of;
  table.variant.f32_to_f16_scaled = Scaled::encode;
  table.variant.f16_to_f32_scaled = Scaled::decode;
  table.variant.accumulate_f16_scaled = Scaled::accumulate;
  return table.variant;
}

}  // namespace
}  // namespace taco::kernels
