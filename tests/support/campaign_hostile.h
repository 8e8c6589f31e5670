// Somebody on the network who sees what others send and sends what he likes, from whatever address,
// but cannot keep a packet from arriving and has no key: copies, damaged and cut copies, forged
// headers, resets, other versions, nonsense. Test support.
#pragma once

#include <cstdint>
#include <vector>

#include "support/sim_network.h"
#include "support/sim_wire.h"

namespace taco::harp {

class Hostile {
 public:
  // Sends from the addresses of `nodes` hosts and of one that does not exist.
  Hostile(SimRandom& random, SimNetwork& network, std::uint32_t nodes)
      : random_(random), network_(network), nodes_(nodes) {}

  // A datagram leaves that he can read.
  void see(const SimNetwork::Departure& sent);
  // May he quote packets in resets? That ends a peer that gives no sign of life for a second.
  void allow_resets(bool allow) { resets_ = allow; }
  // Sends one.
  void attack();
  // Sends one that looks as if it belonged to a session, but for the seal. False: he knows of none.
  bool speak();
  // Sends a copy of a hello, from the beginning on, or of another packet, when many more have been
  // seen since. False: he has none.
  bool repeat_hello() { return repeat(hellos_); }
  bool repeat_late() { return repeat(old_); }

 private:
  struct Seen {
    SimPlace from, to;
    Datagram bytes;
  };
  SimPlace anywhere();
  Datagram nonsense();
  Datagram with_any_header();
  void forge_from(const Seen& seen);
  void replay(const Seen& seen);
  bool repeat(const std::vector<Seen>& from);
  void send_reset(const Seen& seen);
  void speak_segment(const Seen& seen);

  static constexpr std::size_t kRemembered = 64;
  // Every so many packets one of the old ones makes room for what comes.
  static constexpr double kKept = 1.0 / 16;
  SimRandom& random_;
  SimNetwork& network_;
  const std::uint32_t nodes_;
  bool resets_ = false;
  std::vector<Seen> seen_;  // newest
  std::vector<Seen> hellos_, old_;
  std::size_t next_ = 0;
};

}  // namespace taco::harp
