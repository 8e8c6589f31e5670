#include "device/host_memory.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>
#include <utility>

#include "base/names.h"
#include "base/populate.h"

namespace taco::device {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr int kAccess = PROT_READ | PROT_WRITE;

// Since Linux 5.7; the C library's headers may be older than the kernel.
constexpr int kDontUnmap = 4;  // MREMAP_DONTUNMAP

Status failure(const std::string& what) {
  const int error = errno;
  const char* advice = error == ENOMEM ? "; the host is out of memory, or of mappings in a process "
                                         "(vm.max_map_count)"
                                       : "";
  return Status(Code::kResource, what + ": " + strerror(error) + advice);
}

// Takes the place of whatever is mapped there, in one step that no other thread can come between.
bool map_anew(std::byte* address, std::size_t bytes, int access) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
  return mmap(address, bytes, access, flags, -1, 0) == address;
}

// Moves memory, and leaves the mapping itself behind, empty: no hole that another mmap() could
// take.
bool move_memory(std::byte* from, std::byte* to, std::size_t bytes) {
  const int flags = MREMAP_MAYMOVE | MREMAP_FIXED | kDontUnmap;
  return mremap(from, bytes, bytes, flags, to) == to;
}

// Addresses without memory that begin at a multiple of `alignment`; null if there are none.
std::byte* reserve_aligned(std::size_t bytes, std::size_t alignment) {
  if (bytes > SIZE_MAX - alignment) {
    errno = ENOMEM;
    return nullptr;
  }
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* got = mmap(nullptr, bytes + alignment, PROT_NONE, flags, -1, 0);
  if (got == MAP_FAILED) return nullptr;
  const auto begin = reinterpret_cast<std::uintptr_t>(got);
  const std::uintptr_t aligned = (begin + alignment - 1) / alignment * alignment;
  const std::size_t before = aligned - begin, after = alignment - before;
  if (before > 0) munmap(got, before);
  if (after > 0) munmap(reinterpret_cast<void*>(aligned + bytes), after);
  return reinterpret_cast<std::byte*>(aligned);
}

// Whether this kernel moves memory as we need it.
bool can_move() {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  std::byte* two = reserve_aligned(2 * page, page);
  if (two == nullptr) return false;
  const bool can = mprotect(two, page, kAccess) == 0 && move_memory(two, two + page, page);
  munmap(two, 2 * page);
  return can;
}

}  // namespace

Result<std::unique_ptr<HostMemory>> HostMemory::create(const Options& options) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t bytes = options.frame_bytes;
  if (!std::has_single_bit(bytes) || bytes < page) {
    return invalid("a frame of " + std::to_string(bytes) +
                   " bytes: it must be a power of two, at least " + std::to_string(page));
  }
  if (options.max_frames == 0 || options.max_frames >= kNone) {
    return invalid("a cap of " + std::to_string(options.max_frames) +
                   " frames: it must be at least 1");
  }
  const std::size_t most = SIZE_MAX / bytes;
  std::byte* homes =
      reserve_aligned(options.max_frames <= most ? options.max_frames * bytes : SIZE_MAX,
                      std::max(bytes, kHugePage));
  if (homes == nullptr) {
    return failure("no addresses for " + std::to_string(options.max_frames) + " frames of " +
                   size_text(bytes));
  }
  return std::unique_ptr<HostMemory>(
      new HostMemory(options, homes, options.may_move && can_move()));
}

HostMemory::~HostMemory() {
  for (const auto& [begin, range] : ranges_) munmap(begin, range.bytes);
  munmap(homes_, options_.max_frames * options_.frame_bytes);
}

Result<std::byte*> HostMemory::reserve(std::size_t bytes) {
  const std::size_t frame = options_.frame_bytes;
  if (bytes == 0) return invalid("a range of 0 bytes: there is nothing to reserve");
  const std::size_t rounded =
      bytes > SIZE_MAX - frame ? bytes : (bytes - 1) / frame * frame + frame;
  std::byte* begin = reserve_aligned(rounded, std::max(frame, kHugePage));
  if (begin == nullptr) return failure("no range of addresses for " + size_text(bytes));
  std::lock_guard lock(mutex_);
  ranges_[begin] = {rounded, std::vector<std::uint32_t>(rounded / frame, kNone)};
  return begin;
}

Status HostMemory::release(std::byte* range) {
  std::lock_guard lock(mutex_);
  const auto found = ranges_.find(range);
  if (found == ranges_.end()) return invalid("no range begins at the address to be released");
  for (std::uint32_t& frame : found->second.frames) {
    if (frame == kNone) continue;
    TACO_RETURN_IF_ERROR(take_home(frame, frames_[frame].address));
    frame = kNone;
  }
  munmap(range, found->second.bytes);
  ranges_.erase(found);
  return Status();
}

std::string HostMemory::named(std::uint32_t frame) const {
  return "frame " + std::to_string(frame) + " of " + size_text(options_.frame_bytes);
}

// With the lock held. Memory for a frame at `address`, all of it there before anybody touches it.
Status HostMemory::populate(std::byte* address, std::uint32_t frame) const {
  const std::size_t bytes = options_.frame_bytes;
  if (!map_anew(address, bytes, kAccess)) return failure("no memory for " + named(frame));
  if (options_.huge_pages && bytes >= kHugePage) madvise(address, bytes, MADV_HUGEPAGE);
  if (madvise(address, bytes, kPopulateWrite) != 0) {
    if (errno != EINVAL) {
      Status status = failure("no memory for " + named(frame));
      map_anew(address, bytes, PROT_NONE);
      return status;
    }
    memset(address, 0, bytes);  // a kernel before 5.14
  }
  if (options_.poison) memset(address, kPoison, bytes);
  return Status();
}

Result<FrameId> HostMemory::create_frame() {
  std::lock_guard lock(mutex_);
  if (existing() == options_.max_frames) {
    return Status(Code::kResource, "all " + std::to_string(existing()) + " frames of " +
                                       size_text(options_.frame_bytes) +
                                       " that the device's cap allows are in use");
  }
  const auto frame = free_.empty() ? static_cast<std::uint32_t>(frames_.size()) : free_.back();
  if (moves_) TACO_RETURN_IF_ERROR(populate(home_of(frame), frame));
  if (free_.empty()) {
    frames_.emplace_back();
  } else {
    free_.pop_back();
  }
  frames_[frame].exists = true;
  return FrameId{frame};
}

// With the lock held.
Status HostMemory::usable(FrameId id) const {
  const auto frame = static_cast<std::uint32_t>(id);
  if (frame >= frames_.size() || !frames_[frame].exists)
    return invalid("frame " + std::to_string(frame) + " does not exist");
  if (frames_[frame].address != nullptr) return invalid(named(frame) + " is mapped");
  return Status();
}

Status HostMemory::destroy_frame(FrameId id) {
  std::lock_guard lock(mutex_);
  TACO_RETURN_IF_ERROR(usable(id));
  const auto frame = static_cast<std::uint32_t>(id);
  if (moves_ && !map_anew(home_of(frame), options_.frame_bytes, PROT_NONE))
    return failure(named(frame) + " could not be freed");
  frames_[frame].exists = false;
  free_.push_back(frame);
  return Status();
}

// With the lock held. Null where no frame could be mapped.
std::uint32_t* HostMemory::slot_of(std::byte* address) {
  auto next = ranges_.upper_bound(address);
  if (next == ranges_.begin()) return nullptr;
  auto& [begin, range] = *std::prev(next);
  const auto offset = static_cast<std::size_t>(address - begin);
  if (offset >= range.bytes || offset % options_.frame_bytes != 0) return nullptr;
  return &range.frames[offset / options_.frame_bytes];
}

std::byte* HostMemory::home(FrameId id) const {
  std::lock_guard lock(mutex_);
  return moves_ && usable(id).ok() ? home_of(static_cast<std::uint32_t>(id)) : nullptr;
}

Status HostMemory::map(std::byte* address, FrameId id) {
  std::lock_guard lock(mutex_);
  TACO_RETURN_IF_ERROR(usable(id));
  const auto frame = static_cast<std::uint32_t>(id);
  std::uint32_t* slot = slot_of(address);
  if (slot == nullptr) return invalid("the address is not that of a frame in a reserved range");
  if (*slot != kNone) return invalid("the address has " + named(*slot) + " already");
  if (!moves_) {
    TACO_RETURN_IF_ERROR(populate(address, frame));
  } else if (!move_memory(home_of(frame), address, options_.frame_bytes)) {
    return failure(named(frame) + " could not be mapped");
  }
  *slot = frame;
  frames_[frame].address = address;
  ++mapped_;
  return Status();
}

// With the lock held.
Status HostMemory::take_home(std::uint32_t frame, std::byte* address) {
  const std::size_t bytes = options_.frame_bytes;
  if (moves_) {
    std::byte* home = home_of(frame);
    // A move leaves the old address with the access it had. Were that not taken away first, a
    // thread that still touches the address could, for a moment, read zeros and lose what it
    // writes.
    if (mprotect(address, bytes, PROT_NONE) != 0 || !move_memory(address, home, bytes) ||
        mprotect(home, bytes, kAccess) != 0)
      return failure(named(frame) + " could not be unmapped");
    if (options_.poison) memset(home, kPoison, bytes);
  }
  // One mapping with its neighbours again: a process may have only so many (vm.max_map_count).
  if (!map_anew(address, bytes, PROT_NONE)) return failure(named(frame) + " left its place open");
  frames_[frame].address = nullptr;
  --mapped_;
  return Status();
}

Result<FrameId> HostMemory::unmap(std::byte* address) {
  std::lock_guard lock(mutex_);
  std::uint32_t* slot = slot_of(address);
  if (slot == nullptr || *slot == kNone) return invalid("no frame is mapped at the address");
  const std::uint32_t frame = *slot;
  TACO_RETURN_IF_ERROR(take_home(frame, address));
  *slot = kNone;
  return FrameId{frame};
}

Usage HostMemory::usage() const {
  std::lock_guard lock(mutex_);
  return {existing(), mapped_, options_.max_frames};
}

}  // namespace taco::device
