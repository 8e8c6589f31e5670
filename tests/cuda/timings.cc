// Times of the kernels over arrays that no cache holds, beside what a copy of as many bytes takes:
// the bytes that a kernel must move are counted, not those that it does.
#include <random>

#include "cuda/device_check.h"
#include "kernels/cuda/checksum.h"
#include "kernels/cuda/taco_cuda.h"

namespace taco::kernels::cuda::check {
namespace {

constexpr std::size_t kArray = std::size_t{256} << 20;

class Timings {
 public:
  Timings() : from_(kArray * 5), to_(kArray * 5) {
    std::printf("%-34s %8s %8s %9s %9s %6s\n", "median of 15 calls", "MB", "us", "GB/s",
                "copy GB/s", "share");
  }
  template <class Call>
  void take(const char* name, double bytes, const Call& call) {
    const double ms = median_ms(call);
    const auto half = static_cast<std::size_t>(bytes / 2);
    const double copy_ms = median_ms([&] {
      must(cudaMemcpyAsync(to_.data(), from_.data(), half, cudaMemcpyDeviceToDevice), "copy");
    });
    std::printf("%-34s %8.1f %8.1f %9.0f %9.0f %5.0f%%\n", name, bytes / 1e6, 1e3 * ms,
                bytes / ms / 1e6, bytes / copy_ms / 1e6, 100 * copy_ms / ms);
  }

 private:
  DeviceArray<unsigned char> from_, to_;
};

template <class T>
std::vector<T> repeated(std::size_t count, const std::vector<T>& some) {
  std::vector<T> all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = some[i % some.size()];
  return all;
}
std::vector<float> normals(std::size_t count) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> some(1000003);
  for (float& value : some) value = normal(random);
  return repeated(count, some);
}

void time_reductions(Timings& timings) {
  DeviceArray<unsigned char> a(kArray, 16), b(kArray, 16), out(kArray, 16);
  must(cudaMemset(a.data(), 0x3C, kArray), "cudaMemset");
  must(cudaMemset(b.data(), 0x3B, kArray), "cudaMemset");
  const auto time = [&](ReduceOp op, Dtype dtype, std::size_t bytes, std::size_t shift) {
    const std::string name = std::string("reduce ") + name_of(op) + " " + name_of(dtype) +
                             (shift != 0 ? ", unaligned" : "");
    const std::size_t size = size_of(dtype), count = bytes / size - shift;
    timings.take(name.c_str(), 3.0 * bytes, [&] {
      must(taco_cuda_reduce(nullptr, op, dtype, out.data(), a.data() + shift * size, b.data(),
                            count),
           "reduce");
    });
  };
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF64, Dtype::kF16, Dtype::kBF16, Dtype::kI8,
                            Dtype::kI32, Dtype::kI64}) {
    time(ReduceOp::kSum, dtype, kArray, 0);
  }
  time(ReduceOp::kMax, Dtype::kF32, kArray, 0);
  time(ReduceOp::kMax, Dtype::kBF16, kArray, 0);
  time(ReduceOp::kProduct, Dtype::kF16, kArray, 0);
  time(ReduceOp::kSum, Dtype::kF32, std::size_t{16} << 20, 0);
  time(ReduceOp::kSum, Dtype::kF32, kArray, 1);
  time(ReduceOp::kSum, Dtype::kBF16, kArray, 1);
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16, Dtype::kI64}) {
    const std::string name = std::string("divide ") + name_of(dtype);
    timings.take(name.c_str(), 2.0 * kArray, [&] {
      must(taco_cuda_divide(nullptr, dtype, out.data(), a.data(), kArray / size_of(dtype), 3),
           "divide");
    });
  }
}

void time_conversions(Timings& timings) {
  constexpr std::size_t kCount = kArray / 4;
  DeviceArray<float> wide(normals(kCount));
  DeviceArray<std::uint16_t> narrow(kCount);
  const auto time = [&](const char* name, double bytes_of_one, const auto& call) {
    timings.take(name, bytes_of_one * kCount, [&] { must(call(), name); });
  };
  time("f32_to_f16", 6,
       [&] { return taco_cuda_f32_to_f16(nullptr, narrow.data(), wide.data(), kCount); });
  time("f16_to_f32", 6,
       [&] { return taco_cuda_f16_to_f32(nullptr, wide.data(), narrow.data(), kCount); });
  time("f32_to_bf16", 6,
       [&] { return taco_cuda_f32_to_bf16(nullptr, narrow.data(), wide.data(), kCount); });
  time("bf16_to_f32", 6,
       [&] { return taco_cuda_bf16_to_f32(nullptr, wide.data(), narrow.data(), kCount); });
  time("accumulate_bf16", 10,
       [&] { return taco_cuda_accumulate_bf16(nullptr, wide.data(), narrow.data(), kCount); });
}

void time_adam(Timings& timings) {
  constexpr std::size_t kCount = kArray / 4;
  const std::vector<float> values = normals(kCount);
  DeviceArray<float> parameter(values), gradient(values), first(values), second(kCount);
  DeviceArray<std::uint16_t> bf16(kCount), bf16_gradient(kCount);
  must(cudaMemset(second.data(), 0x3C, kArray), "cudaMemset");
  must(taco_cuda_f32_to_bf16(nullptr, bf16.data(), parameter.data(), kCount), "f32_to_bf16");
  must(taco_cuda_f32_to_bf16(nullptr, bf16_gradient.data(), gradient.data(), kCount), "to bf16");
  const AdamStep step = adam_step({.weight_decay = 0.1}, 10);
  const auto time = [&](const char* name, double bytes_of_one, const ParameterRange& range) {
    timings.take(name, bytes_of_one * kCount, [&] {
      must(taco_cuda_adam(nullptr, &step, &range, first.data(), second.data()), name);
    });
  };
  ParameterRange range{.count = kCount, .parameter = parameter.data()};
  range.gradient = gradient.data();
  time("adamw float32", 28, range);
  range.bf16_parameter = bf16.data();
  time("adamw bfloat16 parameters", 32, range);
  range.gradient = nullptr;
  range.bf16_gradient = bf16_gradient.data();
  time("adamw bfloat16 both", 30, range);
}

void time_select(Timings& timings, std::size_t count, std::uint32_t block, double ratio,
                 bool in_place, bool with_momentum) {
  const std::vector<float> values = normals(count);
  DeviceArray<float> residual(values), gradient(values), momentum(values);
  DeviceArray<float> new_residual(count), new_momentum(count);
  SelectArguments of{.count = count, .block = block};
  of.k = of.last_k = static_cast<std::uint32_t>(ratio * block);
  const std::size_t blocks = count / block, taken = blocks * of.k;
  DeviceArray<float> taken_values(taken);
  DeviceArray<std::uint32_t> indices(taken), finite(blocks);
  of.residual = residual.data();
  of.gradient = gradient.data();
  of.new_residual = in_place ? residual.data() : new_residual.data();
  if (with_momentum) {
    of.momentum = momentum.data();
    of.new_momentum = in_place ? momentum.data() : new_momentum.data();
  }
  of.values = taken_values.data();
  of.indices = indices.data();
  of.finite = finite.data();
  of.factor = 0.9f;
  DeviceArray<unsigned char> workspace(taco_cuda_select_workspace_bytes(&of));
  const std::string name = "select " + std::to_string(of.k) + " of " + std::to_string(block) +
                           (in_place ? " in place" : "") + (with_momentum ? " momentum" : "");
  timings.take(name.c_str(), (with_momentum ? 20.0 : 12.0) * count + 8.0 * taken,
               [&] { must(taco_cuda_select_largest(nullptr, &of, workspace.data()), "select"); });
  if (in_place || with_momentum || ratio != 0.01) return;
  const std::size_t stride = max_delta_bytes(of.k, block);
  DeviceArray<std::uint8_t> bytes(blocks * stride);
  DeviceArray<std::uint32_t> lengths(blocks), valid(blocks);
  const auto all = static_cast<std::uint32_t>(blocks);
  const DeltaArguments deltas{.blocks = all,
                              .block = block,
                              .last_block = block,
                              .k = of.k,
                              .last_k = of.k,
                              .stride = stride,
                              .bytes = bytes.data(),
                              .lengths = lengths.data(),
                              .indices = indices.data(),
                              .valid = valid.data()};
  timings.take("  encode_deltas of these", 5.08 * taken,
               [&] { must(taco_cuda_encode_deltas(nullptr, &deltas), "encode"); });
  timings.take("  decode_deltas of these", 5.08 * taken,
               [&] { must(taco_cuda_decode_deltas(nullptr, &deltas), "decode"); });
  timings.take("  scatter_add of these", 16.0 * taken, [&] {
    must(taco_cuda_scatter_add(nullptr, new_residual.data(), taken_values.data(), indices.data(),
                               taken, block, of.k),
         "scatter_add");
  });
}

void time_bytes(Timings& timings) {
  DeviceArray<unsigned char> apart(kArray), together(kArray);
  must(cudaMemset(apart.data(), 0x5C, kArray), "cudaMemset");
  DeviceArray<std::uint32_t> result(1), workspace(kMaxChecksumParts), refused(1);
  timings.take("crc32c", kArray, [&] {
    must(taco_cuda_crc32c(nullptr, 0, apart.data(), kArray, result.data(), workspace.data()),
         "crc32c");
  });
  for (const std::size_t page : {std::size_t{64} << 10, std::size_t{2} << 20}) {
    const auto count = static_cast<std::uint32_t>(kArray / page);
    std::vector<std::uint32_t> numbers(count);
    for (std::uint32_t i = 0; i < count; ++i) numbers[i] = (i * 37 + 5) % count;
    DeviceArray<std::uint32_t> pages(numbers);
    const std::string name = "gather pages of " + std::to_string(page >> 10) + " KiB";
    timings.take(name.c_str(), 2.0 * kArray, [&] {
      must(taco_cuda_gather_pages(nullptr, together.data(), apart.data(), pages.data(), count, page,
                                  count, refused.data()),
           "gather_pages");
    });
  }
}

}  // namespace

void take_times() {
  Timings timings;
  time_reductions(timings);
  time_conversions(timings);
  time_adam(timings);
  constexpr std::size_t kCount = kArray / 4;
  time_select(timings, kCount, 1 << 17, 0.01, false, false);
  time_select(timings, kCount, 1 << 17, 0.01, true, false);
  time_select(timings, kCount, 1 << 17, 0.01, false, true);
  time_select(timings, kCount, 1 << 17, 0.001, false, false);
  time_select(timings, kCount, 1 << 20, 0.01, false, false);
  time_select(timings, 192 << 17, 1 << 17, 0.01, false, false);
  time_bytes(timings);
}

}  // namespace taco::kernels::cuda::check
