// device_check [--small | --times]: compares every kernel for GPUs with the host's on the first
// GPU, bit by bit, and then takes times. --small: sizes for a sanitizer, no times. --times: times
// alone.
#include "cuda/device_check.h"

#include <cstring>

#include "kernels/kernels.h"

using namespace taco::kernels::cuda::check;

int main(int count, char** arguments) {
  const bool small = count > 1 && std::strcmp(arguments[1], "--small") == 0;
  const bool only_times = count > 1 && std::strcmp(arguments[1], "--times") == 0;
  setvbuf(stdout, nullptr, _IOLBF, 0);
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("skipped: there is no GPU, or no driver for one\n");
    return 0;
  }
  cudaDeviceProp device{};
  int runtime = 0, driver = 0;
  must(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  must(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  must(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  std::printf("%s, sm_%d%d, %d multiprocessors, CUDA %d (driver %d), host's kernels: %s\n",
              device.name, device.major, device.minor, device.multiProcessorCount, runtime, driver,
              taco::kernels::isa_name());
  bool good = true;
  if (!only_times) {
    good &= check_elementwise(small);
    good &= check_adam(small);
    good &= check_select(small);
    good &= check_bytes(small);
  }
  if (!small) {
    take_times();
    compare_variants();
  }
  std::printf(good ? "all good\n" : "FAILED\n");
  return good ? 0 : 1;
}
