// The network as devices of DPDK see it, which TACO_HARP_DPDK describes: the kernel knows nothing
// of most of them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "harp/drivers/dpdk/dpdk_settings.h"
#include "harp/network.h"

namespace taco::harp {

// See FrameNicOptions.
struct DpdkNicSettings {
  bool poll_always = false;
  bool needs_checksums = false;
};

class DpdkNetwork final : public Network {
 public:
  // By the environment. Nothing is loaded, started or opened before anybody asks for interfaces.
  static Result<std::shared_ptr<const Network>> create();
  DpdkNetwork(std::vector<DpdkDevice> devices, std::string eal_arguments, DpdkNicSettings nic = {});

  std::string_view name() const override { return "dpdk"; }
  Status check_engines(std::uint32_t engines) const override {
    return taco::harp::check_engines(devices_, engines);
  }
  Result<std::vector<Interface>> interfaces() const override;
  RouteLookup routes() const override;
  bool crosses_router(const Endpoint& destination) const override;
  Result<std::unique_ptr<Nic>> open(const NicOptions& options) const override;

 private:
  std::vector<FrameLink> described() const;

  const std::vector<DpdkDevice> devices_;
  const std::string eal_arguments_;
  const DpdkNicSettings nic_;
};

}  // namespace taco::harp
