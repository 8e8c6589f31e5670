// The XDP program that runs at an interface, as a process finds it that did not put it there.
//
// Any thread, one at a time.
#pragma once

#include <linux/bpf.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/own_fd.h"
#include "base/status.h"
#include "harp/drivers/xdp/bpf.h"

namespace taco::harp {

struct AttachedProgram {
  std::string name;
  BpfTag tag{};
  XdpMode mode = XdpMode::kNative;
  OwnFd link;  // the program stays while somebody has it; empty: it hangs on none, or no longer
  struct Map {
    BpfMapShape shape;
    OwnFd fd;
  };
  std::vector<Map> maps;  // that it uses
};

// None: there is no program, or not any more. Failures name the right that is missing.
Result<std::optional<AttachedProgram>> find_attached_program(std::uint32_t interface);

}  // namespace taco::harp
