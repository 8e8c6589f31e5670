// An engine whose Nic has no room at several addresses: what it sleeps on meanwhile.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include "base/own_fd.h"
#include "harp/engine/engine_call.h"
#include "harp/engine/engine_core.h"
#include "support/eventually.h"
#include "support/ip.h"

namespace taco::harp {
namespace {

// Has two addresses, each of which is full until somebody empties the other end of its descriptor.
class FullNic final : public Nic {
 public:
  FullNic() {
    for (std::uint32_t i = 0; i < kAddresses; ++i) {
      int both[2];
      EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, both), 0);
      ours_[i] = OwnFd(both[0]);
      theirs_[i] = OwnFd(both[1]);
      const std::array<char, 4'096> some{};
      while (write(both[0], some.data(), some.size()) > 0) {
      }
      addresses_.push_back({ip("10.9.9." + std::to_string(i + 1), 4'000), 1472});
      descriptors_.push_back({both[0], i});
    }
  }
  const NicCapabilities& capabilities() const override { return capabilities_; }
  std::span<const NicAddress> addresses() const override { return addresses_; }
  std::span<const NicDescriptor> descriptors() const override { return descriptors_; }
  std::size_t send_st(std::span<const TxPacket> packets) override {
    for (std::size_t i = 0; i < packets.size(); ++i) {
      if (is_full_st(packets[i].local_path)) return i;
      ++sent[packets[i].local_path];
    }
    return packets.size();
  }
  bool is_full_st(std::uint32_t local_path) const override {
    pollfd room{descriptors_[local_path].fd, POLLOUT, 0};
    return poll(&room, 1, 0) == 0;
  }
  std::size_t receive_st(std::span<RxPacket>) override { return 0; }
  void close_st() override {}

  void empty(std::uint32_t local_path) {
    std::array<char, 4'096> some;
    while (read(theirs_[local_path].get(), some.data(), some.size()) > 0) {
    }
  }

  static constexpr std::uint32_t kAddresses = 2;
  std::array<std::atomic<int>, kAddresses> sent{};

 private:
  const NicCapabilities capabilities_;
  std::vector<NicAddress> addresses_;
  std::vector<NicDescriptor> descriptors_;
  std::array<OwnFd, kAddresses> ours_, theirs_;
};

// By how many of this process's epolls somebody would be woken for room there.
int wakers_for_room(int fd) {
  int count = 0;
  for (const auto& each : std::filesystem::directory_iterator("/proc/self/fdinfo")) {
    std::ifstream file(each.path());
    for (std::string line; std::getline(file, line);) {
      if (!line.starts_with("tfd:")) continue;
      std::istringstream words(line);
      std::string name;
      int target = -1;
      unsigned events = 0;
      words >> name >> target >> name >> std::hex >> events;
      count += target == fd && (events & EPOLLOUT) != 0 ? 1 : 0;
    }
  }
  return count;
}

struct Awaited {
  explicit Awaited(std::uint64_t tag) {
    request.key = {1, tag};
    request.max_bytes = sizeof value;
    request.sink = Sink::place(&value);
    request.on_done = [](RecvRequest&, const Status&) {};
  }
  std::uint64_t value = 0;
  RecvRequest request;
};

TEST(FullAddresses, EachIsSleptOnUntilItHasRoomAndNoLonger) {
  EngineOptions options;
  options.own.incarnation = 1;
  options.random = [next = std::uint64_t{1}]() mutable { return ++next; };
  options.routes = [] { return [](const Endpoint&) { return std::vector<Endpoint>(); }; };
  options.spin_us = 0;
  std::unique_ptr<EngineCore> owned;
  PeerTable peers;  // goes before the engine, to which its sessions refer
  auto made = std::make_unique<FullNic>();
  FullNic& nic = *made;
  const std::array<int, 2> fds{nic.descriptors()[0].fd, nic.descriptors()[1].fd};
  auto created = EngineCore::create(options, std::move(made), nullptr, peers);
  ASSERT_TRUE(created.ok()) << created.status().message();
  owned = std::move(created).value();
  EngineCore& engine = *owned;
  // A peer by each address, to whom a hello is to be said.
  std::array<Awaited, 2> awaited{Awaited(0), Awaited(1)};
  for (std::uint32_t i = 0; i < FullNic::kAddresses; ++i) {
    PeerPlan plan;
    plan.address.incarnation = 100 + i;
    const Endpoint there = ip("10.9.9." + std::to_string(100 + i), 4'000);
    plan.routes.push_back({i, {.endpoint = there, .mtu = 1500}});
    plan.address.paths.push_back(plan.routes.back().remote);
    const auto added = peers.add(
        plan.address.incarnation, [&]() -> Result<PeerPlan> { return plan; },
        [&](PeerId id, PeerPlan known) {
          auto peer = std::make_unique<Peer>(id, std::move(known), engine.loop().matching());
          peer->loop = &engine.loop();
          return peer;
        });
    const PeerId id = added.value()->id;
    ASSERT_TRUE(call_on_engine(
        engine, [&](Transport& transport) { transport.recv_st(id, awaited[i].request); }));
  }
  const auto both = [&](int first, int second) {
    return testing::eventually(
        [&] { return wakers_for_room(fds[0]) == first && wakers_for_room(fds[1]) == second; });
  };
  EXPECT_TRUE(both(2, 2)) << "whoever sleeps, a caller or the engine's thread, is to be woken";
  EXPECT_EQ(nic.sent[0] + nic.sent[1], 0);
  nic.empty(1);
  EXPECT_TRUE(both(2, 0)) << "one that has room lets nobody sleep";
  EXPECT_GT(nic.sent[1], 0);
  EXPECT_EQ(nic.sent[0], 0);
  nic.empty(0);
  EXPECT_TRUE(both(0, 0));
  EXPECT_GT(nic.sent[0], 0);
  engine.close(0);
}

}  // namespace
}  // namespace taco::harp
