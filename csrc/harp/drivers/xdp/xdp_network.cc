#include "harp/drivers/xdp/xdp_network.h"

#include <cstdlib>
#include <utility>

#include "base/env.h"
#include "harp/drivers/xdp/xdp.h"

namespace taco::harp {

Result<std::unique_ptr<Nic>> XdpNetwork::open(const NicOptions& options) const {
  const auto env = Env::get();
  if (!env.ok()) return env.status();
  const QueueShare of_rank = queue_share(env.value().harp_xdp_queues, std::getenv("LOCAL_RANK"),
                                         std::getenv("LOCAL_WORLD_SIZE"));
  auto nic = XdpNic::create(options, of_rank.of_engine(options.engine, options.engines));
  if (!nic.ok()) return nic.status();
  return std::unique_ptr<Nic>(std::move(nic).value());
}

}  // namespace taco::harp
