// The kernel's random numbers, of which secrets, tokens and names are made.
#pragma once

#include <cstddef>
#include <span>
#include <type_traits>

namespace taco {

// Waits while the kernel has none yet, as early at boot. Where a sandbox keeps them from this
// process, it ends, with a line that says so: nothing may go on with a secret that can be guessed.
void fill_random(std::span<std::byte> bytes);

template <class T>
T random_value() {
  static_assert(std::is_trivially_copyable_v<T>);
  T value;
  fill_random(std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

}  // namespace taco
