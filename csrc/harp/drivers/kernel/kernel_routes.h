// Routes as the kernel has them, with one exception: of two interfaces on one network the kernel
// sends everything by one, and both are used here.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "base/own_fd.h"
#include "harp/network.h"

namespace taco::harp {

// The routes of one moment: lists the host's addresses once, and asks by sockets that it keeps,
// whether about one destination or thousands. One thread.
class KernelRoutes {
 public:
  // From where this host reaches it, as RouteLookup has it.
  std::vector<Endpoint> sources_of(const Endpoint& destination);

 private:
  std::optional<Endpoint> choice_for(const Endpoint& destination);
  int socket_of(int family);  // -1: the kernel has none

  std::optional<std::vector<Interface>> addresses_;
  OwnFd v4_, v6_;
};

// `first`, from which the kernel would send to `destination`; and, if that is a neighbour, one of
// each other interface on its network. No bridges or tunnels.
std::vector<Endpoint> sources_towards(const Endpoint& destination, const Endpoint& first,
                                      const std::vector<Interface>& all);

// As RouterLookup has it. Any thread.
bool crosses_router(const Endpoint& destination);

}  // namespace taco::harp
