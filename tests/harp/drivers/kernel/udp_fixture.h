// The common part of tests of the udp driver. Test support.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>

#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "harp/address.h"
#include "harp/drivers/kernel/udp.h"

namespace taco::harp {

inline Endpoint loopback(bool v6) {
  sockaddr_in v4_address{};
  sockaddr_in6 v6_address{};
  if (!v6) {
    v4_address.sin_family = AF_INET;
    v4_address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return endpoint_of(reinterpret_cast<const sockaddr*>(&v4_address));
  }
  v6_address.sin6_family = AF_INET6;
  v6_address.sin6_addr = in6addr_loopback;
  return endpoint_of(reinterpret_cast<const sockaddr*>(&v6_address));
}

inline UdpNicOptions options(bool v6 = false) {
  UdpNicOptions made;
  made.locals = {{loopback(v6), 1500}};
  return made;
}

inline std::unique_ptr<UdpNic> nic(const UdpNicOptions& wanted) {
  auto made = UdpNic::create(wanted);
  EXPECT_TRUE(made.ok()) << made.status().message();
  return std::move(made).value();
}

inline std::vector<std::byte> random_bytes(std::size_t count) {
  std::mt19937 random(static_cast<unsigned>(count));
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Everything that arrives until `count` datagrams have, each on its own.
inline std::vector<std::string> collect(UdpNic& from, std::size_t count, std::size_t* largest_run) {
  std::vector<std::string> datagrams;
  const Time limit = monotonic_now() + 5 * kSecond;
  while (datagrams.size() < count && monotonic_now() < limit) {
    pollfd wait{from.descriptors()[0].fd, POLLIN, 0};
    poll(&wait, 1, 100);
    std::array<RxPacket, 16> packets;
    const std::size_t got = from.receive_st(packets);
    for (std::size_t i = 0; i < got; ++i) {
      const auto& data = packets[i].data;
      const std::size_t step =
          packets[i].segment_bytes != 0 ? packets[i].segment_bytes : data.size();
      if (largest_run != nullptr) {
        *largest_run = std::max(*largest_run, (data.size() + step - 1) / step);
      }
      for (std::size_t at = 0; at < data.size(); at += step) {
        datagrams.emplace_back(reinterpret_cast<const char*>(data.data()) + at,
                               std::min(step, data.size() - at));
      }
    }
  }
  return datagrams;
}

// Runs `check` where its network can be arranged by `commands`; false where that needs more rights.
// A link that was set up and has a carrier is running a moment later.
template <class Check>
bool in_a_network(const std::string& commands, const Check& check) {
  const char* const running =
      "\n} && while ip -o link | grep LOWER_UP | grep -q 'state [DL]'; do sleep 0.01; done";
  bool alone = false;
  std::thread([&] {
    alone = unshare(CLONE_NEWNET) == 0 && system(("{ " + commands + running).c_str()) == 0;
    if (alone) check();
  }).join();
  return alone;
}

}  // namespace taco::harp
