// The kernel's network: its interfaces, its routes and its UDP sockets. Needs nothing but the
// kernel.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "harp/network.h"

namespace taco::harp {

class UdpNetwork : public Network {
 public:
  std::string_view name() const override { return "udp"; }
  Result<std::vector<Interface>> interfaces() const override;
  RouteLookup routes() const override;
  bool crosses_router(const Endpoint& destination) const override;
  Result<std::unique_ptr<Nic>> open(const NicOptions& options) const override;
};

}  // namespace taco::harp
