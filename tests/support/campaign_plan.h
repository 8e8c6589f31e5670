// The plan that a seed of the protocol campaign draws: how many processes, over what network, and
// which faults befall them. Test support.
#pragma once

#include <array>
#include <cstdint>

#include "harp/session/sealing.h"
#include "support/sim_network.h"

namespace taco::harp {

enum class Fault : std::uint8_t {
  kLoss,
  kHeavyLoss,  // of every tenth packet or more
  kBursts,
  kDuplication,
  kReordering,
  kFarReordering,  // by 1,000 packets or more
  kCorruption,
  kMtuChange,
  kMtuOfPath,  // of one of several
  kDeathOneWay,
  kDeathBothWays,
  kDeathForGood,  // of one path of several
  kFlapping,
  kMove,     // of a path, to other ports
  kRefused,  // by a firewall, what comes by one path of several
  kAddressLost,
  kAddressRenewed,  // another one takes its place
  kRestart,
  kClockJump,
  kStall,
  kLongStall,  // of half a second or more
  kIncast,
  kHostile,
  kFullNic,
  kFullSwitch,
  kCancel,
  kTrusted,      // corruption where the payload is left to UDP's checksum
  kSpeaks,       // hostile packets with a right connection and checksum, but no seal
  kOldHellos,    // recorded ones, again and again
  kLateReplays,  // of packets, when many have come since
  kSlowTurns,    // of an engine that has work of its own in each
  kOneNetwork,   // for all addresses, so that each reaches any other
};
inline constexpr std::size_t kFaults = static_cast<std::size_t>(Fault::kOneNetwork) + 1;
const char* name_of(Fault fault);

// A count for each kind of fault.
class FaultCounts {
 public:
  std::uint64_t& operator[](Fault fault) { return counts_[static_cast<std::size_t>(fault)]; }
  std::uint64_t operator[](Fault fault) const { return counts_[static_cast<std::size_t>(fault)]; }
  void add(const FaultCounts& other) {
    for (std::size_t i = 0; i < kFaults; ++i) counts_[i] += other.counts_[i];
  }

 private:
  std::array<std::uint64_t, kFaults> counts_{};
};

struct CampaignPlan {
  static CampaignPlan draw(SimRandom& random);
  bool draws(Fault fault) const { return drawn[fault] > 0; }

  std::uint32_t nodes = 2;
  std::uint32_t paths = 1;
  // Each path has an address of its own, unless paths are moved: then all have one.
  std::uint32_t addresses() const { return draws(Fault::kMove) ? 1 : paths; }
  SimNicOptions nic() const;
  SimFaults network;
  FaultCounts drawn;  // 1: this seed's

  // Chances, at every step of the simulation.
  double stall = 0, death = 0, mtu_change = 0, clock_jump = 0, hostile = 0, move = 0;
  double path_mtu_change = 0, refusal = 0, address_loss = 0, renewal = 0, speech = 0;
  double old_hello = 0, late_replay = 0, slow_turns = 0;
  // Faults of an exchange.
  double cancel = 0;
  Security security = Security::kNone;
  wire::Checksum checksum = wire::Checksum::kCrc32c;
  std::uint64_t packets_per_key = kPacketsPerKey;
  bool calm_end = false;  // faults end before the processes say goodbye
};

}  // namespace taco::harp
