// Messages of ICMP and ICMPv6 that say of a datagram that nobody has the port it went to: for
// drivers that see whole frames.
//
// Pure functions; any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "harp/nic.h"

namespace taco::harp {

struct IcmpRefusal {
  Endpoint source;  // of the datagram that was refused
  Refusal refusal;
};

// None: the frame says something else, or is damaged. Anybody can forge one: what it quotes has to
// be looked at.
std::optional<IcmpRefusal> parse_icmp_refusal(std::span<const std::byte> frame);

}  // namespace taco::harp
