// The meaning of each reduction on a pair of values, written once for scalars and for vectors (of
// the compiler's vector extension), so that an instruction set differs in width alone.
//
// Every operation commutes bit for bit: a NaN result is always the one canonical NaN, and MIN and
// MAX order -0 before +0. Hence ranks that add the same numbers in mirrored order agree.
//
// Included by files that are compiled for different instruction sets: everything is internal.
#pragma once

#include <cstdint>
#include <type_traits>

namespace taco::kernels {
namespace {

template <class T>
struct UnsignedOf {
  using type = std::make_unsigned_t<T>;
};
template <>
struct UnsignedOf<float> {
  using type = std::uint32_t;
};
template <>
struct UnsignedOf<double> {
  using type = std::uint64_t;
};

// One value at a time.
template <class T>
struct Scalar {
  using Element = T;
  using Values = T;
  using Bits = typename UnsignedOf<T>::type;
  static constexpr T splat(T value) { return value; }
};

// kBytes / sizeof(T) values at a time.
template <class T, int kBytes>
struct Vector {
  using Element = T;
  typedef T Values __attribute__((vector_size(kBytes)));
  typedef typename UnsignedOf<T>::type Bits __attribute__((vector_size(kBytes)));
  static constexpr Values splat(T value) { return value - Values{}; }
};

template <class P>
using ValuesOf = typename P::Values;

template <class P>
constexpr ValuesOf<P> nan_of() {
  using T = typename P::Element;
  return P::splat(sizeof(T) == 4 ? T(__builtin_nanf("")) : T(__builtin_nan("")));
}
template <class P>
constexpr ValuesOf<P> canonical_nan(ValuesOf<P> value) {
  return value == value ? value : nan_of<P>();
}

// Integer arithmetic wraps, and only unsigned arithmetic may.
template <class P>
constexpr ValuesOf<P> wrapping_add(ValuesOf<P> a, ValuesOf<P> b) {
  using Bits = typename P::Bits;
  if constexpr (std::is_integral_v<ValuesOf<P>>) {
    return static_cast<ValuesOf<P>>(static_cast<Bits>(1u * Bits(a) + Bits(b)));
  } else {
    return (ValuesOf<P>)((Bits)a + (Bits)b);
  }
}
template <class P>
constexpr ValuesOf<P> wrapping_multiply(ValuesOf<P> a, ValuesOf<P> b) {
  using Bits = typename P::Bits;
  if constexpr (std::is_integral_v<ValuesOf<P>>) {  // 1u: two uint16 would multiply as int
    return static_cast<ValuesOf<P>>(static_cast<Bits>(1u * Bits(a) * Bits(b)));
  } else {
    return (ValuesOf<P>)((Bits)a * (Bits)b);
  }
}

// For two floats, raw() is the result before its NaN is made the canonical one, and kChooses says
// that it is always one of the two (or the canonical NaN), so that there is nothing to round.
struct Sum {
  static constexpr bool kChooses = false;
  template <class P>
  static constexpr ValuesOf<P> raw(ValuesOf<P> a, ValuesOf<P> b) {
    return a + b;
  }
  template <class P>
  static constexpr ValuesOf<P> apply(ValuesOf<P> a, ValuesOf<P> b) {
    if constexpr (std::is_floating_point_v<typename P::Element>) {
      return canonical_nan<P>(raw<P>(a, b));
    } else {
      return wrapping_add<P>(a, b);
    }
  }
};

struct Product {
  static constexpr bool kChooses = false;
  template <class P>
  static constexpr ValuesOf<P> raw(ValuesOf<P> a, ValuesOf<P> b) {
    return a * b;
  }
  template <class P>
  static constexpr ValuesOf<P> apply(ValuesOf<P> a, ValuesOf<P> b) {
    if constexpr (std::is_floating_point_v<typename P::Element>) {
      return canonical_nan<P>(raw<P>(a, b));
    } else {
      return wrapping_multiply<P>(a, b);
    }
  }
};

// Taken in both orders, the lesser (or greater) of two floats is the same number, except that zeros
// of unlike sign stay apart (OR of the bits gives -0, AND gives +0) and that a NaN makes the two
// unequal: the comparison gives its second operand then.
struct Min {
  static constexpr bool kChooses = true;
  template <class P>
  static constexpr ValuesOf<P> raw(ValuesOf<P> a, ValuesOf<P> b) {
    return apply<P>(a, b);
  }
  template <class P>
  static constexpr ValuesOf<P> apply(ValuesOf<P> a, ValuesOf<P> b) {
    const ValuesOf<P> least = a < b ? a : b;
    if constexpr (std::is_floating_point_v<typename P::Element>) {
      using Bits = typename P::Bits;
      const ValuesOf<P> mirrored = b < a ? b : a;
      const auto both = __builtin_bit_cast(
          ValuesOf<P>, __builtin_bit_cast(Bits, least) | __builtin_bit_cast(Bits, mirrored));
      return least == mirrored ? both : nan_of<P>();
    } else {
      return least;
    }
  }
};

struct Max {
  static constexpr bool kChooses = true;
  template <class P>
  static constexpr ValuesOf<P> raw(ValuesOf<P> a, ValuesOf<P> b) {
    return apply<P>(a, b);
  }
  template <class P>
  static constexpr ValuesOf<P> apply(ValuesOf<P> a, ValuesOf<P> b) {
    const ValuesOf<P> most = a > b ? a : b;
    if constexpr (std::is_floating_point_v<typename P::Element>) {
      using Bits = typename P::Bits;
      const ValuesOf<P> mirrored = b > a ? b : a;
      const auto both = __builtin_bit_cast(
          ValuesOf<P>, __builtin_bit_cast(Bits, most) & __builtin_bit_cast(Bits, mirrored));
      return most == mirrored ? both : nan_of<P>();
    } else {
      return most;
    }
  }
};

struct BitAnd {
  template <class P>
  static constexpr ValuesOf<P> apply(ValuesOf<P> a, ValuesOf<P> b) {
    return static_cast<ValuesOf<P>>(a & b);
  }
};
struct BitOr {
  template <class P>
  static constexpr ValuesOf<P> apply(ValuesOf<P> a, ValuesOf<P> b) {
    return static_cast<ValuesOf<P>>(a | b);
  }
};
struct BitXor {
  template <class P>
  static constexpr ValuesOf<P> apply(ValuesOf<P> a, ValuesOf<P> b) {
    return static_cast<ValuesOf<P>>(a ^ b);
  }
};

// A bool is a byte that is zero or not: torch shows bytes of other tensors as bool too. Results
// are always 0 or 1.
template <class P>
constexpr ValuesOf<P> truth(ValuesOf<P> byte) {
  const ValuesOf<P> one = P::splat(1);
  return byte < one ? byte : one;
}
template <class BitOperation>
struct Logical {
  template <class P>
  static constexpr ValuesOf<P> apply(ValuesOf<P> a, ValuesOf<P> b) {
    return BitOperation::template apply<P>(truth<P>(a), truth<P>(b));
  }
};

// How integers are scaled: a whole factor multiplies (and wraps) and 1/n divides, both exactly; any
// other goes through double and truncates.
struct IntegerScale {
  enum class By : std::uint8_t { kProduct, kQuotient, kDouble };
  By by = By::kDouble;
  std::int64_t whole = 0;  // the factor, or n
};

constexpr IntegerScale integer_scale(double factor) {
  constexpr double kExact = 9007199254740992.0;  // 2^53
  if (!(factor > -kExact && factor < kExact)) return {};
  const auto whole = static_cast<std::int64_t>(factor);
  if (static_cast<double>(whole) == factor) return {IntegerScale::By::kProduct, whole};
  const double inverse = 1.0 / factor;
  if (!(inverse > -kExact && inverse < kExact)) return {};
  const auto n = static_cast<std::int64_t>(inverse + (inverse < 0 ? -0.5 : 0.5));
  if (n == 0 || 1.0 / static_cast<double>(n) != factor) return {};
  return {IntegerScale::By::kQuotient, n};
}

}  // namespace
}  // namespace taco::kernels
