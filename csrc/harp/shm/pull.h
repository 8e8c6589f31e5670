// Reading another process's memory directly (process_vm_readv): one copy instead of two, where the
// kernel's policy allows it. Whether it does is found by trying, per peer. Any thread.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace taco::harp {

// Lets other processes of this user read this one, where Yama would otherwise allow only parents
// to. Harmless elsewhere.
void shm_allow_pulls();

// Reads the word `value` at `address` of `pid`: a rehearsal. The Status says why it cannot work.
Status shm_probe_pull(pid_t pid, std::uint64_t address, std::uint64_t value);

// Reads up to `bytes`; returns how many, or -errno.
std::ptrdiff_t shm_pull(pid_t pid, void* to, std::uint64_t address, std::size_t bytes);

}  // namespace taco::harp
