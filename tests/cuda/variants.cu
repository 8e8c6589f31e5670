// Variants of the kernels: more or fewer packs at once, loads and stores that stay in the caches;
// and the share of each kernel of a selection in its whole time.
#include <random>

#include "cuda/device_check.h"
#include "kernels/cuda/adam.h"
#include "kernels/cuda/gpu_exec.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/select.h"

namespace taco::kernels::cuda::check {
namespace {

struct CachingExec : GpuExec {
  template <class T>
  __device__ __forceinline__ T load(const T* place) {
    return *place;
  }
  template <class T>
  __device__ __forceinline__ void store(T* place, const T& value) {
    *place = value;
  }
};
template <unsigned kAtOnce, class Launcher, class Body>
double gbs(const Launcher& launch, const Body& body, std::size_t count, double bytes_of_one) {
  const double ms = median_ms([&] {
    must(launch_elementwise<kAtOnce>(launch, body, count).ok() ? cudaSuccess : cudaErrorUnknown,
         "a variant");
  });
  return bytes_of_one * static_cast<double>(count) / ms / 1e6;
}

template <class Body>
void compare(const char* name, const Body& body, std::size_t count, double bytes_of_one) {
  const StreamLauncher streaming(nullptr);
  const LauncherOf<CachingExec> caching(nullptr);
  std::printf(
      "%-24s %7.0f %7.0f %7.0f %7.0f | %7.0f %7.0f %7.0f %7.0f\n", name,
      gbs<1>(streaming, body, count, bytes_of_one), gbs<2>(streaming, body, count, bytes_of_one),
      gbs<4>(streaming, body, count, bytes_of_one), gbs<8>(streaming, body, count, bytes_of_one),
      gbs<1>(caching, body, count, bytes_of_one), gbs<2>(caching, body, count, bytes_of_one),
      gbs<4>(caching, body, count, bytes_of_one), gbs<8>(caching, body, count, bytes_of_one));
}

// Takes the time of each kernel of what it is given to launch.
struct TimingLauncher {
  double* ms;
  int* launches;
  template <class Kernel>
  Status operator()(const Kernel& kernel, std::size_t blocks) const {
    const StreamLauncher launch(nullptr);
    ms[(*launches)++] = median_ms(
        [&] { must(launch(kernel, blocks).ok() ? cudaSuccess : cudaErrorUnknown, "a kernel"); });
    return Status();
  }
};

void compare_kernels_of_select(std::size_t count, std::uint32_t block) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> some(1000003), values(count);
  for (float& value : some) value = normal(random);
  for (std::size_t i = 0; i < count; ++i) values[i] = some[i % some.size()];
  DeviceArray<float> residual(values), gradient(values), next(count);
  SelectArguments of{.count = count, .block = block, .k = block / 100, .last_k = block / 100};
  const std::size_t blocks = count / block;
  DeviceArray<float> taken(blocks * of.k);
  DeviceArray<std::uint32_t> indices(blocks * of.k), finite(blocks);
  of.residual = residual.data();
  of.gradient = gradient.data();
  of.new_residual = next.data();
  of.values = taken.data();
  of.indices = indices.data();
  of.finite = finite.data();
  DeviceArray<unsigned char> workspace(select_workspace_bytes(of));
  // A kernel is timed by running it again and again, after which the next finds too long a list:
  // so the last is timed once more, after all have run once.
  double ms[4] = {};
  int launches = 0;
  (void)select_on(TimingLauncher{ms, &launches}, of, workspace.data());
  (void)select_on(StreamLauncher(nullptr), of, workspace.data());
  const SelectArrays arrays = lay_out(of, workspace.data());
  launches = 2;
  (void)TimingLauncher{ms, &launches}(ChooseKernel{arrays}, arrays.blocks);
  std::vector<std::uint32_t> found(1);
  must(cudaMemcpy(found.data(), arrays.found, 4, cudaMemcpyDeviceToHost), "copy");
  std::printf(
      "select, blocks of %u: threshold %.1f us, collect %.1f us, choose %.1f us; listed "
      "%u for %u\n",
      block, 1e3 * ms[0], 1e3 * ms[1], 1e3 * ms[2], found[0], of.k);
}

}  // namespace

void compare_variants() {
  constexpr std::size_t kCount = std::size_t{64} << 20;
  DeviceArray<float> a(kCount), b(kCount), c(kCount), d(kCount);
  for (DeviceArray<float>* array : {&a, &b, &c, &d}) {
    must(cudaMemset(array->data(), 0x3C, 4 * kCount), "cudaMemset");
  }
  std::printf("GB/s with 1, 2, 4, 8 packs at once, streaming | staying in the caches\n");
  const BinaryBody<float, float, float, Reduced<Sum, Plain<float>>> sum{
      a.data(), b.data(), c.data(), {}};
  compare("reduce SUM float32", sum, kCount, 12);
  using Half = std::uint16_t;
  const auto halves = [](DeviceArray<float>& array) {
    return reinterpret_cast<Half*>(array.data());
  };
  const BinaryBody<Half, Half, Half, Reduced<Sum, Bfloat16>> half_sum{
      halves(a), halves(b), halves(c), {}};
  compare("reduce SUM bfloat16", half_sum, 2 * kCount, 6);
  const UnaryBody<Half, float, Encoded<Bfloat16>> encode{halves(a), b.data(), {}};
  compare("f32_to_bf16", encode, kCount, 6);
  const AdamStep step = adam_step({.weight_decay = 0.1}, 10);
  const AdamBody<float, false> adam{step, a.data(), nullptr, b.data(), c.data(), d.data()};
  compare("adamw float32", adam, kCount, 28);
  compare_kernels_of_select(kCount, 1 << 17);
  compare_kernels_of_select(kCount, 1 << 20);
}

}  // namespace taco::kernels::cuda::check
