// Stands between two processes that speak HARP over UDP: each takes it for the other. It passes on
// what it gets, or not, and slips in what it likes. Test support.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <thread>

#include "harp/nic.h"

namespace taco::testing {

class Relay {
 public:
  // Called on the relay's thread for every datagram from side `from` (0 or 1); false drops it.
  // `back` sends something to where it came from.
  using Back = std::function<void(std::span<const std::byte>)>;
  using Watch =
      std::function<bool(int from, std::span<const std::byte> datagram, const Back& back)>;

  // Between the processes that have published these addresses (Stack::address()).
  Relay(const std::string& first, const std::string& second, Watch watch);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  // The address to give to side `to` as the other side's.
  const std::string& address_for(int to) const { return addresses_[to]; }

 private:
  void run();

  Watch watch_;
  int sockets_[2] = {-1, -1};  // facing side 0, facing side 1
  harp::Endpoint sides_[2];
  std::string addresses_[2];
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

}  // namespace taco::testing
