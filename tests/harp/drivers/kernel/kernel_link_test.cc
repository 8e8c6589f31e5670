// Reads the kernel's messages about interfaces, and finds the device behind one.
#include "harp/drivers/kernel/kernel_link.h"

#include <gtest/gtest.h>
#include <linux/if_link.h>
#include <net/if.h>
#include <net/if_arp.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "harp/drivers/kernel/netlink.h"
#include "harp/drivers/kernel/pci_device.h"
#include "harp/drivers/xdp/mac_addresses.h"
#include "harp/network.h"
#include "support/temporary_directory.h"

namespace taco::harp {
namespace {

using Mac = std::array<unsigned char, 6>;

constexpr Mac kMac{2, 0x42, 0xac, 0x11, 0, 0xff};

NetlinkRequest message_of(const ifinfomsg& header, std::uint16_t type = RTM_NEWLINK) {
  return NetlinkRequest(type, 1, header);
}

void add_text(NetlinkRequest& message, unsigned short type, const std::string& text) {
  message.add(type, std::as_bytes(std::span(text.c_str(), text.size() + 1)));
}

template <class Value>
void add_value(NetlinkRequest& message, unsigned short type, const Value& value) {
  message.add(type, std::as_bytes(std::span(&value, 1)));
}

// An attribute within another one.
std::vector<std::byte> kind_attribute(const std::string& kind) {
  std::vector<std::byte> bytes(RTA_SPACE(kind.size() + 1));
  rtattr inner{};
  inner.rta_type = IFLA_INFO_KIND;
  inner.rta_len = static_cast<unsigned short>(RTA_LENGTH(kind.size() + 1));
  std::memcpy(bytes.data(), &inner, sizeof inner);
  std::memcpy(bytes.data() + RTA_LENGTH(0), kind.c_str(), kind.size() + 1);
  return bytes;
}

TEST(KernelLink, is_read_whole) {
  ifinfomsg header{};
  header.ifi_index = 7;
  header.ifi_flags = IFF_UP | IFF_RUNNING;
  header.ifi_type = ARPHRD_ETHER;
  NetlinkRequest message = message_of(header);
  add_text(message, IFLA_IFNAME, "eth1");
  add_value(message, IFLA_MTU, std::uint32_t{9000});
  add_value(message, IFLA_MASTER, std::uint32_t{3});
  add_value(message, IFLA_LINK, std::uint32_t{0});
  add_value(message, IFLA_ADDRESS, kMac);
  message.add(IFLA_LINKINFO, kind_attribute("vxlan"));
  add_text(message, 56, "0000:3b:00.1");
  add_text(message, 57, "pci");
  const auto link = read_kernel_link(message.header());
  ASSERT_TRUE(link);
  EXPECT_EQ(link->index, 7u);
  EXPECT_EQ(link->flags, unsigned{IFF_UP | IFF_RUNNING});
  EXPECT_EQ(link->frames, ARPHRD_ETHER);
  EXPECT_EQ(link->name, "eth1");
  EXPECT_EQ(link->mtu, 9000u);
  EXPECT_EQ(link->master, 3u);
  EXPECT_FALSE(link->has_lower);
  EXPECT_EQ(link->kind, "vxlan");
  EXPECT_EQ(link->device, "0000:3b:00.1");
  EXPECT_EQ(link->bus, "pci");
  EXPECT_EQ(hardware_number(link->mac), 0x0242'ac11'00ffu);
}

TEST(KernelLink, without_attributes_says_nothing_of_itself) {
  const auto link = read_kernel_link(message_of(ifinfomsg{}).header());
  ASSERT_TRUE(link);
  EXPECT_TRUE(link->name.empty() && link->kind.empty() && link->mac.empty());
  EXPECT_TRUE(link->has_lower);
}

TEST(KernelLink, is_none_that_a_message_about_something_else_tells_of) {
  ifinfomsg of_bridge{};
  of_bridge.ifi_family = AF_BRIDGE;
  EXPECT_FALSE(read_kernel_link(message_of(of_bridge).header()));
  EXPECT_TRUE(read_kernel_link(message_of(ifinfomsg{}, RTM_DELLINK).header()));
  EXPECT_FALSE(read_kernel_link(message_of(ifinfomsg{}, RTM_NEWADDR).header()));
  EXPECT_FALSE(read_kernel_link(NetlinkRequest(RTM_NEWLINK, 1, std::uint32_t{0}).header()));
}

TEST(KernelLink, of_this_host_is_found_by_its_name) {
  auto all = list_kernel_links();
  ASSERT_TRUE(all.ok()) << all.status().message();
  ASSERT_FALSE(all->empty());
  for (const KernelLink& each : *all) {
    const auto found = find_kernel_link(each.name);
    ASSERT_TRUE(found) << each.name;
    EXPECT_EQ(found->index, each.index);
    EXPECT_EQ(found->mac, each.mac);
  }
  EXPECT_FALSE(find_kernel_link("nosuch0"));
}

TEST(MacAddresses, are_those_of_an_interface_and_of_what_it_is_made_of) {
  const auto mac = [](int last) { return std::vector<std::byte>(6, static_cast<std::byte>(last)); };
  const std::vector<KernelLink> links = {{.index = 1, .mac = mac(1)},
                                         {.index = 2, .mac = mac(2)},
                                         {.index = 3, .master = 2, .mac = mac(3)},
                                         {.index = 4, .master = 9, .mac = mac(4)},
                                         {.index = 5, .master = 2, .mac = {std::byte{5}}}};
  const std::vector<std::uint32_t> bond = {2};
  const auto macs = mac_addresses(links, bond);
  ASSERT_EQ(macs.size(), 2u);
  EXPECT_EQ(macs[0][0], std::byte{2});
  EXPECT_EQ(macs[1][0], std::byte{3});
  const std::vector<std::uint32_t> none = {0};
  EXPECT_TRUE(mac_addresses(links, none).empty());
}

// A /sys of two devices of PCI: one, and virtio's within another one.
class PciFolder : public ::testing::Test {
 protected:
  PciFolder() {
    link_to("bus/pci/devices/0000:3b:00.1", "devices/pci0000:3a/0000:3b:00.1");
    link_to("bus/virtio/devices/virtio1", "devices/pci0000:00/0000:00:03.0/virtio1");
    link_to("class/net/eth0/device", "devices/pci0000:3a/0000:3b:00.1");
  }
  void link_to(const std::string& name, const std::string& folder) {
    const std::filesystem::path at = root() / name, target = root() / folder;
    std::filesystem::create_directories(target);
    std::filesystem::create_directories(at.parent_path());
    std::filesystem::create_directory_symlink(target, at);
  }
  std::filesystem::path root() const { return directory_.path(); }
  std::string of(const KernelLink& link) const { return pci_folder(link, root().string()); }

  testing::TemporaryDirectory directory_;
};

TEST_F(PciFolder, is_where_the_kernel_says_whatever_the_interface_is_called) {
  const std::string folder = of({.name = "lan", .device = "0000:3b:00.1", .bus = "pci"});
  EXPECT_TRUE(folder.ends_with("/devices/pci0000:3a/0000:3b:00.1")) << folder;
}

TEST_F(PciFolder, is_the_one_that_a_driver_s_own_device_lies_in) {
  const std::string folder = of({.name = "eth7", .device = "virtio1", .bus = "virtio"});
  EXPECT_TRUE(folder.ends_with("/devices/pci0000:00/0000:00:03.0")) << folder;
}

TEST_F(PciFolder, is_looked_for_by_name_where_an_older_kernel_tells_of_no_device) {
  EXPECT_TRUE(of({.name = "eth0"}).ends_with("/0000:3b:00.1"));
}

// In a container whose /sys is the host's, another interface may have that name there.
TEST_F(PciFolder, is_none_of_an_interface_that_is_made_in_software) {
  EXPECT_EQ(of({.name = "eth0", .kind = "veth"}), "");
  EXPECT_EQ(of({.name = "lo"}), "");
  EXPECT_EQ(of({.name = "gone", .device = "0000:99:00.0", .bus = "pci"}), "");
}

}  // namespace
}  // namespace taco::harp
