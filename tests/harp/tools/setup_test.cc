// harp-setup on a host that is made of files: the faults it finds, and how it mends them.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "harp/tools/setup_checks.h"
#include "support/network.h"
#include "support/processes.h"
#include "support/temporary_directory.h"

namespace taco::harp {
namespace {

class Setup : public ::testing::Test {
 protected:
  Setup() {
    host_.root = root_.path();
    host_.max_descriptors = 1'048'576;
    host_.max_locked = SIZE_MAX;
    host_.cores = 2;
    host_.networks = {"eth0 10.0.0.1"};
    host_.devices = {{"eth0", {2, 4, true}}};
    host_.kernel = "6.1.0-18-amd64";
    host_.has_af_xdp = true;
    host_.dpdk = "DPDK 22.11.4";
    write(kBuffers, "8388608\n");
    write(kTransparent, "always [madvise] never\n");
    write(kReserved, "0\n");
    write(kStatus, "Name:\tharp-setup\nCapEff:\t000001ffffffffff\n");
    write(kUsers, "         0          0 4294967295\n");
    write(kMemory, "Hugepagesize:       2048 kB\n");
    write(kFreePages, "256\n");
    write("/sys/module/vfio_pci/version", "0.2\n");
    write("/sys/kernel/iommu_groups/0/type", "DMA\n");
  }

  void write(const char* place, const std::string& text) {
    const std::filesystem::path file = host_.root + place;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::vector<Check> wanting() const {
    std::vector<Check> checks = check_host(host_, std::size_t{4} << 20);
    std::erase_if(checks, [](const Check& check) { return check.good; });
    return checks;
  }

  static constexpr char kBuffers[] = "/proc/sys/net/core/rmem_max";
  static constexpr char kTransparent[] = "/sys/kernel/mm/transparent_hugepage/enabled";
  static constexpr char kReserved[] = "/proc/sys/vm/nr_hugepages";
  static constexpr char kStatus[] = "/proc/self/status";
  static constexpr char kUsers[] = "/proc/self/uid_map";
  static constexpr char kMemory[] = "/proc/meminfo";
  static constexpr char kFreePages[] = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
  const testing::TemporaryDirectory root_;
  Host host_;
};

TEST_F(Setup, finds_nothing_wanting_on_a_good_host) {
  for (const char* driver : {"udp", "xdp", "dpdk"}) {
    host_.driver = driver;
    EXPECT_TRUE(wanting().empty()) << driver << ": " << wanting()[0].found;
  }
}

TEST_F(Setup, wants_as_many_queues_as_cores_or_as_there_can_be) {
  const auto mends = [&](DeviceQueues queues, std::size_t cores) {
    host_.devices[0].queues = queues;
    host_.cores = cores;
    return wanting().empty() ? "" : wanting()[0].mend;
  };
  EXPECT_EQ(mends({1, 8, true}, 4), "ethtool -L eth0 combined 4");
  EXPECT_EQ(wanting()[0].found, "eth0 1 of 8, 4 cores");
  EXPECT_EQ(mends({2, 8, false}, 16), "ethtool -L eth0 rx 8");
  EXPECT_EQ(mends({8, 8, true}, 16), "");
  EXPECT_EQ(mends({4, 8, true}, 4), "");
  EXPECT_EQ(mends({1, 1, false}, 4), "") << "the device says nothing";
  host_.driver = "xdp";
  EXPECT_EQ(mends({1, 8, true}, 16), "ethtool -L eth0 combined 4") << "it sends by the others";
  EXPECT_EQ(mends({4, 8, true}, 16), "");
  EXPECT_EQ(mends({1, 1, true}, 4), "");
  host_.devices[0].is_hardware = false;
  EXPECT_EQ(mends({1, 8, false}, 4), "") << "a veth's sender does the work";
}

TEST_F(Setup, says_what_xdp_lacks) {
  host_.driver = "xdp";
  host_.kernel = "5.4.0-42-generic";
  EXPECT_EQ(wanting().at(0).found, "Linux 5.4.0-42-generic, and xdp needs Linux 5.9 or newer");
  host_.kernel = "6.1.0";
  host_.has_af_xdp = false;
  EXPECT_EQ(wanting().at(0).found, "Linux 6.1.0, built without AF_XDP (CONFIG_XDP_SOCKETS)");
  host_.has_af_xdp = true;
  write(kStatus, "CapEff:\t0000000000002000\n");
  host_.max_locked = std::size_t{8} << 20;
  ASSERT_EQ(wanting().size(), 2u);
  EXPECT_EQ(wanting()[0].found, "this user lacks CAP_NET_ADMIN, CAP_BPF");
  EXPECT_EQ(wanting()[1].found, "8 MiB at most, and 10 MiB are wanted") << "5 MiB a queue";
  write(kStatus, "CapEff:\t000001ffffffffff\n");
  EXPECT_TRUE(wanting().empty()) << "who may lock memory has no limit";
  write(kUsers, "         0       1000          1\n");
  EXPECT_EQ(wanting().at(0).found, "those of a user namespace, and xdp needs them in the first");
  host_.driver = "udp";
  EXPECT_TRUE(wanting().empty()) << "the kernel's UDP needs none of it";
}

TEST_F(Setup, says_what_dpdk_lacks_and_mends_what_it_can) {
  host_.driver = "dpdk";
  host_.dpdk.clear();
  host_.max_locked = std::size_t{8} << 20;
  write(kStatus, "CapEff:\t0000000000000000\n");
  write(kReserved, "2000\n");
  write(kFreePages, "100\n");
  std::filesystem::remove_all(host_.root + "/sys/module/vfio_pci");
  const auto found = wanting();
  ASSERT_EQ(found.size(), 4u);
  EXPECT_EQ(found[0].found, "no library of DPDK's, 22.11 or newer");
  EXPECT_EQ(found[1].found, "8 MiB at most, and hardware wants no limit");
  EXPECT_EQ(found[2].found, "200 MiB of huge pages free, and 256 MiB are wanted");
  EXPECT_EQ(mend(found[2]), "");
  EXPECT_EQ(read_file(host_.root + kReserved), "2028") << "who uses the others keeps them";
  EXPECT_EQ(found[3].mend, "modprobe vfio-pci");
  std::filesystem::remove_all(host_.root + "/sys/kernel/iommu_groups/0");
  EXPECT_EQ(wanting().back().mend,
            "modprobe vfio enable_unsafe_noiommu_mode=1 && modprobe vfio-pci");
  host_.networks.clear();
  host_.uses_pci = false;
  EXPECT_EQ(wanting().size(), 1u) << "devices without hardware need the library alone";
}

TEST_F(Setup, counts_huge_pages_of_every_size_for_dpdk) {
  host_.driver = "dpdk";
  write(kFreePages, "0\n");
  write("/sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages", "1\n");
  EXPECT_TRUE(wanting().empty());
  write("/sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages", "0\n");
  write(kMemory, "Hugepagesize:    1048576 kB\n");
  EXPECT_EQ(wanting().at(0).mend, "sysctl -w vm.nr_hugepages=1") << "one page is enough";
}

TEST_F(Setup, tells_ranks_that_share_an_interface_what_they_need) {
  host_.driver = "xdp";
  write(kStatus, "CapEff:\t0000008000007000\n");
  const auto checks = check_driver(host_);
  const auto rights = std::ranges::find(checks, "rights", &Check::name);
  ASSERT_NE(rights, checks.end());
  EXPECT_TRUE(rights->good);
  EXPECT_EQ(rights->found,
            "enough for one rank on each interface; those that share one need CAP_SYS_ADMIN, too");
}

TEST_F(Setup, mends_socket_buffers_that_are_too_small) {
  write(kBuffers, "212992\n");
  ASSERT_EQ(wanting().size(), 1u);
  EXPECT_EQ(wanting()[0].mend, "sysctl -w net.core.rmem_max=4194304");
  EXPECT_EQ(mend(wanting()[0]), "");
  EXPECT_TRUE(wanting().empty());
  EXPECT_EQ(read_file(host_.root + kBuffers), "4194304");
}

// As in containers of older kernels: there is nothing to look at, and nothing to write to.
TEST_F(Setup, wants_no_socket_buffers_of_a_kernel_that_does_not_show_them) {
  std::filesystem::remove(host_.root + kBuffers);
  EXPECT_TRUE(wanting().empty());
  const auto checks = check_host(host_, std::size_t{4} << 20);
  EXPECT_EQ(checks.at(0).found, "not shown in this namespace");
}

TEST_F(Setup, wants_huge_pages_of_either_kind) {
  write(kTransparent, "always madvise [never]\n");
  ASSERT_EQ(wanting().size(), 1u);
  EXPECT_EQ(wanting()[0].mend, "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled");
  write(kReserved, "64\n");
  EXPECT_TRUE(wanting().empty());
  write(kReserved, "0\n");
  EXPECT_EQ(mend(wanting()[0]), "");
  EXPECT_EQ(read_file(host_.root + kTransparent), "madvise");
}

TEST_F(Setup, says_by_name_what_only_people_can_mend) {
  host_.max_descriptors = 1024;
  host_.networks.clear();
  const auto found = wanting();
  ASSERT_EQ(found.size(), 2u);
  for (const Check& each : found) {
    EXPECT_FALSE(each.mend.empty());
    EXPECT_FALSE(mend(each).empty());
  }
  EXPECT_EQ(found[0].found, "1024 a process, and 4096 are wanted");
}

TEST_F(Setup, says_why_a_file_cannot_be_written) {
  write(kBuffers, "1\n");
  Check check = wanting().at(0);
  check.file = host_.root + "/not/there";
  EXPECT_EQ(mend(check), "No such file or directory");
}

// The environment is read once in a process: nothing may ask for it before.
TEST(SeenHost, reads_the_devices_of_dpdk_without_opening_them) {
  setenv("TACO_HARP_DPDK", "net_memif0,role=client 10.9.0.2/24", 1);
  const SeenHost seen = see_host("dpdk", "");
  unsetenv("TACO_HARP_DPDK");
  EXPECT_EQ(seen.problem, "");
  EXPECT_FALSE(seen.host.uses_pci);
  EXPECT_EQ(seen.host.networks, std::vector<std::string>{"net_memif0 10.9.0.2"});
}

TEST(SeenHost, names_a_driver_that_there_is_not) {
  EXPECT_NE(see_host("pigeon", "").problem.find("\"pigeon\""), std::string::npos);
  EXPECT_EQ(see_host("udp", "").problem, "");
  EXPECT_NE(see_host("udp", "eth77").problem.find("\"eth77\" does not exist"), std::string::npos);
  EXPECT_NE(see_host("udp", "a,^b").problem.find("names and excludes"), std::string::npos);
}

TEST(SeenHost, tells_what_it_is) {
  const Host host = see_host("udp", "").host;
  EXPECT_GE(host.cores, 1u);
  EXPECT_GT(host.max_locked, 0u);
  EXPECT_NE(host.kernel, "");
  for (const Host::Device& each : host.devices) {
    EXPECT_GE(each.queues.now, 1u) << each.name;
    EXPECT_GE(each.queues.most, each.queues.now) << each.name;
  }
}

// Files of /sys may be another network namespace's, where hardware may have the same name.
TEST(SeenHost, knows_what_is_behind_the_devices_of_its_own_network) {
  HOSTS_OR_SKIP(1);
  const std::vector<std::string> spaces{network.namespaces()[0]};
  const auto statuses =
      taco::testing::run_processes({1, 60 * kSecond, spaces}, [](taco::testing::Fellowship&) {
        const Host host = see_host("udp", "eth0").host;
        ASSERT_EQ(host.devices.size(), 1u);
        EXPECT_FALSE(host.devices[0].is_hardware) << "one end of a pair (veth)";
        EXPECT_FALSE(see_host("udp", "lo").host.devices.at(0).is_hardware);
      });
  EXPECT_EQ(statuses, std::vector<int>{0});
}

TEST(SeenHost, has_the_interfaces_that_are_named_or_not_excluded) {
  const Host named = see_host("udp", "lo").host;
  ASSERT_EQ(named.devices.size(), 1u);
  EXPECT_EQ(named.devices[0].name, "lo");
  const Host all = see_host("udp", "").host;
  for (const Host::Device& each : all.devices) {
    for (const Host::Device& other : see_host("udp", "^" + each.name).host.devices) {
      EXPECT_NE(other.name, each.name);
    }
  }
}

}  // namespace
}  // namespace taco::harp
