// The interfaces of this host as the kernel lists them.
//
// Any thread.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "harp/drivers/kernel/kernel_link.h"
#include "harp/network.h"

namespace taco::harp {

// All of them, but for addresses that the host has and cannot use yet, or ever: those of IPv6 that
// the kernel is still asking its neighbours about (tentative), or that one of them has too
// (duplicates).
Result<std::vector<Interface>> list_interfaces();
// Sooner, without what the device would have to be asked (mbits, pci), and with addresses that are
// not ready: who looks for routes asks for each peer.
Result<std::vector<Interface>> list_addresses();
// The same, of interfaces that have just been listed.
Result<std::vector<Interface>> list_addresses(std::span<const KernelLink> links);

// An interface's kind, as the kernel tells it.
struct LinkKind {
  std::string name;       // as ip(8) has it, "bridge"; "": it has none, as hardware
  int frames = 0;         // ARPHRD_*
  bool has_lower = true;  // false: it leads through no interface, not even itself
};
// A bridge or a tunnel.
bool is_overlay(const LinkKind& kind);

}  // namespace taco::harp
