// Numbers that a test takes from its environment, so that a campaign is as long as it is asked to
// be.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace taco {

inline std::uint64_t number_from(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

}  // namespace taco
