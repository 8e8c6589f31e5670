// Calls of the udp driver to the kernel, counted one by one: this program's own sendmsg(),
// sendmmsg() and getifaddrs() stand before the system's.
#include <dlfcn.h>
#include <ifaddrs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "base/condition.h"
#include "harp/drivers/kernel/kernel_interfaces.h"
#include "harp/drivers/kernel/udp_fixture.h"
#include "support/eventually.h"

namespace {

struct Calls {
  int sent = 0, refused = 0;
};
thread_local Calls calls;
thread_local int dumps_here = 0;
std::atomic<int> dumps{0};

int counted(long result) {
  ++(result >= 0 ? calls.sent : calls.refused);
  return static_cast<int>(result);
}

}  // namespace

extern "C" {

ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  return counted(syscall(SYS_sendmsg, fd, message, flags));
}

int sendmmsg(int fd, mmsghdr* messages, unsigned count, int flags) {
  return counted(syscall(SYS_sendmmsg, fd, messages, count, flags));
}

int getifaddrs(ifaddrs** list) noexcept {
  static const auto theirs = reinterpret_cast<int (*)(ifaddrs**)>(dlsym(RTLD_NEXT, "getifaddrs"));
  ++dumps_here;
  ++dumps;
  return theirs(list);
}

}  // extern "C"

namespace taco::harp {
namespace {

const char* const kMakeInterface =
    "ip link add v0 type veth peer name p0 && ip link set p0 address 02:00:00:00:00:77 up && "
    "ip addr add 10.9.2.1/24 dev v0 && ip link set v0 up && "
    "ip neigh add 10.9.2.2 lladdr 02:00:00:00:00:77 dev v0";

// Runs of segments of so many bytes to a neighbour by v0.
class Runs {
 public:
  explicit Runs(std::size_t mtu) : payload_(random_bytes(kSegments * kMaxBytes)) {
    UdpNicOptions options;
    const auto all = list_interfaces();
    for (const Interface& each : all.value()) {
      const bool v4 = sockaddr_of(each.address)->sa_family == AF_INET;
      if (v4 && each.name == "v0") {
        options.locals = {{.address = each.address, .mtu = mtu}};
      }
    }
    nic_ = nic(options);
    neighbour_ = options.locals.at(0).address;
    inet_pton(AF_INET, "10.9.2.2", neighbour_.bytes.data() + offsetof(sockaddr_in, sin_addr));
    set_port(neighbour_, 7'777);
  }

  std::size_t whole_datagram() const { return nic_->addresses()[0].whole_datagram; }

  // The calls that this takes.
  Calls send(std::size_t segment, int runs) {
    const IoSlice slice{payload_.data(), kSegments * segment};
    const TxPacket run{&neighbour_, 0, {&slice, 1}, slice.bytes, segment};
    const Calls before = calls;
    for (int i = 0; i < runs; ++i) {
      EXPECT_EQ(nic_->send_st({&run, 1}), 1u);
      while (nic_->is_full_st(0)) std::this_thread::yield();
    }
    return {calls.sent - before.sent, calls.refused - before.refused};
  }

  static constexpr int kSegments = 4;

 private:
  static constexpr std::size_t kMaxBytes = 1'200;
  const std::vector<std::byte> payload_;
  std::unique_ptr<UdpNic> nic_;
  Endpoint neighbour_;
};

void check_runs_too_long(std::size_t mtu) {
  constexpr int kRuns = 200;
  Runs runs(mtu);
  const Calls first = runs.send(1'200, kRuns);
  EXPECT_LE(first.refused, 2) << "each run that is refused costs as much as one that leaves";
  EXPECT_GE(first.refused, 1) << "this interface carries such runs, which shows nothing";
  EXPECT_EQ(first.sent, kRuns * Runs::kSegments) << "one by one";
  const Calls shorter = runs.send(500, kRuns);
  EXPECT_EQ(shorter.refused, 0);
  EXPECT_EQ(shorter.sent, kRuns) << "runs that do fit leave in one piece all the same";
  const Calls longest = runs.send(runs.whole_datagram(), kRuns);
  EXPECT_EQ(longest.refused, 0);
  EXPECT_EQ(longest.sent, kRuns);
  const Calls longer = runs.send(runs.whole_datagram() + 1, 1);
  EXPECT_EQ(longer.sent, Runs::kSegments) << "shorter than they need be";
  ASSERT_EQ(system("ip link set v0 mtu 1500"), 0);
  EXPECT_EQ(runs.send(1'200, 300).refused, 0);
  EXPECT_EQ(runs.send(1'200, kRuns).sent, kRuns) << "tried again now and then, they fit by now";
}

class UdpCallsTest : public ::testing::TestWithParam<std::size_t> {};

TEST_P(UdpCallsTest, that_runs_of_some_length_do_not_fit_is_remembered) {
  const std::string mtu = " && ip link set v0 mtu " + std::to_string(GetParam());
  if (!in_a_network(kMakeInterface + mtu, [] { check_runs_too_long(GetParam()); }))
    GTEST_SKIP() << "no right to make a network namespace";
}

INSTANTIATE_TEST_SUITE_P(Mtu, UdpCallsTest, ::testing::Values(576, 800, 1'000));

// A look at the addresses that lasts until it may end.
class HeldLook {
 public:
  void begin() {
    std::unique_lock lock(mutex_);
    thread = std::this_thread::get_id();
    ++looks;
    changed_.wait_for(lock, std::chrono::seconds(60), [this] { return may_end_; });
  }
  void let_go() {
    std::lock_guard lock(mutex_);
    may_end_ = true;
    changed_.notify_all();
  }

  std::atomic<int> looks{0};
  std::atomic<std::thread::id> thread;

 private:
  std::mutex mutex_;
  Condition changed_;
  bool may_end_ = false;
};

void check_looks_at_addresses() {
  HeldLook held;
  UdpNicOptions own = options();
  own.find_more = [&] {
    held.begin();
    return std::vector<NicOptions::Local>();
  };
  auto a = nic(own);
  std::array<RxPacket, 1> none;
  const auto hear = [&] {
    a->look_everywhere_st();
    EXPECT_EQ(a->receive_st(none), 0u);
  };
  const int before_here = dumps_here, before = dumps;
  ASSERT_EQ(system("ip address add 10.9.9.1/32 dev lo"), 0);
  ASSERT_TRUE(testing::eventually([&] {
    hear();
    return held.looks > 0;
  }));
  // The engine goes on meanwhile, and more of the kernel's messages are no more looks.
  for (int i = 2; i <= 20; ++i) {
    const std::string add = "ip address add 10.9.9." + std::to_string(i) + "/32 dev lo";
    ASSERT_EQ(system(add.c_str()), 0);
    hear();
  }
  EXPECT_EQ(held.looks, 1);
  EXPECT_NE(held.thread.load(), std::this_thread::get_id());
  held.let_go();
  ASSERT_TRUE(testing::eventually([&] {
    hear();
    return held.looks == 2;
  })) << "what has changed since a look began is looked at in the next";
  ASSERT_TRUE(testing::eventually([&] {
    hear();
    std::vector<pollfd> wait;
    for (const NicDescriptor& each : a->descriptors()) wait.push_back({each.fd, POLLIN, 0});
    return poll(wait.data(), wait.size(), 100) == 0;
  }));
  EXPECT_EQ(held.looks, 2);
  EXPECT_EQ(dumps_here, before_here) << "the owner's thread has listed all addresses";
  EXPECT_EQ(dumps - before, 2) << "one a look";
}

TEST(UdpLooksTest, addresses_are_listed_once_an_event_and_not_by_the_owner) {
  if (!in_a_network("ip link set lo up", check_looks_at_addresses))
    GTEST_SKIP() << "no right to make a network namespace";
}

}  // namespace
}  // namespace taco::harp
