// The kernels of this folder are written against an `Exec`, one thread's view of the machine that
// runs it: GpuExec (kernels/cuda/gpu_exec.h) on a GPU, and in tests a fiber of the host
// (tests/support/fiber_grid.h), one of many that take turns in any order. So the same source is
// compared with the host's kernels bit by bit where there is no GPU. An Exec has
//   thread(), block()                    where this thread is
//   barrier()                            all threads of the block come here
//   ballot(lanes, condition)             a bit for each of `lanes` whose condition holds
//   shuffle(lanes, value, lane)          the value of another lane; by all of `lanes` at once
//   atomic_add(place, value)             returns what was there
//   load(place), store(place, pack)      a pack, which will not be needed again soon
//
// A kernel is a plain structure of its arguments. It has kThreads, a multiple of 32; Shared, the
// block's memory, which holds anything when the block begins; and a call operator that takes an
// Exec and that memory. No thread ends while others of its block still meet at barriers.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#define TACO_DEVICE __device__ __forceinline__
#define TACO_ANYWHERE __host__ __device__ __forceinline__
#define TACO_UNROLL _Pragma("unroll")
#else
#define TACO_DEVICE inline
#define TACO_ANYWHERE inline
#define TACO_UNROLL
#endif

namespace taco::kernels::cuda {

inline constexpr unsigned kLanes = 32;
inline constexpr std::uint32_t kAllLanes = 0xFFFF'FFFF;

// Neighbours in an array, moved by one instruction: at most 16 bytes, and as aligned as it is long.
template <class T, unsigned kCount>
struct alignas(sizeof(T) * kCount) Pack {
  static_assert(sizeof(T) * kCount <= 16);
  T at[kCount];
};

template <unsigned kCount, class T>
TACO_DEVICE Pack<T, kCount>* pack_of(T* first) {
  return reinterpret_cast<Pack<T, kCount>*>(first);
}
template <unsigned kCount, class T>
TACO_DEVICE const Pack<T, kCount>* pack_of(const T* first) {
  return reinterpret_cast<const Pack<T, kCount>*>(first);
}

TACO_DEVICE unsigned count_bits(std::uint32_t word) {
#if defined(__CUDA_ARCH__)
  return static_cast<unsigned>(__popc(static_cast<int>(word)));
#else
  return static_cast<unsigned>(__builtin_popcount(word));
#endif
}

template <class Exec>
TACO_DEVICE unsigned lane_of(const Exec& exec) {
  return exec.thread() % kLanes;
}
template <class Exec>
TACO_DEVICE unsigned warp_of(const Exec& exec) {
  return exec.thread() / kLanes;
}
// How many of the lanes up to this one hold the condition.
template <class Exec>
TACO_DEVICE std::uint32_t count_up_to_lane(Exec& exec, bool condition) {
  const std::uint32_t after = 31 - lane_of(exec);
  return count_bits(exec.ballot(kAllLanes, condition) << after);
}

// The sum of this lane's number and of those before it.
template <class Exec, class T>
TACO_DEVICE T sum_up_to_lane(Exec& exec, T value) {
  for (unsigned distance = 1; distance < kLanes; distance *= 2) {
    const unsigned lane = lane_of(exec);
    const T before = exec.shuffle(kAllLanes, value, lane >= distance ? lane - distance : lane);
    if (lane >= distance) value += before;
  }
  return value;
}

template <class T>
struct BlockSum {
  T before;  // the numbers of the threads before this one
  T total;   // of all
};
template <class T>
struct BlockSumMemory {
  T warps[2][kLanes];
};

// `up_to` is the sum within the warp. Every thread of the block calls this. Calls with the same
// memory count their turns: who is one call ahead writes where nobody reads any more.
template <unsigned kThreads, class Exec, class T>
TACO_DEVICE BlockSum<T> block_sum_of_warps(Exec& exec, BlockSumMemory<T>& memory, unsigned turn,
                                           T value, T up_to) {
  constexpr unsigned kWarps = kThreads / kLanes;
  static_assert(kWarps <= kLanes);
  T* const warps = memory.warps[turn % 2];
  if (lane_of(exec) == kLanes - 1) warps[warp_of(exec)] = up_to;
  exec.barrier();
  BlockSum<T> sum{up_to - value, 0};
  for (unsigned warp = 0; warp < kWarps; ++warp) {
    if (warp < warp_of(exec)) sum.before += warps[warp];
    sum.total += warps[warp];
  }
  return sum;
}
template <unsigned kThreads, class Exec, class T>
TACO_DEVICE BlockSum<T> block_sum(Exec& exec, BlockSumMemory<T>& memory, unsigned turn, T value) {
  return block_sum_of_warps<kThreads>(exec, memory, turn, value, sum_up_to_lane(exec, value));
}

}  // namespace taco::kernels::cuda
