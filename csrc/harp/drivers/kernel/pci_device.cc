#include "harp/drivers/kernel/pci_device.h"

#include <limits.h>
#include <stdlib.h>

#include <string_view>

namespace taco::harp {

namespace {

// "0000:3b:00.1"
bool is_pci_address(std::string_view name) {
  return name.size() >= 12 && name[name.size() - 2] == '.' && name[name.size() - 5] == ':' &&
         name[name.size() - 8] == ':';
}

// The innermost of PCI's folders on the way to where the link leads.
std::string innermost_of_pci(const std::string& symbolic_link) {
  char resolved[PATH_MAX];
  if (realpath(symbolic_link.c_str(), resolved) == nullptr) return "";
  std::string folder = resolved;
  while (!folder.empty()) {
    const std::size_t slash = folder.rfind('/');
    if (slash == std::string::npos) break;
    if (is_pci_address(std::string_view(folder).substr(slash + 1))) return folder;
    folder.resize(slash);
  }
  return "";
}

}  // namespace

// Buses are the same in all network namespaces; folders of interfaces are those of the namespace
// that /sys was mounted in, where another one may have this one's name. So these are looked into
// only where an older kernel tells of no device, and only for what may be hardware.
std::string pci_folder(const KernelLink& link, const std::string& sys) {
  if (!link.device.empty() && !link.bus.empty()) {
    return innermost_of_pci(sys + "/bus/" + link.bus + "/devices/" + link.device);
  }
  if (!link.kind.empty() || !link.device.empty()) return "";
  return innermost_of_pci(sys + "/class/net/" + link.name + "/device");
}

}  // namespace taco::harp
