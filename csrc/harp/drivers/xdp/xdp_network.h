// The kernel's interfaces and routes, whose frames go past the kernel's IP and UDP by AF_XDP where
// they can. Needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF, or root.
#pragma once

#include <memory>
#include <string_view>

#include "harp/drivers/kernel/udp_network.h"

namespace taco::harp {

class XdpNetwork final : public UdpNetwork {
 public:
  std::string_view name() const override { return "xdp"; }
  Result<std::unique_ptr<Nic>> open(const NicOptions& options) const override;
};

}  // namespace taco::harp
