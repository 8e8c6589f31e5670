// Ranks of one host that use the queues of one interface beside each other. The host is a network
// namespace: needs root and a kernel with AF_XDP; skipped with the reason elsewhere.
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <net/if.h>
#include <poll.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <string>
#include <vector>

#include "harp/drivers/networks.h"
#include "harp/drivers/xdp/queue_share.h"
#include "harp/drivers/xdp/xdp.h"
#include "harp/drivers/xdp/xdp_here.h"
#include "support/eventually.h"
#include "support/ip.h"
#include "support/network.h"
#include "support/processes.h"

namespace taco::harp {
namespace {

using ::taco::testing::Fellowship;
using ::taco::testing::Network;
using ::taco::testing::ProcessOptions;
using ::taco::testing::run_processes;

using Queues = std::vector<std::uint32_t>;

constexpr Duration kLimit = 10 * kSecond;
constexpr std::uint32_t kPorts = 16;

NicOptions ports_at(const char* address, std::size_t count) {
  NicOptions options;
  for (std::size_t i = 0; i < count; ++i) options.locals.push_back({ip(address), 1500});
  return options;
}

TEST(QueueShare, parts_the_queues_of_an_interface) {
  EXPECT_EQ((QueueShare{}.of(3)), (Queues{0, 1, 2}));
  EXPECT_EQ((QueueShare{0, 2}.of(5)), (Queues{0, 2, 4}));
  EXPECT_EQ((QueueShare{1, 2}.of(5)), (Queues{1, 3}));
  EXPECT_EQ((QueueShare{3, 4}.of(4)), (Queues{3}));
  // More shares than queues: who has an interface of his own is served, and else it is taken.
  EXPECT_EQ((QueueShare{1, 2}.of(1)), (Queues{0}));
  EXPECT_EQ((QueueShare{5, 8}.of(4)), (Queues{1}));
}

TEST(QueueShare, is_parted_among_the_engines_of_a_rank) {
  EXPECT_EQ((QueueShare{}.of_engine(0, 1)), QueueShare{});
  EXPECT_EQ((QueueShare{}.of_engine(1, 2).of(5)), (Queues{1, 3}));
  EXPECT_EQ((QueueShare{1, 2}.of_engine(0, 2)), (QueueShare{2, 4, 2}));
  EXPECT_EQ((QueueShare{1, 2}.of_engine(0, 2).of(8)), (Queues{2, 6}));
  EXPECT_EQ((QueueShare{1, 2}.of_engine(1, 2).of(8)), (Queues{3, 7}));
  // On an interface of its own, a rank's engines never have the same queue.
  EXPECT_EQ((QueueShare{1, 3}.of_engine(0, 2).of(3)), (Queues{2}));
  EXPECT_EQ((QueueShare{1, 3}.of_engine(1, 2).of(3)), (Queues{0}));
}

TEST(QueueShare, is_what_the_setting_says_or_else_the_launcher) {
  EXPECT_EQ(queue_share("auto", {}), QueueShare{});
  EXPECT_EQ(queue_share("auto", {1, 4}), (QueueShare{1, 4}));
  EXPECT_EQ(queue_share("all", {1, 4}), QueueShare{});
  EXPECT_EQ(queue_share("2/3", {1, 4}), (QueueShare{2, 3}));
}

// Ranks that all took the launcher's word for "alone" would all take the same queues.
TEST(QueueShare, needs_a_launcher_that_makes_sense) {
  XDP_OR_SKIP();
  HOSTS_OR_SKIP(1, 1500);
  const std::string address = network.address(0);
  const auto statuses =
      run_processes({1, 60 * kSecond, {network.namespaces()[0]}}, [&](Fellowship&) {
        setenv("LOCAL_WORLD_SIZE", "4", 1);
        for (const char* rank : {"4", "x", ""}) {
          setenv("LOCAL_RANK", rank, 1);
          const Status status =
              network_named("xdp").value()->open(ports_at(address.c_str(), 1)).status();
          EXPECT_EQ(status.code(), Code::kInvalidArgument) << rank;
          EXPECT_NE(status.message().find("which queues of an interface are this rank's"),
                    std::string::npos)
              << status.message();
        }
      });
  EXPECT_EQ(statuses, std::vector<int>{0});
}

std::string text_of(std::span<const NicAddress> addresses) {
  std::string text;
  for (const NicAddress& each : addresses) {
    text.append(reinterpret_cast<const char*>(&each.endpoint), sizeof each.endpoint);
  }
  return text;
}

std::vector<Endpoint> endpoints_of(const std::string& text) {
  std::vector<Endpoint> all(text.size() / sizeof(Endpoint));
  if (!all.empty()) memcpy(all.data(), text.data(), text.size());
  return all;
}

// How many datagrams have come, once there are `wanted` or nothing has come for too long.
std::size_t hear(Nic& nic, std::size_t wanted) {
  std::size_t heard = 0;
  for (const Time limit = monotonic_now() + kLimit; heard < wanted && monotonic_now() < limit;) {
    std::vector<pollfd> all;
    for (const NicDescriptor& each : nic.descriptors()) {
      if (each.fd >= 0) all.push_back({each.fd, POLLIN, 0});
    }
    poll(all.data(), all.size(), 20);
    nic.look_everywhere_st();
    std::array<RxPacket, Nic::kReceiveBurst> packets;
    for (std::size_t got = packets.size(); got == packets.size(); heard += got) {
      got = nic.receive_st(packets);
    }
  }
  return heard;
}

// From every port of ours to every one of theirs: as many flows, which the interface spreads.
void send_by_many_flows(Nic& nic, const std::vector<Endpoint>& to) {
  const std::array<std::byte, 50> bytes{};
  const IoSlice slice{bytes.data(), bytes.size()};
  for (std::uint32_t from = 0; from < kPorts; ++from) {
    for (const Endpoint& each : to) {
      const TxPacket packet{&each, from, {&slice, 1}, bytes.size()};
      EXPECT_EQ(nic.send_st({&packet, 1}), 1u);
    }
  }
}

// The ranks of the story: two share the queues of a host's cable, a third takes the place of the
// first after its death, and a process on another host sends to whoever there is.
enum : int { kFirst, kOther, kSuccessor, kSender };

class SharedCable {
 public:
  SharedCable(const Network& network, Fellowship& fellowship)
      : network_(network), fellowship_(fellowship), me_(fellowship.rank()) {}

  void lay() {
    if (me_ == kFirst) {
      ASSERT_TRUE(network_.lay_cable(2));
    }
    fellowship_.barrier();
    if (me_ == kSender) plain_ = open_plain(ports_at("10.99.1.2", kPorts));
    fellowship_.barrier();
  }

  // Both ranks hear all that is theirs, by whichever queue it comes.
  void both_are_heard() {
    if (me_ == kFirst || me_ == kOther) nic_ = open_share(me_);
    tell_addresses();
    if (me_ == kSender) {
      send_by_many_flows(*plain_, endpoints_[kFirst]);
      send_by_many_flows(*plain_, endpoints_[kOther]);
    }
    if (nic_ != nullptr) {
      EXPECT_EQ(hear(*nic_, kPorts * kPorts), kPorts * kPorts);
      EXPECT_GT(nic_->counters().received_by_ring, 0u) << "by its own queue";
      EXPECT_GT(nic_->counters().received_by_socket, 0u) << "by the other's";
      EXPECT_EQ(nic_->counters().damaged, 0u);
    }
    fellowship_.barrier();
  }

  // The one that brought the program ends without a word, and the other goes on.
  void one_outlives_the_other() {
    if (me_ == kFirst) _exit(0);
    fellowship_.barrier();
    if (me_ == kSender) send_by_many_flows(*plain_, endpoints_[kOther]);
    if (me_ == kOther) {
      const std::uint64_t before = nic_->counters().received_by_ring;
      EXPECT_EQ(hear(*nic_, kPorts * kPorts), kPorts * kPorts);
      EXPECT_GT(nic_->counters().received_by_ring, before);
    }
    fellowship_.barrier();
  }

  // The dead one's queue is free, and datagrams to its ports go to whom the kernel says.
  void a_successor_is_heard() {
    const Endpoint inherited = endpoints_[kFirst][0];
    if (me_ == kSuccessor) {
      nic_ = open_share(0);
      NicOptions heir;
      heir.locals = {{inherited, 1500}};
      plain_ = open_plain(heir);
    }
    tell_addresses();
    if (me_ == kSender) {
      send_by_many_flows(*plain_, endpoints_[kSuccessor]);
      send_by_many_flows(*plain_, {inherited});
    }
    if (me_ == kSuccessor) {
      EXPECT_EQ(hear(*nic_, kPorts * kPorts), kPorts * kPorts);
      EXPECT_GT(nic_->counters().received_by_ring, 0u);
      EXPECT_EQ(hear(*plain_, kPorts), kPorts);
      EXPECT_EQ(nic_->counters().damaged, 0u);
    }
    fellowship_.barrier();
  }

 private:
  static std::unique_ptr<XdpNic> open_share(int number) {
    const QueueShare share{static_cast<std::uint32_t>(number), 2};
    auto nic = XdpNic::create(ports_at("10.99.1.1", kPorts), share);
    EXPECT_TRUE(nic.ok()) << nic.status().message();
    return std::move(nic).value();
  }
  static std::unique_ptr<Nic> open_plain(const NicOptions& options) {
    return std::move(network_named("udp").value()->open(options)).value();
  }
  void tell_addresses() {
    endpoints_.clear();
    for (const std::string& each :
         fellowship_.all_gather(nic_ != nullptr ? text_of(nic_->addresses()) : "")) {
      endpoints_.push_back(endpoints_of(each));
    }
  }

  const Network& network_;
  Fellowship& fellowship_;
  const int me_;
  std::unique_ptr<XdpNic> nic_;
  std::unique_ptr<Nic> plain_;                    // without rings
  std::vector<std::vector<Endpoint>> endpoints_;  // by rank
};

TEST(XdpSharing, ranks_share_an_interface_by_its_queues_and_outlive_each_other) {
  XDP_OR_SKIP();
  HOSTS_OR_SKIP(2, 1500);
  const auto& hosts = network.namespaces();
  const ProcessOptions ranks{4, 60 * kSecond, {hosts[0], hosts[0], hosts[0], hosts[1]}};
  const auto statuses = run_processes(ranks, [&](Fellowship& fellowship) {
    SharedCable cable(network, fellowship);
    cable.lay();
    cable.both_are_heard();
    cable.one_outlives_the_other();
    cable.a_successor_is_heard();
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0, 0, 0}));
}

// A veth's driver has no zero copy: the kernel is asked without conditions, and says what it does.
TEST(XdpSharing, an_interface_whose_driver_has_no_zero_copy_is_used_with_copies) {
  XDP_OR_SKIP();
  HOSTS_OR_SKIP(1, 1500);
  const auto statuses =
      run_processes({1, 60 * kSecond, {network.namespaces()[0]}}, [&](Fellowship&) {
        const auto interface = XdpInterface::make("eth0", {});
        ASSERT_TRUE(interface.ok()) << interface.status().message();
        const auto taken = interface.value()->take();
        ASSERT_TRUE(taken.ok()) << taken.status().message();
        EXPECT_TRUE(taken.value());
        EXPECT_TRUE(interface.value()->sender().copies());
      });
  EXPECT_EQ(statuses, std::vector<int>{0});
}

constexpr unsigned kSystemAdministration = 21;  // CAP_SYS_ADMIN
void give_up_right(unsigned right) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct rights[2] = {};
  ASSERT_EQ(syscall(SYS_capget, &header, rights), 0);
  rights[right / 32].effective &= ~(1u << right % 32);
  ASSERT_EQ(syscall(SYS_capset, &header, rights), 0);
}

TEST(XdpSharing, a_program_that_is_somebody_else_s_is_named_as_far_as_rights_go) {
  XDP_OR_SKIP();
  HOSTS_OR_SKIP(1, 1500);
  const auto statuses =
      run_processes({1, 60 * kSecond, {network.namespaces()[0]}}, [&](Fellowship&) {
        BpfProgram passes;
        passes.set(BPF_REG_0, XDP_PASS);
        passes.leave();
        const OwnFd program = std::move(load_xdp_program(passes.instructions(), "other")).value();
        const auto index = if_nametoindex("eth0");
        const OwnFd link = std::move(attach_xdp_program(program, index, XdpMode::kNative)).value();
        ASSERT_TRUE(link);
        const auto refused = XdpNic::create(ports_at(network.address(0).c_str(), 1), {}).status();
        EXPECT_NE(refused.message().find("another XDP program is there already, \"other\""),
                  std::string::npos)
            << refused.message();
        give_up_right(kSystemAdministration);
        const auto unseen = XdpNic::create(ports_at(network.address(0).c_str(), 1), {}).status();
        EXPECT_NE(unseen.message().find("those that share its program CAP_SYS_ADMIN"),
                  std::string::npos)
            << unseen.message();
      });
  EXPECT_EQ(statuses, std::vector<int>{0});
}

// Attaches a program to eth0, and says how a Nic there is refused.
std::string refusal_beside(std::span<const bpf_insn> instructions, const std::string& address) {
  const OwnFd program = load_xdp_program(instructions, XdpFilter::kProgramName).value();
  const auto index = if_nametoindex("eth0");
  OwnFd link;
  EXPECT_TRUE(testing::eventually([&] {
    link = attach_xdp_program(program, index, XdpMode::kNative).value();
    return static_cast<bool>(link);
  })) << "a program takes a moment to go";
  return XdpNic::create(ports_at(address.c_str(), 1), {}).status().message();
}

TEST(XdpSharing, a_program_that_bears_our_name_and_is_not_ours_is_refused) {
  XDP_OR_SKIP();
  HOSTS_OR_SKIP(1, 1500);
  const std::string address = network.address(0);
  const auto statuses =
      run_processes({1, 60 * kSecond, {network.namespaces()[0]}}, [&](Fellowship&) {
        BpfProgram passes;
        passes.set(BPF_REG_0, XDP_PASS);
        passes.leave();
        const std::string other = refusal_beside(passes.instructions(), address);
        EXPECT_NE(other.find("\"taco_harp_2\": it does something else"), std::string::npos)
            << other;
        // Ours, over maps that have room for fewer.
        BpfMapShape few = XdpFilter::shape_of_addresses();
        few.entries = 1;
        const OwnFd addresses = create_bpf_map(few).value();
        const OwnFd sockets = create_bpf_map(XdpFilter::shape_of_sockets()).value();
        const BpfProgram ours = XdpFilter::program(addresses, sockets);
        const std::string small = refusal_beside(ours.instructions(), address);
        EXPECT_NE(small.find("\"taco_harp_2\": its maps are others"), std::string::npos) << small;
      });
  EXPECT_EQ(statuses, std::vector<int>{0});
}

}  // namespace
}  // namespace taco::harp
