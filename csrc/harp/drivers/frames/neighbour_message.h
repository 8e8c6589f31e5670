// The messages by which hosts on one network learn each other's MAC addresses: ARP for IPv4,
// neighbour discovery for IPv6 (RFC 826, RFC 4861), in one form. For drivers that have no kernel to
// do it for them.
//
// Pure functions; any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "harp/drivers/frames/ethernet.h"
#include "harp/nic.h"

namespace taco::harp {

struct NeighbourMessage {
  enum class Kind { kSolicitation, kAdvertisement };  // ARP: a request, a reply
  Kind kind = Kind::kSolicitation;
  Endpoint subject;  // the address that is asked about, or told of; port 0, as below
  // The address from which it comes. "Any": a host asks whether somebody else has the subject,
  // before it takes it itself.
  Endpoint sender;
  MacAddress mac{};  // of the sender, or of the subject
};

// None: the frame holds no such message, or a damaged one.
std::optional<NeighbourMessage> parse_neighbour_message(std::span<const std::byte> frame);

inline constexpr std::size_t kMaxNeighbourFrame = kEthernetHeader + kIpv6Header + 32;

// Asks all neighbours for the MAC address of `subject`. Returns the length of the frame, which
// takes kMaxNeighbourFrame at most.
std::size_t write_solicitation(const MacAddress& own_mac, const Endpoint& own,
                               const Endpoint& subject, std::span<std::byte> frame);
// Answers one that asked about `own`.
std::size_t write_advertisement(const MacAddress& own_mac, const Endpoint& own,
                                const NeighbourMessage& solicitation, std::span<std::byte> frame);

// The group at which solicitations about an IPv6 address arrive: frames to this MAC address have
// to be let in.
MacAddress solicited_node_mac(const Endpoint& subject);

}  // namespace taco::harp
