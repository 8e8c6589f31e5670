#include "harp/shm/pull.h"

#include <errno.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/uio.h>

#include <string>

namespace taco::harp {

void shm_allow_pulls() {
  // Fails with EINVAL where Yama is not built in: then there is nothing to allow.
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
}

Status shm_probe_pull(pid_t pid, std::uint64_t address, std::uint64_t value) {
  if (pid <= 0) return Status(Code::kUnsupported, "the peer lives in another PID namespace");
  std::uint64_t word = 0;
  const std::ptrdiff_t got = shm_pull(pid, &word, address, sizeof word);
  if (got == static_cast<std::ptrdiff_t>(sizeof word) && word == value) return Status();
  if (got < 0) {
    return Status(Code::kUnsupported,
                  std::string("process_vm_readv: ") + strerror(static_cast<int>(-got)));
  }
  return Status(Code::kUnsupported, "process_vm_readv read something else than the peer wrote");
}

std::ptrdiff_t shm_pull(pid_t pid, void* to, std::uint64_t address, std::size_t bytes) {
  iovec local{to, bytes};
  iovec remote{reinterpret_cast<void*>(address), bytes};
  ssize_t got;
  do {
    got = process_vm_readv(pid, &local, 1, &remote, 1, 0);
  } while (got < 0 && errno == EINTR);
  return got < 0 ? -errno : got;
}

}  // namespace taco::harp
