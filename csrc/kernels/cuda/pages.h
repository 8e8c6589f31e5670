// Pages that lie apart brought together, and put back. Bytes that must move: two times the pages'.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "kernels/cuda/exec.h"

namespace taco::kernels::cuda {

// Page i of `together` is page pages[i] of `apart`. A number that is no page's is passed over and
// counted.
template <bool kGather>
struct PageKernel {
  static constexpr unsigned kThreads = 256;
  static constexpr unsigned kAtOnce = 4;
  static constexpr std::size_t kBytesOfBlock = std::size_t{16} * kThreads * kAtOnce;
  struct Shared {};
  using Line = Pack<std::uint32_t, 4>;

  unsigned char* to;
  const unsigned char* from;
  const std::uint32_t* pages;
  std::uint32_t* refused;  // one number, that counts
  std::size_t page_bytes;
  std::uint32_t pages_apart;
  std::uint32_t blocks_of_page;

  template <class Exec>
  TACO_DEVICE void operator()(Exec& exec, Shared&) const {
    const std::size_t index = exec.block() / blocks_of_page;
    const std::size_t part = exec.block() % blocks_of_page;
    const std::uint32_t page = pages[index];
    if (page >= pages_apart) {
      if (part == 0 && exec.thread() == 0) exec.atomic_add(refused, 1u);
      return;
    }
    const std::size_t apart = page * page_bytes, together = index * page_bytes;
    const auto* source = reinterpret_cast<const Line*>(from + (kGather ? apart : together));
    auto* target = reinterpret_cast<Line*>(to + (kGather ? together : apart));
    const std::size_t lines = page_bytes / sizeof(Line);
    const std::size_t first = part * (kBytesOfBlock / sizeof(Line)) + exec.thread();
    if (first + (kAtOnce - 1) * kThreads < lines) {
      Line line[kAtOnce];
      TACO_UNROLL
      for (unsigned k = 0; k < kAtOnce; ++k) line[k] = exec.load(source + first + k * kThreads);
      TACO_UNROLL
      for (unsigned k = 0; k < kAtOnce; ++k) exec.store(target + first + k * kThreads, line[k]);
    } else {
      for (std::size_t i = first; i < lines; i += kThreads)
        exec.store(target + i, exec.load(source + i));
    }
  }
};

template <bool kGather, class Launcher>
Status move_pages(const Launcher& launch, void* to, const void* from, const std::uint32_t* pages,
                  std::size_t count, std::size_t page_bytes, std::uint32_t pages_apart,
                  std::uint32_t* refused) {
  using Kernel = PageKernel<kGather>;
  if (count == 0) return Status();
  const auto places = reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from);
  if (page_bytes == 0 || page_bytes % 16 != 0 || places % 16 != 0) {
    return invalid("pages of " + std::to_string(page_bytes) +
                   " bytes cannot be gathered or scattered: their length and both addresses have "
                   "to be multiples of 16");
  }
  const std::size_t blocks = (page_bytes + Kernel::kBytesOfBlock - 1) / Kernel::kBytesOfBlock;
  const Kernel kernel{static_cast<unsigned char*>(to),
                      static_cast<const unsigned char*>(from),
                      pages,
                      refused,
                      page_bytes,
                      pages_apart,
                      static_cast<std::uint32_t>(blocks)};
  return launch(kernel, count * blocks);
}

}  // namespace taco::kernels::cuda
