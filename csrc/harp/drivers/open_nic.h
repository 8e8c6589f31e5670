// The Nic of this process: the one place that knows which drivers there are.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "base/status.h"
#include "harp/address.h"
#include "harp/nic.h"

namespace taco::harp {

struct NicOptions {
  struct Local {
    Endpoint address;        // port 0: any
    std::size_t mtu = 1500;  // of its interface
    bool spare = false;      // see NicAddress
    // Packets to this network leave by this interface, whatever the routes say. 0: as they say.
    OwnNetwork network;
  };
  std::vector<Local> locals;  // each becomes an address of the Nic, in this order
  // Returns the addresses that the host has by now and that may be used as well, as often as each
  // is to have ports; called when addresses have changed, on a thread of its own. Null: nothing but
  // `locals` ever is.
  std::function<std::vector<Local>()> find_more;
  std::size_t receive_buffer = 0;  // bytes; 0: as much as the system allows, within reason
};

// kResource: an address is not of this host, or its port is taken.
Result<std::unique_ptr<Nic>> open_nic(const NicOptions& options);

}  // namespace taco::harp
