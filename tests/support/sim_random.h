// Random numbers of simulations: the same ones for the same seed, everywhere. Test support.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/clock.h"

namespace taco::harp {

// xoshiro-like quality is not needed; speed and a printed seed are.
class SimRandom {
 public:
  explicit SimRandom(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {  // splitmix64
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }
  bool chance(double probability) {
    return static_cast<double>(next() >> 11) * 0x1.0p-53 < probability;
  }
  Duration between(Duration least, Duration most) {
    return least + static_cast<Duration>(below(static_cast<std::uint64_t>(most - least) + 1));
  }
  void fill(std::vector<std::byte>& bytes) {
    std::size_t at = 0;
    for (; at + 8 <= bytes.size(); at += 8) {
      const std::uint64_t value = next();
      std::memcpy(bytes.data() + at, &value, 8);
    }
    for (; at < bytes.size(); ++at) bytes[at] = static_cast<std::byte>(next());
  }

 private:
  std::uint64_t state_;
};

}  // namespace taco::harp
