// DPDK in this process: its library, loaded when it is first asked for, EAL, which starts once, and
// the devices, which stay open until the process ends, since EAL does not start again. One Nic uses
// them at a time; a forked child has none.
//
// Any thread.
#pragma once

#include <memory>
#include <vector>

#include "base/status.h"
#include "harp/drivers/dpdk/dpdk_settings.h"
#include "harp/drivers/frames/frame_link.h"

namespace taco::harp {

// The links of the devices, each with its port. Starts EAL and opens the devices when it is first
// called in a process; what failed then is the answer ever after. kInvalidArgument: other devices
// or arguments than the first time.
Result<std::vector<FrameLink>> dpdk_links(const std::vector<DpdkDevice>& devices,
                                          const std::string& eal_arguments);

// The right to use the links until it is dropped. Null: somebody else has it.
std::shared_ptr<void> borrow_dpdk_links();

}  // namespace taco::harp
