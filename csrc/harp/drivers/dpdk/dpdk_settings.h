// DPDK's devices as TACO_HARP_DPDK and TACO_HARP_DPDK_EAL describe them, and what EAL is told
// because of it.
//
//   TACO_HARP_DPDK="DEVICE[,ARGUMENTS] ADDRESS/PREFIX ... [gateway=ADDRESS] [mtu=N] [slots=N]; ..."
//
// Devices are separated by semicolons. DEVICE and ARGUMENTS are DPDK's own: a PCI address, or the
// name of a virtual device and its arguments.
//
// Pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "harp/drivers/frames/frame_link.h"

namespace taco::harp {

struct DpdkDevice {
  FrameLink link;         // its name is the device's; no port yet
  std::string arguments;  // for DPDK, without the name
  std::size_t mtu = 0;    // 0: the device's
  std::size_t slots = 0;  // of each ring; 0: as many as the device recommends

  bool is_pci() const { return link.name.find(':') != std::string::npos; }
};

// kInvalidArgument names the device and the word that is wrong, and says what is expected.
Result<std::vector<DpdkDevice>> parse_dpdk_devices(const std::string& text);

// The device that an engine has for that one. A memif's is a memif beside it, at the same socket by
// another id, so that engine 1 talks to engine 1 of the peer; engine 0's is the device as it is
// named.
DpdkDevice device_of_engine(const DpdkDevice& device, std::uint32_t engine);
// kInvalidArgument: a device cannot be had by so many engines, and what to do.
Status check_engines(const std::vector<DpdkDevice>& devices, std::uint32_t engines);

struct EalSurroundings {
  std::vector<int> cores;           // that this process may run on
  std::size_t huge_page_bytes = 0;  // that are free
};
// The arguments by which EAL starts: no thread of its own takes a core, no file is left behind, and
// memory comes from huge pages where there are enough. `more` are people's own, separated by
// spaces, and come last. kInvalidArgument: EAL would end the process because of one of them.
Result<std::vector<std::string>> eal_arguments(const std::vector<DpdkDevice>& devices,
                                               const EalSurroundings& surroundings,
                                               const std::string& more);

}  // namespace taco::harp
