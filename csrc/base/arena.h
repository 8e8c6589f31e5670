// A large piece of host memory on the largest pages the host gives: reserved huge pages, else
// transparent ones, else plain pages, and it says which. A shared arena is an anonymous file
// (memfd) whose size is sealed; it has no name, so nothing is left behind, however the process
// ends. Mappings are not inherited by forked children. Memory appears when it is first touched or
// committed. Freed with the object; any thread may use it, one at a time.
#pragma once

#include <cstddef>
#include <string>

#include "base/mapping.h"
#include "base/status.h"

namespace taco {

// Does the kernel put ordinary large allocations on huge pages without being asked to?
bool huge_pages_by_default();

class Arena {
 public:
  enum class Sharing { kPrivate, kShared };

  // `name` shows up in /proc/<pid>/maps of a shared arena. `bytes` is rounded up to whole pages.
  static Result<Arena> create(const char* name, std::size_t bytes, Sharing sharing);

  Arena() = default;  // empty
  Arena(Arena&& other) noexcept { *this = std::move(other); }
  Arena& operator=(Arena&& other) noexcept;
  ~Arena();

  std::byte* data() const { return memory_.data(); }
  std::size_t size() const { return memory_.size(); }
  int fd() const { return fd_; }  // of a shared arena; -1 otherwise
  const std::string& pages() const { return pages_; }

  // Makes sure that memory stands behind [offset, offset + bytes) of a shared arena, so that no
  // later access, here or in a peer, dies by SIGBUS. kResource when the host has none left.
  Status commit(std::size_t offset, std::size_t bytes);

  // Hands the descriptor over to the caller to close, no earlier than the arena goes.
  void disown_fd() { owns_fd_ = false; }

 private:
  Mapping memory_;
  int fd_ = -1;
  bool owns_fd_ = true;
  std::string pages_;
};

}  // namespace taco
