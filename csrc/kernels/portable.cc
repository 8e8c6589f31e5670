// The portable variant: one element at a time, in plain C++. It is the definition that every other
// variant is tested against, and what runs where no other does.
#include "kernels/half.h"
#include "kernels/variant_table.h"

namespace taco::kernels {
namespace {

template <float (*kDecode)(std::uint16_t), std::uint16_t (*kEncode)(float)>
struct ScalarHalves {
  using Halves = std::uint16_t;
  static float decode(std::uint16_t half) { return kDecode(half); }
  static std::uint16_t encode(float value) { return kEncode(value); }
  static void to_floats(float* out, const void* in, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      store<float>(out, i, kDecode(load<std::uint16_t>(in, i)));
    }
  }
  static void from_floats(void* out, const float* in, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      store<std::uint16_t>(out, i, kEncode(load<float>(in, i)));
    }
  }
};

struct PortableLoops {
  using Floats = Scalar<float>;
  using Lanes = ScalarLanes;
  using F16 = ScalarHalves<f16_to_float, float_to_f16>;
  using Bf16 = ScalarHalves<bf16_to_float, float_to_bf16>;

  template <class Operation, class T>
  static void reduce(void* out, const void* a, const void* b, std::size_t count) {
    const FpMode mode;
    TACO_INDEPENDENT
    for (std::size_t i = 0; i < count; ++i) {
      store<T>(out, i, Operation::template apply<Scalar<T>>(load<T>(a, i), load<T>(b, i)));
    }
  }

  template <class Operation, class Halves>
  static void reduce_halves(void* out, const void* a, const void* b, std::size_t count) {
    const FpMode mode;
    for (std::size_t i = 0; i < count; ++i) {
      const float left = Halves::decode(load<std::uint16_t>(a, i));
      const float right = Halves::decode(load<std::uint16_t>(b, i));
      const float result = Operation::template apply<Scalar<float>>(left, right);
      store<std::uint16_t>(out, i, Halves::encode(result));
    }
  }

  template <class T>
  static void multiply_complex(void* out, const void* a, const void* b, std::size_t count) {
    const FpMode mode;
    using P = Scalar<T>;
    TACO_INDEPENDENT
    for (std::size_t i = 0; i < count; ++i) {
      const T a_real = load<T>(a, 2 * i);
      const T a_imag = load<T>(a, 2 * i + 1);
      const T b_real = load<T>(b, 2 * i);
      const T b_imag = load<T>(b, 2 * i + 1);
      store<T>(out, 2 * i, canonical_nan<P>(a_real * b_real - a_imag * b_imag));
      store<T>(out, 2 * i + 1, canonical_nan<P>(a_real * b_imag + a_imag * b_real));
    }
  }

  template <class Halves>
  static void accumulate(float* acc, const std::uint16_t* in, std::size_t count) {
    const FpMode mode;
    for (std::size_t i = 0; i < count; ++i) {
      const float sum = load<float>(acc, i) + Halves::decode(load<std::uint16_t>(in, i));
      store<float>(acc, i, canonical_nan<Scalar<float>>(sum));
    }
  }
};

}  // namespace

constinit const Variant kPortableVariant = make_variant<PortableLoops>("portable");

}  // namespace taco::kernels
