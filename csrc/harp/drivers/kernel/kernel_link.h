// An interface as the kernel describes it. Whoever asks the kernel about one, or hears of one,
// reads it here.
//
// Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

struct nlmsghdr;  // the kernel's

namespace taco::harp {

struct KernelLink {
  std::uint32_t index = 0;
  unsigned flags = 0;  // IFF_*
  int frames = 0;      // ARPHRD_*
  std::string name;
  std::string kind;          // as ip(8) has it, "bridge"; "": it has none, as hardware
  std::uint32_t mtu = 0;     // 0: not told
  std::uint32_t master = 0;  // the bond, team or bridge that it is a part of; 0: of none
  bool has_lower = true;     // false: it leads through no interface, not even itself
  std::vector<std::byte> mac;
  // The device behind it and its bus, "pci" and "0000:3b:00.1". Linux tells since 5.14.
  std::string device, bus;
};

// Nothing: the message is none about an interface (RTM_NEWLINK, RTM_DELLINK), or is too short. A
// bridge tells of its ports, too, by messages of the same types (AF_BRIDGE): one that leaves the
// bridge is said to be deleted, and is still there.
std::optional<KernelLink> read_kernel_link(const nlmsghdr& message);

// All that there are in this network namespace.
Result<std::vector<KernelLink>> list_kernel_links();
// The one of that name. Nothing: there is none, or the kernel does not say.
std::optional<KernelLink> find_kernel_link(const std::string& name);

}  // namespace taco::harp
