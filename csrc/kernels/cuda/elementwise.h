// Arrays passed over once: element i of what is written depends on element i of what is read. All
// that such a kernel costs is the memory's time, so each thread asks for several packs of 16 bytes
// before it waits for the first.
//
// `Body` says what is done, for packs of any number of elements:
//   Body::kWidest                              elements in the longest pack
//   body.arrays()                              an ArrayPlace for each array
//   body.load<n>(exec, i) -> Loaded<n>         of the elements that begin at i
//   body.finish<n>(exec, i, loaded)
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"
#include "kernels/cuda/exec.h"

namespace taco::kernels::cuda {

// Where an array begins, and how long its elements are.
struct ArrayPlace {
  std::uintptr_t address;
  std::size_t element;
};
template <class T>
ArrayPlace place_of(const T* array) {
  return {reinterpret_cast<std::uintptr_t>(array), sizeof(T)};
}

// The elements from `head` on go in packs of kCount; those before, and those that are left at the
// end, one by one.
template <class Body, unsigned kCount, unsigned kAtOnce>
struct ElementwiseKernel {
  static constexpr unsigned kThreads = 256;
  static constexpr std::size_t kPacksOfBlock = std::size_t{kThreads} * kAtOnce;
  static_assert(2 * (kCount - 1) <= kThreads);
  struct Shared {};

  Body body;
  std::size_t count;
  std::size_t head;

  TACO_ANYWHERE std::size_t packs() const { return (count - head) / kCount; }
  std::size_t blocks() const {
    const std::size_t needed = (packs() + kPacksOfBlock - 1) / kPacksOfBlock;
    return needed == 0 && count > 0 ? 1 : needed;
  }

  template <class Exec>
  TACO_DEVICE void operator()(Exec& exec, Shared&) const {
    const std::size_t all = packs();
    const std::size_t first = exec.block() * kPacksOfBlock + exec.thread();
    if (first + (kAtOnce - 1) * kThreads < all) {
      typename Body::template Loaded<kCount> loaded[kAtOnce];
      TACO_UNROLL
      for (unsigned k = 0; k < kAtOnce; ++k) {
        loaded[k] = body.template load<kCount>(exec, head + (first + k * kThreads) * kCount);
      }
      TACO_UNROLL
      for (unsigned k = 0; k < kAtOnce; ++k) {
        body.template finish<kCount>(exec, head + (first + k * kThreads) * kCount, loaded[k]);
      }
    } else {
      for (std::size_t pack = first; pack < all; pack += kThreads) {
        pass<kCount>(exec, head + pack * kCount);
      }
    }
    if (exec.block() != 0 || kCount == 1) return;
    const std::size_t after = head + all * kCount;
    if (exec.thread() < head) pass<1>(exec, exec.thread());
    if (exec.thread() < count - after) pass<1>(exec, after + exec.thread());
  }

 private:
  template <unsigned n, class Exec>
  TACO_DEVICE void pass(Exec& exec, std::size_t first) const {
    body.template finish<n>(exec, first, body.template load<n>(exec, first));
  }
};

// The least number of elements after which all arrays are aligned for the longest packs; kWidest
// where there is none.
template <class Body>
std::size_t elements_before_packs(const Body& body) {
  for (std::size_t head = 0; head < Body::kWidest; ++head) {
    bool aligned = true;
    for (const ArrayPlace& array : body.arrays()) {
      aligned &= (array.address + head * array.element) % (Body::kWidest * array.element) == 0;
    }
    if (aligned) return head;
  }
  return Body::kWidest;
}

template <class Body>
Status check_alignment(const Body& body) {
  for (const ArrayPlace& array : body.arrays()) {
    if (array.address % array.element == 0) continue;
    return invalid("an array of " + std::to_string(array.element) +
                   "-byte elements begins at an address that is no multiple of that, which a GPU "
                   "cannot read: copy it to one that is");
  }
  return Status();
}

// kAtOnce: packs that a thread asks for at once. Arrays that no shift aligns together go element by
// element.
template <unsigned kAtOnce = 4, class Launcher, class Body>
Status launch_elementwise(const Launcher& launch, const Body& body, std::size_t count) {
  if (count == 0) return Status();
  TACO_RETURN_IF_ERROR(check_alignment(body));
  const std::size_t head = elements_before_packs(body);
  if (head < Body::kWidest && head <= count) {
    const ElementwiseKernel<Body, Body::kWidest, kAtOnce> kernel{body, count, head};
    return launch(kernel, kernel.blocks());
  }
  const ElementwiseKernel<Body, 1, 8> kernel{body, count, 0};
  return launch(kernel, kernel.blocks());
}

// out[i] = function(in[i]) and out[i] = function(a[i], b[i]); `out` may be an operand itself.
template <class Out, class In, class Function>
struct UnaryBody {
  static constexpr unsigned kWidest = 16 / (sizeof(Out) > sizeof(In) ? sizeof(Out) : sizeof(In));
  template <unsigned n>
  using Loaded = Pack<In, n>;

  Out* out;
  const In* in;
  Function function;

  std::array<ArrayPlace, 2> arrays() const { return {place_of(out), place_of(in)}; }
  template <unsigned n, class Exec>
  TACO_DEVICE Loaded<n> load(Exec& exec, std::size_t i) const {
    return exec.load(pack_of<n>(in + i));
  }
  template <unsigned n, class Exec>
  TACO_DEVICE void finish(Exec& exec, std::size_t i, const Loaded<n>& loaded) const {
    Pack<Out, n> result;
    TACO_UNROLL
    for (unsigned k = 0; k < n; ++k) result.at[k] = function(loaded.at[k]);
    exec.store(pack_of<n>(out + i), result);
  }
};

template <class Out, class A, class B, class Function>
struct BinaryBody {
  static constexpr std::size_t kElement = sizeof(A) > sizeof(B) ? sizeof(A) : sizeof(B);
  static constexpr unsigned kWidest = 16 / (sizeof(Out) > kElement ? sizeof(Out) : kElement);
  template <unsigned n>
  struct Loaded {
    Pack<A, n> a;
    Pack<B, n> b;
  };

  Out* out;
  const A* a;
  const B* b;
  Function function;

  std::array<ArrayPlace, 3> arrays() const { return {place_of(out), place_of(a), place_of(b)}; }
  template <unsigned n, class Exec>
  TACO_DEVICE Loaded<n> load(Exec& exec, std::size_t i) const {
    return {exec.load(pack_of<n>(a + i)), exec.load(pack_of<n>(b + i))};
  }
  template <unsigned n, class Exec>
  TACO_DEVICE void finish(Exec& exec, std::size_t i, const Loaded<n>& loaded) const {
    Pack<Out, n> result;
    TACO_UNROLL
    for (unsigned k = 0; k < n; ++k) result.at[k] = function(loaded.a.at[k], loaded.b.at[k]);
    exec.store(pack_of<n>(out + i), result);
  }
};

}  // namespace taco::kernels::cuda
