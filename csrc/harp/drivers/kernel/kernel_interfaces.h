// The interfaces of this host as the kernel lists them.
//
// Any thread.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "harp/network.h"

namespace taco::harp {

// All of them, but for addresses that the host has and cannot use yet, or ever: those of IPv6 that
// the kernel is still asking its neighbours about (tentative), or that one of them has too
// (duplicates).
Result<std::vector<Interface>> list_interfaces();
// Sooner, without mtu, mbits, overlay and the index of the interface, and with addresses that are
// not ready: who looks for routes asks for each peer.
Result<std::vector<Interface>> list_addresses();

// Where the kernel describes its devices, a folder each.
inline constexpr const char* kDevices = "/sys/class/net";
// A bridge or a tunnel.
bool is_overlay(const std::string& interface, const char* devices = kDevices);

}  // namespace taco::harp
