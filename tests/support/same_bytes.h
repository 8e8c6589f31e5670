// Comparison of what was received with what was sent, by all bytes of a vector at once: std::byte's
// own is one at a time. Test support.
#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

namespace taco {

inline bool same_bytes(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

}  // namespace taco
