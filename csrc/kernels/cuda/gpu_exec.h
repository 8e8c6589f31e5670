// A thread of a GPU, as the kernels see it (kernels/cuda/exec.h), and how they are launched.
// Included by .cu files alone.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "base/status.h"
#include "kernels/cuda/exec.h"

namespace taco::kernels::cuda {

// The word that the hardware moves a pack of so many bytes as.
template <std::size_t kBytes>
struct WordOf;
template <>
struct WordOf<16> {
  using type = uint4;
};
template <>
struct WordOf<8> {
  using type = uint2;
};
template <>
struct WordOf<4> {
  using type = unsigned int;
};
template <>
struct WordOf<2> {
  using type = unsigned short;
};
template <>
struct WordOf<1> {
  using type = unsigned char;
};

struct GpuExec {
  __device__ __forceinline__ unsigned thread() const { return threadIdx.x; }
  __device__ __forceinline__ unsigned block() const { return blockIdx.x; }

  __device__ __forceinline__ void barrier() { __syncthreads(); }
  __device__ __forceinline__ std::uint32_t ballot(std::uint32_t lanes, bool condition) {
    return __ballot_sync(lanes, condition);
  }
  template <class T>
  __device__ __forceinline__ T shuffle(std::uint32_t lanes, T value, unsigned lane) {
    return __shfl_sync(lanes, value, static_cast<int>(lane));
  }
  __device__ __forceinline__ std::uint32_t atomic_add(std::uint32_t* place, std::uint32_t value) {
    return atomicAdd(place, value);
  }

  // Every byte passes by once: what the caches hold for others may stay.
  template <class T>
  __device__ __forceinline__ T load(const T* place) {
    using Word = typename WordOf<sizeof(T)>::type;
    const Word word = __ldcs(reinterpret_cast<const Word*>(place));
    T value;
    memcpy(&value, &word, sizeof value);
    return value;
  }
  template <class T>
  __device__ __forceinline__ void store(T* place, const T& value) {
    using Word = typename WordOf<sizeof(T)>::type;
    Word word;
    memcpy(&word, &value, sizeof word);
    __stcs(reinterpret_cast<Word*>(place), word);
  }
};

template <class Exec, class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads) run_kernel(const Kernel kernel) {
  __shared__ typename Kernel::Shared shared;
  Exec exec;
  kernel(exec, shared);
}

// Gives kernels to a stream, whose device is the current one.
template <class Exec>
class LauncherOf {
 public:
  explicit LauncherOf(void* stream) : stream_(static_cast<cudaStream_t>(stream)) {}

  template <class Kernel>
  Status operator()(const Kernel& kernel, std::size_t blocks) const {
    if (blocks == 0) return Status();
    if (blocks > kMaxBlocks) {
      return invalid("an array of " + std::to_string(blocks) +
                     " blocks of threads is too long for one call: cut it");
    }
    run_kernel<Exec><<<static_cast<unsigned>(blocks), Kernel::kThreads, 0, stream_>>>(kernel);
    return status_of(cudaGetLastError());
  }

 private:
  static constexpr std::size_t kMaxBlocks = 0x7FFF'FFFF;
  static Status status_of(cudaError_t error) {
    if (error == cudaSuccess) return Status();
    return Status(Code::kInternal, std::string("CUDA: ") + cudaGetErrorString(error));
  }
  cudaStream_t stream_;
};
using StreamLauncher = LauncherOf<GpuExec>;

}  // namespace taco::kernels::cuda
