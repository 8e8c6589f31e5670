// Runs the kernels of csrc/kernels/cuda on the host. Every thread of a GPU is a fiber here, and
// they take turns in an order that a seed decides: what a kernel gives must not depend on it. A
// fiber gives up its turn at barriers, at what a warp does together, and now and then at atomics.
// Shared memory begins with the seed's bytes. Several blocks run at once, so that they mix.
//
// More is noticed than a GPU would: a barrier that not all threads of a block reach, a warp's
// operation for other lanes than come to it, a pack at an address that is not aligned for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"

namespace taco::testing {

class FiberScheduler;

// One thread, as a kernel sees it (csrc/kernels/cuda/exec.h).
class FiberExec {
 public:
  unsigned thread() const { return thread_; }
  unsigned block() const { return block_; }

  void barrier();
  std::uint32_t ballot(std::uint32_t lanes, bool condition);
  template <class T>
  T shuffle(std::uint32_t lanes, T value, unsigned lane) {
    static_assert(sizeof(T) <= sizeof(std::uint64_t));
    std::uint64_t word = 0;
    std::memcpy(&word, &value, sizeof value);
    word = exchange(lanes, word, lane);
    std::memcpy(&value, &word, sizeof value);
    return value;
  }
  std::uint32_t atomic_add(std::uint32_t* place, std::uint32_t value) {
    perhaps_yield();
    const std::uint32_t before = *place;
    *place = before + value;
    return before;
  }
  template <class T>
  T load(const T* place) {
    check_aligned(place, sizeof(T));
    return *place;
  }
  template <class T>
  void store(T* place, const T& value) {
    check_aligned(place, sizeof(T));
    *place = value;
  }

 private:
  friend class FiberScheduler;
  std::uint64_t exchange(std::uint32_t lanes, std::uint64_t word, unsigned lane);
  void perhaps_yield();
  void check_aligned(const void* place, std::size_t bytes);

  FiberScheduler* scheduler_ = nullptr;
  std::size_t fiber_ = 0;
  unsigned thread_ = 0, block_ = 0;
  unsigned barriers_ = 0, warp_calls_ = 0;  // that this thread has come to
};

// A kernel with a mistake: in one launch, every thread leaves out one barrier, or has a lane too
// few in the mask of one operation of its warp.
struct KernelMistake {
  enum class Kind { kNone, kBarrierLeftOut, kLaneLeftOut };
  Kind kind = Kind::kNone;
  std::size_t launch = 0;  // counted from 0
  unsigned call = 0;       // of the thread's barriers, or of its warp's operations
};

// How often a thread came to a barrier and to an operation of its warp, at most, in one launch.
struct KernelCalls {
  unsigned barriers = 0, warp_calls = 0;
};

// A launcher of kernels (csrc/kernels/cuda/elementwise.h and its neighbours).
class FiberGrid {
 public:
  explicit FiberGrid(std::uint64_t seed, KernelMistake mistake = {});
  ~FiberGrid();

  // kInternal with a text if a thread does what no order of threads allows.
  template <class Kernel>
  Status operator()(const Kernel& kernel, std::size_t blocks) const {
    using Shared = typename Kernel::Shared;
    static_assert(Kernel::kThreads % 32 == 0 && alignof(Shared) <= 16);
    const auto call = [](const void* of, FiberExec& exec, void* shared) {
      (*static_cast<const Kernel*>(of))(exec, *static_cast<Shared*>(shared));
    };
    return run({call, &kernel, sizeof(Shared), Kernel::kThreads}, blocks);
  }

  const std::vector<KernelCalls>& launches() const;

 private:
  friend class FiberScheduler;
  struct Program {
    void (*call)(const void* kernel, FiberExec& exec, void* shared);
    const void* kernel;
    std::size_t shared_bytes;
    unsigned threads;
  };
  Status run(const Program& program, std::size_t blocks) const;

  std::unique_ptr<FiberScheduler> scheduler_;
};

}  // namespace taco::testing
