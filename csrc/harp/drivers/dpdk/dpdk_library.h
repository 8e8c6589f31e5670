// The face of libharp_dpdk.so, which the transport loads when DPDK is asked for: all that knows
// DPDK's headers is in that library, and all that knows the protocol is not.
//
// start() once a process, before any open(); any thread, one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "harp/drivers/frames/frame_port.h"

namespace taco::harp {

struct DpdkPortOptions {
  std::string device;     // "net_memif0" or "0000:00:06.0"
  std::string arguments;  // "role=server,socket=/run/a.sock"
  std::size_t mtu = 0;    // 0: the device's
  std::size_t slots = 0;  // of each ring; 0: as many as the device recommends, or 1,024
};

struct DpdkLibrary {
  // Grows with every change of this structure, and of what it leads to: the library and its user
  // are of one build.
  static constexpr std::uint32_t kVersion = 3;
  std::uint32_t version = 0;

  const char* (*dpdk_version)() = nullptr;
  // EAL's start by these arguments, the first of which is a program's name. The calling thread's
  // affinity may be another one afterwards. What EAL has to say goes to `log`, a line at a time.
  Status (*start)(const std::vector<std::string>& arguments,
                  void (*log)(const char* line)) = nullptr;
  Result<std::unique_ptr<FramePort>> (*open)(const DpdkPortOptions& options) = nullptr;
};

// The one symbol of the library.
inline constexpr const char* kDpdkLibrarySymbol = "taco_harp_dpdk";

}  // namespace taco::harp
