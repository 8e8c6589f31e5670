// The host as a device: memory that moves (host_memory.h) and streams that are threads
// (host_stream.h). What runs on it runs on the processor, as torch's CPU tensors do.
#pragma once

#include <functional>
#include <memory>

#include "device/device.h"
#include "device/host_memory.h"

namespace taco::device {

struct HostOptions {
  HostMemory::Options memory;
  std::function<void()> before_each;  // for tests: host_stream.h
};

// kInvalidArgument names the option that cannot be; kResource: not enough addresses.
Result<std::unique_ptr<Device>> make_host_device(const HostOptions& options);

}  // namespace taco::device
