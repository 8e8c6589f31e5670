#include "support/relay.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "harp/address.h"

namespace taco::testing {
namespace {

constexpr int kPollMs = 20;  // how long the end may take

}  // namespace

Relay::Relay(const std::string& first, const std::string& second, Watch watch)
    : watch_(std::move(watch)) {
  const harp::Address published[2] = {harp::decode(first).value(), harp::decode(second).value()};
  for (int side = 0; side < 2; ++side) {
    sides_[side] = published[side].paths.front().endpoint;
    // Where the other side is, so that the same route leads here.
    harp::Address other = published[1 - side];
    harp::PathAddress path = other.paths.front();
    harp::set_port(path.endpoint, 0);
    const sockaddr* wanted = harp::sockaddr_of(path.endpoint);
    sockets_[side] = socket(wanted->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_storage bound{};
    socklen_t length = sizeof bound;
    EXPECT_EQ(bind(sockets_[side], wanted, path.endpoint.size), 0);
    EXPECT_EQ(getsockname(sockets_[side], reinterpret_cast<sockaddr*>(&bound), &length), 0);
    path.endpoint = harp::endpoint_of(reinterpret_cast<sockaddr*>(&bound));
    other.paths = {path};
    addresses_[side] = harp::encode(other);
  }
  thread_ = std::thread([this] { run(); });
}

Relay::~Relay() {
  ended_.store(true);
  thread_.join();
  for (const int descriptor : sockets_) close(descriptor);
}

void Relay::run() {
  std::vector<std::byte> buffer(65'536);
  while (!ended_.load()) {
    pollfd ready[2] = {{sockets_[0], POLLIN, 0}, {sockets_[1], POLLIN, 0}};
    if (poll(ready, 2, kPollMs) <= 0) continue;
    for (int side = 0; side < 2; ++side) {
      if ((ready[side].revents & POLLIN) == 0) continue;
      const ssize_t bytes = recv(sockets_[side], buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (bytes < 0) continue;
      const std::span<const std::byte> datagram(buffer.data(), static_cast<std::size_t>(bytes));
      const auto send_to = [&](int to, std::span<const std::byte> data) {
        sendto(sockets_[to], data.data(), data.size(), 0, harp::sockaddr_of(sides_[to]),
               sides_[to].size);
      };
      const bool pass =
          watch_(side, datagram, [&](std::span<const std::byte> data) { send_to(side, data); });
      if (pass) send_to(1 - side, datagram);
    }
  }
}

}  // namespace taco::testing
