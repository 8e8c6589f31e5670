// The loops of an instruction set, over the compiler's vector extension. `Isa` says how wide
// (kBytes) and how to convert a vector of float16 (F16) and bfloat16 (Bf16):
//   Isa::F16::decode(halves) -> floats, encode(floats) -> halves
// with kBytes of floats and half as many bytes of halves; and which lanes selection uses
// (Isa::Lanes, kernels/select_loops.h).
//
// The elements left after the last whole vector go through a padded copy of one vector, so every
// element takes the same path whatever the length.
//
// Included by files that are compiled for different instruction sets: everything is internal.
#pragma once

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/elementwise.h"
#include "kernels/vector_memory.h"

namespace taco::kernels {
namespace {

// bfloat16 is the upper half of a float: shifts and one addition on any instruction set.
template <int kBytes>
struct VectorBf16 {
  using Floats = FloatsOf<kBytes>;
  using Halves = HalvesOf<kBytes>;
  using Words = typename Vector<std::uint32_t, kBytes>::Values;
  using Shorts = typename Vector<std::uint16_t, kBytes>::Values;

  static Floats decode(Halves halves) { return (Floats)(widen(halves) << 16); }
  static Halves encode(Floats floats) {
    return encode_canonical(canonical_nan<Vector<float, kBytes>>(floats));
  }
  // For floats whose NaN are the canonical one, which has nothing to round.
  static Halves encode_canonical(Floats floats) { return narrow(with_rounding(floats) >> 16); }
  // decode(encode(floats)), without moving a lane.
  static Floats round(Floats floats) {
    return (Floats)(with_rounding(canonical_nan<Vector<float, kBytes>>(floats)) & 0xFFFF'0000);
  }

  // Two numbers in each word are reduced where they stand: the upper is a float with a tail to be
  // cut off, the lower becomes one by a shift. No lane changes its place, and what follows the
  // arithmetic is done for both at once: half the instructions of rounding each.
  template <class Operation>
  static Words reduce_pairs(Words a, Words b) {
    using P = Vector<float, kBytes>;
    constexpr std::uint32_t kUpper = 0xFFFF'0000;
    constexpr std::uint16_t kOne = 1, kHalf = 0x8000, kInfinityTwice = 0xFF00;
    const auto upper =
        (Words)Operation::template raw<P>((Floats)(a & kUpper), (Floats)(b & kUpper));
    const auto lower = (Words)Operation::template raw<P>((Floats)(a << 16), (Floats)(b << 16));
    const auto kept = (Shorts)((upper & kUpper) | (lower >> 16));
    if constexpr (Operation::kChooses) return (Words)kept;
    const auto cut = (Shorts)((upper << 16) | (lower & ~kUpper));
    // A true comparison is -1. Of two equally near, the even: an odd one goes up from the half on.
    const Shorts nearest = kept - (Shorts)(cut > kHalf - (kept & kOne));
    // A NaN that arithmetic gives is quiet, and that bit is among those kept.
    const Shorts nan = Vector<std::uint16_t, kBytes>::splat(0x7FC0);
    return (Words)(kept + kept > kInfinityTwice ? nan : nearest);
  }

 private:
  // Its upper half is the rounded number.
  static Words with_rounding(Floats floats) {
    const auto bits = (Words)floats;
    return bits + 0x7FFF + ((bits >> 16) & 1);
  }
  // Compilers take 256 bits in two halves, which is three instructions more each way.
  static Words widen(Halves halves) {
#if defined(__AVX2__)
    if constexpr (kBytes == 32) return (Words)_mm256_cvtepu16_epi32((__m128i)halves);
#endif
    return __builtin_convertvector(halves, Words);
  }
  static Halves narrow(Words words) {  // all below 0x10000
#if defined(__AVX2__)
    if constexpr (kBytes == 32) {
      const auto lower = _mm256_castsi256_si128((__m256i)words);
      return (Halves)_mm_packus_epi32(lower, _mm256_extracti128_si256((__m256i)words, 1));
    }
#endif
    return __builtin_convertvector(words, Halves);
  }
};

template <class Format, int kBytes>
struct VectorHalves {
  using Floats = FloatsOf<kBytes>;
  using Halves = HalvesOf<kBytes>;
  static Floats decode(Halves halves) { return Format::decode(halves); }
  static Halves encode(Floats floats) { return Format::encode(floats); }

  static void to_floats(void* out, const void* in, std::size_t count) {
    auto* to = static_cast<float*>(out);
    const auto* from = static_cast<const std::uint16_t*>(in);
    each_pack<Floats>(
        count,
        [to, from](std::size_t i) {
          prefetch<kCacheLine>(from + i);
          prefetch_to_write<2 * kCacheLine>(to + i);
        },
        [to, from](std::size_t i, auto load, auto store) {
          store(to + i, decode(load(from + i, Halves{})));
        });
  }
  static void from_floats(void* out, const void* in, std::size_t count) {
    auto* to = static_cast<std::uint16_t*>(out);
    const auto* from = static_cast<const float*>(in);
    each_pack<Floats>(
        count,
        [to, from](std::size_t i) {
          prefetch_far<2 * kCacheLine>(from + i);
          prefetch_to_write<kCacheLine>(to + i);
        },
        [to, from](std::size_t i, auto load, auto store) {
          store(to + i, encode(load(from + i, Floats{})));
        });
  }
};

// Real and imaginary parts alternate: (a + bi)(c + di) = (ac - bd) + (ad + bc)i. Written out with
// shuffles because compilers turn the plain loop into fused operations, whose last bit differs.
template <class P, int... kLane>
inline ValuesOf<P> complex_product(ValuesOf<P> a, ValuesOf<P> b,
                                   std::integer_sequence<int, kLane...>) {
  using T = typename P::Element;
  using Bits = typename P::Bits;
  const auto a_real = __builtin_shufflevector(a, a, (kLane & ~1)...);
  const auto a_imag = __builtin_shufflevector(a, a, (kLane | 1)...);
  const auto b_swapped = __builtin_shufflevector(b, b, (kLane ^ 1)...);
  using Bit = typename UnsignedOf<T>::type;
  constexpr Bit kSign = Bit{1} << (8 * sizeof(T) - 1);
  const Bits negated = {(kLane % 2 == 0 ? kSign : Bit{0})...};
  const auto crossed = (ValuesOf<P>)((Bits)(a_imag * b_swapped) ^ negated);
  return canonical_nan<P>(a_real * b + crossed);
}

template <class Isa>
struct VectorLoops {
  static constexpr int kBytes = Isa::kBytes;
  using Floats = Vector<float, kBytes>;
  using Lanes = typename Isa::Lanes;
  using F16 = VectorHalves<typename Isa::F16, kBytes>;
  using Bf16 = VectorHalves<VectorBf16<kBytes>, kBytes>;

  // out = function(a, b), a vector at a time.
  template <class V, class Function>
  static void map(void* out, const void* a, const void* b, std::size_t bytes, Function function) {
    const FpMode mode;
    auto* to = static_cast<Byte*>(out);
    const auto* left = static_cast<const Byte*>(a);
    const auto* right = static_cast<const Byte*>(b);
    std::size_t at = 0;
    // Both vectors are read before either is written: `out` may be an input.
    for (; at + 2 * sizeof(V) <= bytes; at += 2 * sizeof(V)) {
      prefetch<2 * sizeof(V)>(left + at);
      prefetch<2 * sizeof(V)>(right + at);
      const V first = function(load_vector<V>(left + at), load_vector<V>(right + at));
      const V second =
          function(load_vector<V>(left + at + sizeof(V)), load_vector<V>(right + at + sizeof(V)));
      store_vector(to + at, first);
      store_vector(to + at + sizeof(V), second);
    }
    for (; at + sizeof(V) <= bytes; at += sizeof(V)) {
      store_vector(to + at, function(load_vector<V>(left + at), load_vector<V>(right + at)));
    }
    if (const std::size_t rest = bytes - at; rest > 0) {
      const V result = function(load_part<V>(left + at, rest), load_part<V>(right + at, rest));
      store_part(to + at, result, rest);
    }
  }

  template <class Operation, class T>
  static void reduce(void* out, const void* a, const void* b, std::size_t count) {
    using P = Vector<T, kBytes>;
    using V = typename P::Values;
    map<V>(out, a, b, count * sizeof(T),
           [](V left, V right) { return Operation::template apply<P>(left, right); });
  }

  template <class T>
  static void multiply_complex(void* out, const void* a, const void* b, std::size_t count) {
    using P = Vector<T, kBytes>;
    using V = typename P::Values;
    map<V>(out, a, b, 2 * count * sizeof(T), [](V left, V right) {
      return complex_product<P>(left, right, std::make_integer_sequence<int, kBytes / sizeof(T)>());
    });
  }

  template <class Operation, class Halves>
  static void reduce_halves(void* out, const void* a, const void* b, std::size_t count) {
    if constexpr (std::is_same_v<Halves, Bf16>) {
      using V = typename VectorBf16<kBytes>::Words;
      map<V>(out, a, b, count * 2, [](V left, V right) {
        return VectorBf16<kBytes>::template reduce_pairs<Operation>(left, right);
      });
    } else {
      using P = Vector<float, kBytes>;
      using V = typename Halves::Halves;
      map<V>(out, a, b, count * 2, [](V left, V right) {
        return Halves::encode(
            Operation::template apply<P>(Halves::decode(left), Halves::decode(right)));
      });
    }
  }

  template <class Halves>
  static void accumulate(float* acc, const std::uint16_t* in, std::size_t count) {
    using P = Vector<float, kBytes>;
    using Packed = typename Halves::Halves;
    const FpMode mode;
    each_pack<typename P::Values>(
        count,
        [acc, in](std::size_t i) {
          prefetch<2 * kCacheLine>(acc + i);
          prefetch<kCacheLine>(in + i);
        },
        [acc, in](std::size_t i, auto load, auto store) {
          const auto addend = Halves::decode(load(in + i, Packed{}));
          store(acc + i, Sum::apply<P>(load(acc + i, typename P::Values{}), addend));
        });
  }
};

}  // namespace
}  // namespace taco::kernels
