#include "ext/nccl/links.h"

namespace harp::nccl {

Links links_of(const std::vector<Interface>& interfaces) {
  Links links;
  for (const Interface& each : interfaces) links.mbits += static_cast<int>(each.mbits);
  if (interfaces.empty()) return links;
  links.pci = interfaces.front().pci;
  links.number = interfaces.front().hardware_address;
  return links;
}

}  // namespace harp::nccl
