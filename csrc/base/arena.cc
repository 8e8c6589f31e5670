#include "base/arena.h"

#include <errno.h>
#include <fcntl.h>
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
  return Status(Code::kResource, std::string(what) + " of " + std::to_string(bytes) +
                                     " bytes of memory failed: " + system_error_text(errno));
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

struct Memory {
  Mapping mapping;
  int fd = -1;
};

// Huge pages are reserved at mmap() time, so success here means that they are really there.
Result<Memory> allocate(const char* name, std::size_t bytes, Arena::Sharing sharing, bool huge) {
  Memory memory;
  if (sharing == Arena::Sharing::kPrivate) {
    auto mapping = Mapping::anonymous(bytes, huge ? MAP_HUGETLB : 0);
    if (!mapping.ok()) return mapping.status();
    memory.mapping = std::move(mapping).value();
    return memory;
  }
  memory.fd = make_file(name, bytes, huge ? MFD_HUGETLB : 0);
  if (memory.fd < 0) return failure("allocation", bytes);
  auto mapping = Mapping::of_file(memory.fd, bytes, Mapping::Access::kReadWrite);
  if (!mapping.ok()) close(memory.fd);
  if (!mapping.ok()) return mapping.status();
  memory.mapping = std::move(mapping).value();
  return memory;
}

}  // namespace

bool huge_pages_by_default() { return transparent_huge_pages("enabled") == "always"; }

Result<Arena> Arena::create(const char* name, std::size_t bytes, Sharing sharing) {
  Arena arena;
  const bool is_large = bytes >= kHugePage;
  arena.pages_ = is_large ? "reserved huge pages" : "plain pages";
  auto memory = allocate(name, round_up(bytes, is_large ? kHugePage : kPage), sharing, is_large);
  if (!memory.ok() && is_large) {
    memory = allocate(name, round_up(bytes, kPage), sharing, false);
    const bool advised =
        memory.ok() && may_advise_huge_pages(sharing) &&
        madvise(memory->mapping.data(), memory->mapping.size(), MADV_HUGEPAGE) == 0;
    arena.pages_ = advised ? "transparent huge pages" : "plain pages";
  }
  if (!memory.ok()) return memory.status();
  arena.memory_ = std::move(memory->mapping);
  arena.fd_ = memory->fd;
  // A process that is handed the descriptor can map it for reading only. Kernels before 5.1 lack
  // this seal.
  if (arena.fd_ >= 0) fcntl(arena.fd_, F_ADD_SEALS, F_SEAL_FUTURE_WRITE);
  return arena;
}

Arena& Arena::operator=(Arena&& other) noexcept {
  memory_ = std::move(other.memory_);
  std::swap(fd_, other.fd_);
  std::swap(owns_fd_, other.owns_fd_);
  std::swap(pages_, other.pages_);
  return *this;
}

Arena::~Arena() {
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
