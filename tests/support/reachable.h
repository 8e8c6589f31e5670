// Whether memory may be read or written, found out without touching it: the kernel does, and
// answers with an error where this program would get a signal. Test support.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>

namespace taco::testing {

class Prober {
 public:
  Prober() : good_(pipe(ends_) == 0) {}
  ~Prober() {
    if (!good_) return;
    close(ends_[0]);
    close(ends_[1]);
  }
  Prober(const Prober&) = delete;
  Prober& operator=(const Prober&) = delete;

  // Copies `bytes` (few) from `address` to `into`. False where they cannot be read. These are bare
  // system calls, of which a sanitizer knows nothing: an address may be probed at any time.
  bool read_at(const void* address, void* into, std::size_t bytes) {
    if (syscall(SYS_write, ends_[1], address, bytes) != static_cast<long>(bytes)) return false;
    return syscall(SYS_read, ends_[0], into, bytes) == static_cast<long>(bytes);
  }

  bool readable(const void* address) {
    char byte;
    return read_at(address, &byte, 1);
  }

  // The other way round. False where it cannot be written; the pipe is empty again then.
  bool write_at(void* address, const void* from, std::size_t bytes) {
    if (syscall(SYS_write, ends_[1], from, bytes) != static_cast<long>(bytes)) return false;
    if (syscall(SYS_read, ends_[0], address, bytes) == static_cast<long>(bytes)) return true;
    char rest[64];
    syscall(SYS_read, ends_[0], rest, sizeof rest);
    return false;
  }

  // Leaves what is there as it is.
  bool writable(void* address) {
    char byte;
    return read_at(address, &byte, 1) && write_at(address, &byte, 1);
  }

 private:
  int ends_[2] = {-1, -1};
  const bool good_;
};

}  // namespace taco::testing
