// What harp-setup finds on a host that is made of files, and how it mends it.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "harp/tools/setup_checks.h"
#include "support/temporary_directory.h"

namespace taco::harp {
namespace {

class Setup : public ::testing::Test {
 protected:
  Setup() {
    host_.root = root_.path();
    host_.most_descriptors = 1'048'576;
    host_.networks = {"eth0 10.0.0.1"};
    write(kBuffers, "8388608\n");
    write(kTransparent, "always [madvise] never\n");
    write(kReserved, "0\n");
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
  const testing::TemporaryDirectory root_;
  Host host_;
};

TEST_F(Setup, finds_nothing_wanting_on_a_good_host) { EXPECT_TRUE(wanting().empty()); }

TEST_F(Setup, mends_socket_buffers_that_are_too_small) {
  write(kBuffers, "212992\n");
  ASSERT_EQ(wanting().size(), 1u);
  EXPECT_EQ(wanting()[0].mend, "sysctl -w net.core.rmem_max=4194304");
  EXPECT_EQ(mend(wanting()[0]), "");
  EXPECT_TRUE(wanting().empty());
  EXPECT_EQ(read_file(host_.root + kBuffers), "4194304");
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
  host_.most_descriptors = 1024;
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

TEST(SeenHost, names_a_driver_that_there_is_not) {
  EXPECT_NE(see_host("pigeon").problem.find("\"pigeon\""), std::string::npos);
  EXPECT_EQ(see_host("udp").problem, "");
}

}  // namespace
}  // namespace taco::harp
