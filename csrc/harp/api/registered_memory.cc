#include "harp/api/registered_memory.h"

#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "base/names.h"
#include "base/per_process.h"
#include "base/populate.h"

namespace harp {
namespace {

using taco::Status;

std::string range_text(const void* data, std::size_t bytes) {
  char text[64];
  snprintf(text, sizeof text, "%p", data);
  return taco::size_text(bytes) + " at " + text;
}

// Brings it in as well: as a receive needs it, and memory that may not be written as a send does.
// Kernels that cannot say so let everything pass.
bool is_mapped(std::uintptr_t begin, std::uintptr_t end) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const std::uintptr_t first = begin / page * page;
  void* const from = reinterpret_cast<void*>(first);
  if (madvise(from, end - first, taco::kPopulateWrite) == 0) return true;
  return madvise(from, end - first, taco::kPopulateRead) == 0 || errno == EINVAL;
}

// Never destroyed: a Registration may end during static destruction.
constinit taco::PerProcess<RegisteredMemory> table_of_memory;

}  // namespace

taco::Result<RegisteredMemory::Kept> RegisteredMemory::add(const void* data, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const std::string what = "memory to be registered, " + range_text(data, bytes) + ": ";
  if (data == nullptr || bytes == 0) return taco::invalid(what + "there is none");
  if (bytes > UINTPTR_MAX - begin || !is_mapped(begin, begin + bytes)) {
    return taco::invalid(what + "not all of it is memory of this process");
  }
  std::lock_guard lock(mutex_);
  const auto next = ranges_.upper_bound(begin);
  if (next != ranges_.end() && next->second->begin < begin + bytes) {
    const Range& there = *next->second;
    return taco::invalid(
        what + "it overlaps " +
        range_text(reinterpret_cast<const void*>(there.begin), there.end - there.begin) +
        ", which is registered already");
  }
  auto range = std::make_shared<const Range>(Range{begin, begin + bytes});
  ranges_.emplace(range->end, range);
  count_.store(ranges_.size(), std::memory_order_relaxed);
  return Kept(std::move(range));
}

// The table and its user keep it, too.
Status RegisteredMemory::remove(Kept& range) {
  constexpr long kUnused = 2;
  std::lock_guard lock(mutex_);
  if (range.use_count() > kUnused) {
    return taco::invalid(
        "registered memory, " +
        range_text(reinterpret_cast<const void*>(range->begin), range->end - range->begin) +
        ": transfers that are not done use it");
  }
  erase(range);
  range.reset();
  return {};
}

void RegisteredMemory::forget(const Kept& range) {
  std::lock_guard lock(mutex_);
  erase(range);
}

void RegisteredMemory::erase(const Kept& range) {
  ranges_.erase(range->end);
  count_.store(ranges_.size(), std::memory_order_relaxed);
}

RegisteredMemory::Kept RegisteredMemory::covering(const void* data, std::size_t bytes) const {
  if (count_.load(std::memory_order_relaxed) == 0) return nullptr;
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  std::lock_guard lock(mutex_);
  const auto found = ranges_.upper_bound(begin);
  const bool is_inside = found != ranges_.end() && found->second->begin <= begin &&
                         bytes <= found->second->end - begin;
  return is_inside ? found->second : nullptr;
}

RegisteredMemory& registered_memory() { return table_of_memory(); }

}  // namespace harp
