#include "ext/nccl/links.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "support/temporary_directory.h"

namespace harp::nccl {
namespace {

class LinksOf : public ::testing::Test {
 protected:
  void attribute(const std::string& name, const std::string& file, const std::string& text) {
    std::filesystem::create_directories(net() / name);
    std::ofstream(net() / name / file) << text;
  }
  void device(const std::string& name, const std::string& folder) {
    const auto target = root() / "devices" / folder;
    std::filesystem::create_directories(target);
    std::filesystem::create_directories(net() / name);
    std::filesystem::create_directory_symlink(target, net() / name / "device");
  }
  std::filesystem::path root() const { return directory_.path(); }
  std::filesystem::path net() const { return root() / "net"; }

  taco::testing::TemporaryDirectory directory_;
};

TEST_F(LinksOf, add_up_and_are_known_by_the_first_one) {
  attribute("eth0", "address", "02:42:ac:11:00:ff\n");
  attribute("eth1", "address", "02:42:ac:11:00:01\n");
  device("eth0", "pci0000:3a/0000:3b:00.1");
  const Links links = links_of({{"eth0", 25'000}, {"eth1", 10'000}, {"lo", 0}}, net().string());
  EXPECT_EQ(links.mbits, 35'000);
  EXPECT_EQ(links.number, 0x0242'ac11'00ffu);
  EXPECT_TRUE(links.pci.ends_with("/devices/pci0000:3a/0000:3b:00.1")) << links.pci;
}

TEST_F(LinksOf, a_driver_s_own_device_lies_in_a_PCI_device) {
  device("eth0", "pci0000:00/0000:00:03.0/virtio1");
  EXPECT_TRUE(links_of({{"eth0", 0}}, net().string()).pci.ends_with("/0000:00:03.0"));
}

TEST_F(LinksOf, without_a_device_are_not_given_one) {
  const Links links = links_of({{"gone", 0}}, net().string());
  EXPECT_EQ(links.mbits, 0);
  EXPECT_EQ(links.pci, "");
  EXPECT_EQ(links_of({}, net().string()).number, 0u);
}

}  // namespace
}  // namespace harp::nccl
