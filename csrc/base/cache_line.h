// The bytes that cores pass to each other: two threads that write into one line slow each other
// down, whatever they write. Objects that an engine writes on its way, and that are made by threads
// which make those of other engines too, are aligned to it and so fill their lines alone.
#pragma once

#include <cstddef>

namespace taco {

inline constexpr std::size_t kCacheLine = 64;

}  // namespace taco
