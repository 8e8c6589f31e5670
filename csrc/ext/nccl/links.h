// The links that HARP sends by, and what they make together: one device, since HARP uses all of
// them for one connection.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "harp/harp.h"

namespace harp::nccl {

struct Links {
  int mbits = 0;             // of all together; 0: no driver says
  std::string pci;           // the first one's device, a folder of /sys; "": it is a virtual one
  std::uint64_t number = 0;  // the first one's hardware address: the same for all processes here
};

Links links_of(const std::vector<Interface>& interfaces);

}  // namespace harp::nccl
