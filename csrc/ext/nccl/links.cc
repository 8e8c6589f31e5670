#include "ext/nccl/links.h"

#include <ctype.h>
#include <limits.h>
#include <stdlib.h>

#include <charconv>
#include <string_view>

#include "base/file.h"

namespace harp::nccl {
namespace {

// "0000:3b:00.1"
bool is_pci_address(std::string_view name) {
  return name.size() >= 12 && name[name.size() - 2] == '.' && name[name.size() - 5] == ':' &&
         name[name.size() - 8] == ':';
}

// The device of an interface may be one of a driver's own upon a PCI device, as virtio's is.
std::string pci_of(const std::string& interface) {
  char resolved[PATH_MAX];
  if (realpath((interface + "/device").c_str(), resolved) == nullptr) return "";
  std::string folder = resolved;
  while (!folder.empty()) {
    const std::size_t slash = folder.rfind('/');
    if (slash == std::string::npos) break;
    if (is_pci_address(std::string_view(folder).substr(slash + 1))) return folder;
    folder.resize(slash);
  }
  return "";
}

// "02:42:ac:11:00:02"
std::uint64_t number_of(const std::string& hardware_address) {
  std::uint64_t number = 0;
  for (const char each : hardware_address) {
    if (!isxdigit(static_cast<unsigned char>(each))) continue;
    std::uint64_t digit = 0;
    std::from_chars(&each, &each + 1, digit, 16);
    number = number << 4 | digit;
  }
  return number;
}

}  // namespace

Links links_of(const std::vector<Interface>& interfaces, const std::string& net) {
  Links links;
  for (const Interface& each : interfaces) links.mbits += static_cast<int>(each.mbits);
  if (interfaces.empty()) return links;
  const std::string first = net + "/" + interfaces.front().name;
  links.pci = pci_of(first);
  links.number = number_of(taco::read_file(first + "/address"));
  return links;
}

}  // namespace harp::nccl
