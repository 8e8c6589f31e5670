#include <cmath>
#include <random>

#include "cuda/device_check.h"
#include "kernels/cuda/taco_cuda.h"
#include "kernels/half.h"
#include "kernels/samples.h"

namespace taco::kernels::cuda::check {
namespace {

using kernels::testing::Bytes;
using kernels::testing::Random;
using Raw = std::vector<unsigned char>;

Raw filled(std::size_t count, Dtype dtype, Random& random) {
  Bytes bytes(count * size_of(dtype), 0);
  kernels::testing::fill(bytes, dtype, random);
  return Raw(bytes.data(), bytes.data() + bytes.size());
}
template <class T>
std::vector<T> filled_as(std::size_t count, Dtype dtype, Random& random) {
  const Raw raw = filled(count, dtype, random);
  std::vector<T> values(count);
  if (count > 0) std::memcpy(values.data(), raw.data(), raw.size());
  return values;
}

std::vector<std::size_t> counts(bool small) {
  std::vector<std::size_t> all = {0, 1, 3, 15, 17, 1000, 4097, 9001};
  if (!small) all.insert(all.end(), {70001, (1 << 20) + 5});
  return all;
}
constexpr Dtype kDtypesHere[] = {Dtype::kF32, Dtype::kF64, Dtype::kF16, Dtype::kBF16,
                                 Dtype::kI8,  Dtype::kU8,  Dtype::kI32, Dtype::kI64};
constexpr ReduceOp kOpsHere[] = {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin,
                                 ReduceOp::kMax};
struct Shifts {
  std::size_t out, a, b;
};
constexpr Shifts kShifts[] = {{0, 0, 0}, {1, 1, 1}, {0, 1, 2}, {3, 3, 0}};

std::string case_of(const char* what, Dtype dtype, std::size_t count, std::size_t shift) {
  return std::string(what) + " of " + std::to_string(count) + " " + name_of(dtype) + ", shift " +
         std::to_string(shift);
}

bool check_reduce(bool small) {
  Cases cases("reduce");
  Random random(1);
  for (const Dtype dtype : kDtypesHere) {
    const std::size_t size = size_of(dtype);
    for (const std::size_t count : counts(small)) {
      const Raw a = filled(count, dtype, random), b = filled(count, dtype, random);
      Raw expected(count * size);
      for (std::size_t s = 0; s < 4; ++s) {
        DeviceArray<unsigned char> left(a, kShifts[s].a * size), right(b, kShifts[s].b * size);
        DeviceArray<unsigned char> out(count * size, kShifts[s].out * size);
        for (const ReduceOp op : kOpsHere) {
          reduce_function(op, dtype)(expected.data(), a.data(), b.data(), count);
          must(taco_cuda_reduce(nullptr, op, dtype, out.data(), left.data(), right.data(), count),
               "reduce");
          const Raw got = out.get();
          cases.expect(got == expected && out.guards_intact(),
                       case_of(name_of(op), dtype, count, s) +
                           difference(expected.data(), got.data(), count, size));
        }
        must(taco_cuda_reduce(nullptr, ReduceOp::kMax, dtype, left.data(), left.data(),
                              right.data(), count),
             "reduce");
        cases.expect(left.get() == expected && left.guards_intact(),
                     case_of("MAX in place", dtype, count, s));
      }
    }
  }
  return cases.end();
}

bool check_scale(bool small) {
  Cases cases("scale and divide");
  Random random(2);
  constexpr std::int64_t kDivisors[] = {2, 3, 7, 64, -1, -3, std::int64_t{1} << 33};
  constexpr double kFactors[] = {3, -2, 1.0 / 3, 0.5, 0.7, -0.3, 1e30};
  for (const Dtype dtype : kDtypesHere) {
    const std::size_t size = size_of(dtype);
    for (const std::size_t count : counts(small)) {
      const Raw in = filled(count, dtype, random);
      DeviceArray<unsigned char> source(in), out(count * size);
      Raw expected(count * size);
      Raw got;
      for (std::size_t i = 0; i < 7; ++i) {
        divide(dtype, expected.data(), in.data(), count, kDivisors[i]);
        must(taco_cuda_divide(nullptr, dtype, out.data(), source.data(), count, kDivisors[i]),
             "divide");
        got = out.get();
        cases.expect(got == expected, case_of("divide", dtype, count, i) +
                                          difference(expected.data(), got.data(), count, size));
        scale(dtype, expected.data(), in.data(), count, kFactors[i]);
        must(taco_cuda_scale(nullptr, dtype, out.data(), source.data(), count, kFactors[i]),
             "scale");
        got = out.get();
        cases.expect(got == expected, case_of("scale", dtype, count, i) +
                                          difference(expected.data(), got.data(), count, size));
      }
    }
  }
  return cases.end();
}

template <class Out, class In>
using HostConversion = void (*)(Out*, const In*, std::size_t);
template <class Out, class In>
using GpuConversion = const char* (*)(void*, Out*, const In*, std::size_t);

template <class Out, class In>
void compare_conversion(Cases& cases, const char* name, const std::vector<In>& in,
                        HostConversion<Out, In> host, GpuConversion<Out, In> gpu) {
  std::vector<Out> expected(in.size());
  host(expected.data(), in.data(), in.size());
  for (const std::size_t shift : {0, 1}) {
    DeviceArray<In> source(in, 4 * shift);
    DeviceArray<Out> out(in.size(), shift);
    must(gpu(nullptr, out.data(), source.data(), in.size()), name);
    const std::vector<Out> got = out.get();
    const std::string differs = difference(expected.data(), got.data(), in.size(), sizeof(Out));
    cases.expect(differs.empty() && out.guards_intact(),
                 std::string(name) + " of " + std::to_string(in.size()) + differs);
  }
}

// Every float16 and bfloat16, and one float32 of each 64 that follow each other.
bool check_convert(bool small) {
  Cases cases("convert");
  std::vector<std::uint16_t> halves(65536);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  std::vector<float> floats(small ? 1 << 12 : 1 << 26);
  const std::uint64_t step = (std::uint64_t{1} << 32) / floats.size();
  for (std::uint64_t i = 0; i < floats.size(); ++i) {
    const auto bits = static_cast<std::uint32_t>(i * step + i * 2654435761u % step);
    std::memcpy(&floats[i], &bits, 4);
  }
  compare_conversion(cases, "f32_to_f16", floats, f32_to_f16, taco_cuda_f32_to_f16);
  compare_conversion(cases, "f32_to_bf16", floats, f32_to_bf16, taco_cuda_f32_to_bf16);
  compare_conversion(cases, "f16_to_f32", halves, f16_to_f32, taco_cuda_f16_to_f32);
  compare_conversion(cases, "bf16_to_f32", halves, bf16_to_f32, taco_cuda_bf16_to_f32);
  Random random(3);
  for (const std::size_t count : counts(small)) {
    for (const Dtype dtype : {Dtype::kF16, Dtype::kBF16}) {
      const auto in = filled_as<std::uint16_t>(count, dtype, random);
      std::vector<float> sum = filled_as<float>(count, Dtype::kF32, random);
      DeviceArray<std::uint16_t> source(in);
      DeviceArray<float> target(sum);
      const bool f16 = dtype == Dtype::kF16;
      (f16 ? accumulate_f16_into_f32 : accumulate_bf16_into_f32)(sum.data(), in.data(), count);
      must((f16 ? taco_cuda_accumulate_f16 : taco_cuda_accumulate_bf16)(nullptr, target.data(),
                                                                        source.data(), count),
           "accumulate");
      const std::vector<float> got = target.get();
      const std::string differs = difference(sum.data(), got.data(), count, 4);
      cases.expect(differs.empty(), case_of("accumulate", dtype, count, 0) + differs);
    }
  }
  return cases.end();
}

struct Model {
  std::vector<float> parameter, gradient, first, second;
  std::vector<std::uint16_t> bf16, bf16_gradient;
};

Model any_model(std::size_t count, Random& random) {
  Model model;
  for (auto* array : {&model.parameter, &model.gradient, &model.first, &model.second}) {
    *array = filled_as<float>(count, Dtype::kF32, random);
  }
  model.bf16 = filled_as<std::uint16_t>(count, Dtype::kBF16, random);
  model.bf16_gradient = filled_as<std::uint16_t>(count, Dtype::kBF16, random);
  for (std::size_t i = 0; i < count; i += 2) model.bf16[i] = float_to_bf16(model.parameter[i]);
  return model;
}
// As in training, where moments fade: `least` is the power of ten of the smallest.
Model trained_model(std::size_t count, int least, Random& random) {
  Model model = any_model(count, random);
  std::normal_distribution<float> normal;
  for (std::size_t i = 0; i < count; ++i) {
    const float size = std::pow(10.0f, -static_cast<float>(random() % least));
    model.parameter[i] = normal(random);
    model.gradient[i] = size * normal(random);
    model.first[i] = size * normal(random);
    model.second[i] = size * size * std::fabs(normal(random));
    model.bf16[i] = float_to_bf16(model.parameter[i]);
    model.bf16_gradient[i] = float_to_bf16(model.gradient[i]);
  }
  return model;
}

template <class T>
std::string differs_in(const char* what, DeviceArray<T>& device, const std::vector<T>& host) {
  const std::vector<T> got = device.get();
  const std::string text = difference(host.data(), got.data(), host.size(), sizeof(T));
  return text.empty() ? text : std::string("; ") + what + text;
}

void compare_steps(Cases& cases, const char* name, Model host, int form, std::size_t shift,
                   int steps, const AdamOptions& options) {
  DeviceArray<float> parameter(host.parameter, shift), gradient(host.gradient, shift);
  DeviceArray<float> first(host.first, shift), second(host.second, shift);
  DeviceArray<std::uint16_t> bf16(host.bf16, shift), bf16_gradient(host.bf16_gradient, shift);
  const std::size_t count = host.parameter.size();
  ParameterRange on_host{.count = count, .parameter = host.parameter.data()};
  ParameterRange on_gpu{.count = count, .parameter = parameter.data()};
  if (form % 2 == 1) {
    on_host.bf16_parameter = host.bf16.data();
    on_gpu.bf16_parameter = bf16.data();
  }
  if (form / 2 == 1) {
    on_host.bf16_gradient = host.bf16_gradient.data();
    on_gpu.bf16_gradient = bf16_gradient.data();
  } else {
    on_host.gradient = host.gradient.data();
    on_gpu.gradient = gradient.data();
  }
  for (int t = 1; t <= steps; ++t) {
    const AdamStep step = adam_step(options, t, 0.5);
    adam(step, on_host, host.first.data(), host.second.data());
    must(taco_cuda_adam(nullptr, &step, &on_gpu, first.data(), second.data()), "adam");
  }
  const std::string differs = differs_in("parameters", parameter, host.parameter) +
                              differs_in("first moments", first, host.first) +
                              differs_in("second moments", second, host.second) +
                              differs_in("bfloat16", bf16, host.bf16);
  cases.expect(differs.empty() && parameter.guards_intact() && second.guards_intact(),
               std::string(name) + " of " + std::to_string(count) + ", form " +
                   std::to_string(form) + ", " + std::to_string(steps) + " steps" + differs);
}

}  // namespace

bool check_elementwise(bool small) {
  bool good = check_reduce(small);
  good &= check_scale(small);
  good &= check_convert(small);
  return good;
}

bool check_adam(bool small) {
  Cases cases("adam");
  Random random(4);
  const AdamOptions options[] = {{.weight_decay = 0.1},
                                 {.beta1 = 0.3, .weight_decay = 0.1, .decoupled = false}};
  for (const AdamOptions& of : options) {
    for (const std::size_t count : counts(small)) {
      for (int form = 0; form < 4; ++form) {
        const std::size_t shift = form == 3 ? 1 : 0;
        compare_steps(cases, "any numbers", any_model(count, random), form, shift, 1, of);
        if (small) continue;
        compare_steps(cases, "training", trained_model(count, 6, random), form, shift, 10, of);
        // The second moments are denormal, or become it.
        compare_steps(cases, "fading", trained_model(count, 24, random), form, 0, 10, of);
      }
    }
  }
  return cases.end();
}

}  // namespace taco::kernels::cuda::check
