// Which of the Nic's addresses a sleeper is woken for when they have room again: those that are
// full, each from when it is until it is not. One that has room would let nobody sleep.
//
// A pure value.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace taco::harp {

class RoomWatch {
 public:
  RoomWatch() { watched_.fill(-1); }

  bool is_empty() const { return count_ == 0; }
  // True: the watch over the address's descriptor has to begin (`full`) or to end.
  bool change(std::uint32_t local_path, int fd, bool full) {
    int& watched = watched_[local_path];
    const int wanted = full ? fd : -1;
    if (watched == wanted) return false;
    count_ += (wanted >= 0 ? 1 : 0) - (watched >= 0 ? 1 : 0);
    watched = wanted;
    return true;
  }

 private:
  static constexpr std::size_t kAddresses = 32;
  std::array<int, kAddresses> watched_;  // descriptors, by address; -1: none
  int count_ = 0;
};

}  // namespace taco::harp
