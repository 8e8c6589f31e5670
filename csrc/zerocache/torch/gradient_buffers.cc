#include "zerocache/torch/gradient_buffers.h"

#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace taco::zerocache {
namespace {

// Smaller ones are given to others by the allocator before long.
constexpr std::size_t kWorthReturning = std::size_t{256} << 10;

// Whether nobody else has memory of torch's allocator that is worth a call of the system.
bool is_ours_alone(const at::Tensor& gradient) {
  if (!gradient.defined() || gradient.layout() != at::kStrided) return false;
  const c10::Storage& storage = gradient.storage();
  return gradient.nbytes() >= kWorthReturning && gradient.use_count() == 1 &&
         storage.use_count() == 1 &&
         storage.data_ptr().get_deleter() == c10::GetDefaultCPUAllocator()->raw_deleter();
}

bool lies_in(const at::Tensor& gradient, const at::Tensor& memory) {
  return gradient.defined() && gradient.storage().is_alias_of(memory.storage());
}

}  // namespace

void forget_bytes(const at::Tensor& tensor) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(tensor.mutable_data_ptr());
  const std::uintptr_t first = (begin + page - 1) / page * page;
  const std::uintptr_t last = (begin + tensor.nbytes()) / page * page;
  if (!tensor.device().is_cpu() || !tensor.is_non_overlapping_and_dense() || first >= last) return;
  // If the system refuses, the memory stays.
  static_cast<void>(madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED));
}

void LeavingGradients::add(at::Tensor gradient) {
  if (is_ours_alone(gradient)) {
    forget_bytes(gradient);
  } else {
    leaving_.push_back(std::move(gradient));
  }
}

void LeavingGradients::let_go() {
  for (const at::Tensor& gradient : leaving_) {
    if (is_ours_alone(gradient)) forget_bytes(gradient);
  }
  leaving_.clear();
}

void GradientBuffers::add(const at::Tensor& memory, const Gradients& used) {
  buffers_.push_back(memory);
  give_back(used);
}

void GradientBuffers::give_back(const Gradients& used) {
  std::erase_if(buffers_, [&](const at::Tensor& memory) {
    const bool needed = std::any_of(used.begin(), used.end(),
                                    [&](const auto& each) { return lies_in(each.second, memory); });
    if (!needed) forget_bytes(memory);
    return !needed;
  });
}

}  // namespace taco::zerocache
