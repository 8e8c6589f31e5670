#include "base/mapping.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include <string>

namespace taco {

Result<Mapping> Mapping::map(std::size_t bytes, int access, int flags, int fd,
                             std::uint64_t offset) {
  void* const at = mmap(nullptr, bytes, access, flags, fd, static_cast<off_t>(offset));
  Mapping mapping;
  if (at != MAP_FAILED) {
    mapping.data_ = static_cast<std::byte*>(at);
    mapping.size_ = bytes;
    if (madvise(at, bytes, MADV_DONTFORK) == 0) return mapping;
  }
  return Status(Code::kResource,
                "mapping " + std::to_string(bytes) + " bytes of memory failed: " + strerror(errno));
}

Result<Mapping> Mapping::anonymous(std::size_t bytes, int flags) {
  return map(bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
}

Result<Mapping> Mapping::of_file(int fd, std::size_t bytes, Access access, std::uint64_t offset) {
  const int allowed = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  return map(bytes, allowed, MAP_SHARED, fd, offset);
}

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, size_);
}

}  // namespace taco
