// The PCI device behind a network interface, by which a program knows what else lies near it.
//
// Any thread.
#pragma once

#include <string>

#include "harp/drivers/kernel/kernel_link.h"

namespace taco::harp {

// Its folder, as "/sys/devices/pci0000:3a/0000:3b:00.1"; "": there is none, as behind interfaces
// that are made in software. A device of a bus of its own, as virtio's, may lie in one of PCI.
// `sys` is /sys but in tests.
std::string pci_folder(const KernelLink& link, const std::string& sys = "/sys");

}  // namespace taco::harp
