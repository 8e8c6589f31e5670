#include "harp/drivers/xdp/xdp_network.h"

#include <string>
#include <utility>

#include "base/env.h"
#include "harp/drivers/xdp/xdp.h"

namespace taco::harp {

Result<std::unique_ptr<Nic>> XdpNetwork::open(const NicOptions& options) const {
  const auto env = Env::get();
  if (!env.ok()) return env.status();
  const std::string& setting = env.value().harp_xdp_queues;
  LocalRank self;
  if (setting == "auto") {
    const auto said = LocalRank::from_env("which queues of an interface are this rank's");
    if (!said.ok()) return said.status();
    self = said.value();
  }
  const QueueShare of_rank = queue_share(setting, self);
  auto nic = XdpNic::create(options, of_rank.of_engine(options.engine, options.engines));
  if (!nic.ok()) return nic.status();
  return std::unique_ptr<Nic>(std::move(nic).value());
}

}  // namespace taco::harp
