#include "harp/drivers/kernel/udp_network.h"

#include <utility>

#include "harp/drivers/kernel/kernel_interfaces.h"
#include "harp/drivers/kernel/kernel_routes.h"
#include "harp/drivers/kernel/udp.h"

namespace taco::harp {

Result<std::vector<Interface>> UdpNetwork::interfaces() const { return list_interfaces(); }

RouteLookup UdpNetwork::routes() const {
  return [now = std::make_shared<KernelRoutes>()](const Endpoint& destination) {
    return now->sources_of(destination);
  };
}

bool UdpNetwork::crosses_router(const Endpoint& destination) const {
  return harp::crosses_router(destination);
}

Result<std::unique_ptr<Nic>> UdpNetwork::open(const NicOptions& options) const {
  auto nic = UdpNic::create({options});
  if (!nic.ok()) return nic.status();
  return std::unique_ptr<Nic>(std::move(nic).value());
}

}  // namespace taco::harp
