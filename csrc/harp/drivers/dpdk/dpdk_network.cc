#include "harp/drivers/dpdk/dpdk_network.h"

#include <algorithm>
#include <utility>

#include "base/env.h"
#include "harp/drivers/dpdk/dpdk_devices.h"
#include "harp/drivers/frames/ethernet.h"
#include "harp/drivers/frames/frame_nic.h"

namespace taco::harp {

Result<std::shared_ptr<const Network>> DpdkNetwork::create() {
  const auto env = Env::get();
  if (!env.ok()) return env.status();
  auto devices = parse_dpdk_devices(env.value().harp_dpdk);
  if (!devices.ok()) return devices.status();
  const DpdkNicSettings nic{.poll_always = env.value().harp_poll == "always",
                            .needs_checksums = env.value().harp_checksum == "kernel"};
  return std::shared_ptr<const Network>(std::make_shared<const DpdkNetwork>(
      std::move(devices).value(), env.value().harp_dpdk_eal, nic));
}

DpdkNetwork::DpdkNetwork(std::vector<DpdkDevice> devices, std::string eal_arguments,
                         DpdkNicSettings nic)
    : devices_(std::move(devices)), eal_arguments_(std::move(eal_arguments)), nic_(nic) {}

std::vector<FrameLink> DpdkNetwork::described() const {
  std::vector<FrameLink> links;
  for (const DpdkDevice& device : devices_) links.push_back(device.link);
  return links;
}

Result<std::vector<Interface>> DpdkNetwork::interfaces() const {
  const auto links = dpdk_links(devices_, eal_arguments_);
  if (!links.ok()) return links.status();
  return interfaces_of(links.value());
}

RouteLookup DpdkNetwork::routes() const {
  return [links = described()](const Endpoint& destination) {
    return sources_towards(links, destination);
  };
}

bool DpdkNetwork::crosses_router(const Endpoint& destination) const {
  return std::ranges::none_of(devices_, [&](const DpdkDevice& device) {
    return std::ranges::any_of(device.link.addresses, [&](const FrameLink::Own& own) {
      return is_ipv6(own.address) == is_ipv6(destination) &&
             same_network(own.address, destination, own.prefix);
    });
  });
}

Result<std::unique_ptr<Nic>> DpdkNetwork::open(const NicOptions& options) const {
  auto links = dpdk_links(devices_, eal_arguments_, options.engine);
  if (!links.ok()) return links.status();
  std::shared_ptr<void> right = borrow_dpdk_links(options.engine);
  if (right == nullptr) {
    return Status(Code::kResource,
                  "DPDK's devices are used by another transport of this process, and can be used "
                  "by one at a time");
  }
  FrameNicOptions frame_options{options};
  frame_options.poll_always = nic_.poll_always;
  frame_options.needs_checksums = nic_.needs_checksums;
  // The right ends with the last port that the Nic holds.
  for (FrameLink& link : links.value()) {
    FramePort* const port = link.port.get();
    auto both = std::make_shared<std::pair<std::shared_ptr<void>, std::shared_ptr<FramePort>>>(
        right, std::move(link.port));
    link.port = std::shared_ptr<FramePort>(std::move(both), port);
  }
  right.reset();
  auto nic = FrameNic::create(frame_options, std::move(links).value());
  if (!nic.ok()) return nic.status();
  return std::unique_ptr<Nic>(std::move(nic).value());
}

}  // namespace taco::harp
