#include "zerocache/torch/lent_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

namespace taco::zerocache {
namespace {

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

void LentMemory::add(const at::Tensor& memory, const Gradients& used) {
  lent_.push_back(memory);
  give_back(used);
}

void LentMemory::give_back(const Gradients& used) {
  std::erase_if(lent_, [&](const at::Tensor& memory) {
    const bool needed = std::any_of(used.begin(), used.end(),
                                    [&](const auto& each) { return lies_in(each.second, memory); });
    if (!needed) forget_bytes(memory);
    return !needed;
  });
}

}  // namespace taco::zerocache
