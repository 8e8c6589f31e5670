// Handles: text by which others reach a piece of a process's memory, and which the program carries
// over whatever channel it trusts. Whoever has one, and is the peer that the owner has connected
// to, reads and writes that memory until the owner revokes it. It comes from outside the process:
// decode_handle() trusts nothing. Pure; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace taco::remote {

// Random: nobody finds one by trying.
using Token = std::array<std::byte, 16>;

// A region as its owner knows it. Numbers count up and are never used again.
struct RegionKey {
  std::uint64_t number = 0;
  Token token{};
  bool operator==(const RegionKey&) const = default;
};

struct Handle {
  std::uint64_t endpoint = 0;  // the owner's
  RegionKey region;
  std::uint64_t offset = 0, bytes = 0;  // the part of the region that it stands for

  bool operator==(const Handle&) const = default;
};

inline constexpr std::size_t kHandleBytes = 72;

std::string encode(const Handle& handle);
// kInvalidArgument: no handle, or a damaged one; kVersionMismatch: another version's, named.
Result<Handle> decode_handle(std::string_view bytes);

}  // namespace taco::remote
