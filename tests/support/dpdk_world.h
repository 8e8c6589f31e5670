// Stacks and Networks over DPDK's software devices for tests. EAL starts once a process, so each
// case has processes of its own (support/processes.h).
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdint>
#include <string>
#include <vector>

#include "harp/drivers/dpdk/dpdk_devices.h"
#include "harp/drivers/dpdk/dpdk_settings.h"
#include "harp/engine/stack.h"
#include "harp/tools/exchange.h"
#include "support/stack_world.h"
#include "support/temporary_directory.h"

namespace taco::testing {

// Declares nothing, or skips.
#define DPDK_OR_SKIP()                                             \
  if (dlopen("libharp_dpdk.so", RTLD_NOW | RTLD_LOCAL) == nullptr) \
  GTEST_SKIP() << "DPDK is not here, or was not where this was built: " << dlerror()

inline constexpr Duration kDpdkDeadline = 60 * kSecond;

// The end of a memif cable that this rank has: "net_memifN,... ADDRESSES".
inline std::string memif(const TemporaryDirectory& folder, int rank, int cable,
                         const std::string& addresses) {
  return "net_memif" + std::to_string(cable) + ",id=" + std::to_string(cable) +
         ",socket-abstract=no,socket=" + (folder / std::to_string(cable)) +
         ",role=" + (rank == 0 ? "server " : "client ") + addresses;
}

inline harp::StackOptions over_dpdk(const std::string& devices) {
  setenv("TACO_HARP_DPDK", devices.c_str(), 1);
  harp::StackOptions options;
  options.transport = harp::StackOptions::Force::kUdp;
  options.driver = "dpdk";
  return options;
}

// Both send to each other and look at what has come.
inline Status exchange_with(StackWorld& world, int me, std::size_t bytes, std::uint64_t tag) {
  const int other = 1 - me;
  const auto out = pattern(bytes, 10 * tag + static_cast<std::uint64_t>(me));
  std::vector<std::byte> in(bytes);
  harp::Exchange exchange(*world.stack);
  exchange.send(world.peer(other), {1, tag}, out.data(), out.size());
  exchange.recv(world.peer(other), {1, tag}, harp::Sink::place(in.data()), in.size());
  const Status status = exchange.run(kDpdkDeadline);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(in == pattern(bytes, 10 * tag + static_cast<std::uint64_t>(other)), status.ok());
  return status;
}

// The first device's.
inline harp::FramePortCounters counters_of(const std::string& devices) {
  const auto links = harp::dpdk_links(harp::parse_dpdk_devices(devices).value(), "");
  return links.value().front().port->counters();
}

}  // namespace taco::testing
