// Memory from mmap() with one owner, a file's or of nobody else's: unmapped with it, and not
// inherited by forked children.
//
// Any thread, one at a time. A file may be closed once it is mapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/status.h"

namespace taco {

class Mapping {
 public:
  enum class Access { kRead, kReadWrite };

  // Zeroed, and there when it is first touched. `flags`: mmap()'s beyond the usual ones, such as
  // MAP_HUGETLB. kResource: there is no such memory.
  static Result<Mapping> anonymous(std::size_t bytes, int flags = 0);
  // Shared with whoever maps the same part of the file. The caller sees to it that the file is long
  // enough, and stays so: an access behind its end is a fault. kResource: it cannot be mapped.
  static Result<Mapping> of_file(int fd, std::size_t bytes, Access access,
                                 std::uint64_t offset = 0);

  Mapping() = default;  // empty
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Mapping();

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  static Result<Mapping> map(std::size_t bytes, int access, int flags, int fd,
                             std::uint64_t offset);

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace taco
