// DPDK in this process: its library, loaded when it is first asked for, EAL, which starts once, and
// the devices, which stay open until the process ends, since EAL does not start again. Each engine
// has its own, which one Nic uses at a time; a forked child has none.
//
// Any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "harp/drivers/dpdk/dpdk_settings.h"
#include "harp/drivers/frames/frame_link.h"

namespace taco::harp {

// The links of an engine's devices, each with its port. Starts EAL when it is first called in a
// process; if that fails, so does every call. Opens the devices when it is first called for the
// engine, and again where that has failed: what was missing may have come. kInvalidArgument: other
// devices or arguments than the first time.
Result<std::vector<FrameLink>> dpdk_links(const std::vector<DpdkDevice>& devices,
                                          const std::string& eal_arguments,
                                          std::uint32_t engine = 0);

// The right to use the engine's links until it is dropped. Null: somebody else has it.
std::shared_ptr<void> borrow_dpdk_links(std::uint32_t engine);

}  // namespace taco::harp
