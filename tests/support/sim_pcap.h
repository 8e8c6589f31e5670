// A packet trace of the simulated network, as Wireshark and tcpdump read it: pcapng, each datagram
// behind the IPv4 and UDP headers of its simulated addresses, the time it left in virtual
// nanoseconds, and as its comment what became of it ("lost", "corrupted", "its link is dead").
// tools/harp.lua shows what is in the datagrams. Test support.
#pragma once

#include <cstdint>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "support/sim_network.h"

namespace taco::harp {

class SimPcap {
 public:
  // Throws std::runtime_error, which names the file, if it cannot be written.
  explicit SimPcap(const std::string& file);
  void write(const SimNetwork::Departure& sent);

 private:
  void block(std::uint32_t type, const std::vector<std::byte>& body);

  const std::string name_;
  std::ofstream file_;
  std::uint16_t identification_ = 0;
};

}  // namespace taco::harp
