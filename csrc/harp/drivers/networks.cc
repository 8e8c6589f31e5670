#include "harp/drivers/networks.h"

#include <string>

#include "base/conf_file.h"
#include "harp/drivers/dpdk/dpdk_network.h"
#include "harp/drivers/kernel/udp_network.h"
#include "harp/drivers/xdp/xdp_network.h"

namespace taco::harp {

Result<std::shared_ptr<const Network>> network_named(std::string_view driver) {
  if (driver == "auto" || driver == "udp") {
    return std::shared_ptr<const Network>(std::make_shared<const UdpNetwork>());
  }
  if (driver == "xdp") return std::shared_ptr<const Network>(std::make_shared<const XdpNetwork>());
  if (driver == "dpdk") return DpdkNetwork::create();
  return Status(Code::kInvalidArgument,
                setting_text("TACO_HARP_DRIVER", std::string(driver)) +
                    ": there is no such driver; there are auto, udp, xdp and dpdk");
}

}  // namespace taco::harp
