// Memory that will be looked at soon and is not in the caches: it comes while other things are
// done. For lists that do not fit the caches: what a walk over them comes to next. Any thread.
#pragma once

#include <cstddef>

#include "base/cache_line.h"

namespace taco {

inline void prefetch_bytes(const void* begin, std::size_t bytes) {
  const char* const from = static_cast<const char*>(begin);
  for (std::size_t at = 0; at < bytes; at += kCacheLine) __builtin_prefetch(from + at);
}

template <class Object>
void prefetch(const Object& object) {
  prefetch_bytes(&object, sizeof object);
}

}  // namespace taco
