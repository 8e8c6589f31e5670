#include "harp/drivers/open_nic.h"

#include <utility>

#include "harp/drivers/udp.h"

namespace taco::harp {

Result<std::unique_ptr<Nic>> open_nic(const NicOptions& options) {
  auto nic = UdpNic::create({options});
  if (!nic.ok()) return nic.status();
  return std::unique_ptr<Nic>(std::move(nic).value());
}

}  // namespace taco::harp
