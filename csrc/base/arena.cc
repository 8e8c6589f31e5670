#include "base/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "base/descriptors.h"
#include "base/file.h"

namespace taco {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

std::size_t round_up(std::size_t bytes, std::size_t page) {
  return (bytes + page - 1) / page * page;
}

Status failure(const char* what, std::size_t bytes) {
  const int error = errno;
  const std::string limit = error == EMFILE ? "; " + descriptor_limit_text() : "";
  return Status(Code::kResource, std::string(what) + " of " + std::to_string(bytes) +
                                     " bytes of memory failed: " + strerror(error) + limit);
}

// The choice in force of a setting like "always [madvise] never"; empty where there is none.
std::string transparent_huge_pages(const char* setting) {
  const std::string line = read_file(std::string("/sys/kernel/mm/transparent_hugepage/") + setting);
  const std::size_t from = line.find('['), to = line.find(']');
  if (from == std::string::npos || to == std::string::npos || to < from) return "";
  return line.substr(from + 1, to - from - 1);
}

bool may_advise_huge_pages(Arena::Sharing sharing) {
  const std::string choice =
      transparent_huge_pages(sharing == Arena::Sharing::kShared ? "shmem_enabled" : "enabled");
  return !choice.empty() && choice != "never" && choice != "deny";
}

// An anonymous file of `bytes`, its size sealed. -1 with errno.
int make_file(const char* name, std::size_t bytes, unsigned flags) {
  const int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
  if (fd < 0) return -1;
  if (ftruncate(fd, static_cast<off_t>(bytes)) == 0 &&
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0)
    return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

struct Mapped {
  void* address = MAP_FAILED;
  int fd = -1;
};

// Huge pages are reserved at mmap() time, so success here means that they are really there.
Mapped map(const char* name, std::size_t bytes, Arena::Sharing sharing, bool huge) {
  Mapped mapped;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | (huge ? MAP_HUGETLB : 0);
  if (sharing == Arena::Sharing::kShared) {
    mapped.fd = make_file(name, bytes, huge ? MFD_HUGETLB : 0);
    if (mapped.fd < 0) return mapped;
    flags = MAP_SHARED;
  }
  mapped.address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, mapped.fd, 0);
  if (mapped.address == MAP_FAILED && mapped.fd >= 0) {
    const int error = errno;
    close(mapped.fd);
    mapped.fd = -1;
    errno = error;
  }
  return mapped;
}

}  // namespace

bool huge_pages_by_default() { return transparent_huge_pages("enabled") == "always"; }

Result<Arena> Arena::create(const char* name, std::size_t bytes, Sharing sharing) {
  Arena arena;
  Mapped mapped;
  if (bytes >= kHugePage) {
    arena.size_ = round_up(bytes, kHugePage);
    mapped = map(name, arena.size_, sharing, true);
    arena.pages_ = "reserved huge pages";
  }
  if (mapped.address == MAP_FAILED) {
    arena.size_ = round_up(bytes, kPage);
    mapped = map(name, arena.size_, sharing, false);
    if (mapped.address == MAP_FAILED) return failure("allocation", arena.size_);
    const bool advised = arena.size_ >= kHugePage && may_advise_huge_pages(sharing) &&
                         madvise(mapped.address, arena.size_, MADV_HUGEPAGE) == 0;
    arena.pages_ = advised ? "transparent huge pages" : "plain pages";
  }
  arena.data_ = static_cast<std::byte*>(mapped.address);
  arena.fd_ = mapped.fd;
  if (madvise(arena.data_, arena.size_, MADV_DONTFORK) != 0)
    return failure("fork protection", arena.size_);
  // A process that is handed the descriptor can map it for reading only. Kernels before 5.1 lack
  // this seal.
  if (arena.fd_ >= 0) fcntl(arena.fd_, F_ADD_SEALS, F_SEAL_FUTURE_WRITE);
  return arena;
}

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(fd_, other.fd_);
  std::swap(owns_fd_, other.owns_fd_);
  std::swap(pages_, other.pages_);
  return *this;
}

Arena::~Arena() {
  if (data_ != nullptr) munmap(data_, size_);
  if (fd_ >= 0 && owns_fd_) close(fd_);
}

Status Arena::commit(std::size_t offset, std::size_t bytes) {
  if (fd_ < 0) return Status();
  int result;
  do {
    result = fallocate(fd_, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  return result == 0 ? Status() : failure("reservation", bytes);
}

}  // namespace taco
