#include "harp/drivers/xdp/xdp_network.h"

#include <utility>

#include "harp/drivers/xdp/xdp.h"

namespace taco::harp {

Result<std::unique_ptr<Nic>> XdpNetwork::open(const NicOptions& options) const {
  auto nic = XdpNic::create(options);
  if (!nic.ok()) return nic.status();
  return std::unique_ptr<Nic>(std::move(nic).value());
}

}  // namespace taco::harp
