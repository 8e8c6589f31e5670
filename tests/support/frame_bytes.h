// Frames as people write them down.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace taco::harp {

using Frame = std::vector<std::byte>;

// Two digits a byte, with spaces between them or not.
inline Frame bytes_of(const std::string& digits) {
  Frame bytes;
  std::string pair;
  for (const char digit : digits) {
    if (digit == ' ') continue;
    pair += digit;
    if (pair.size() < 2) continue;
    bytes.push_back(static_cast<std::byte>(std::stoi(pair, nullptr, 16)));
    pair.clear();
  }
  return bytes;
}

}  // namespace taco::harp
