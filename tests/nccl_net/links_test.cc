#include "ext/nccl/links.h"

#include <gtest/gtest.h>

namespace harp::nccl {
namespace {

TEST(LinksOf, add_up_and_are_known_by_the_first_one) {
  const Links links = links_of({{"eth0", 25'000, "/sys/devices/pci0000:3a/0000:3b:00.1", 0x42},
                                {"eth1", 10'000, "/sys/devices/pci0000:3a/0000:3b:00.2", 0x43},
                                {"lo", 0}});
  EXPECT_EQ(links.mbits, 35'000);
  EXPECT_EQ(links.number, 0x42u);
  EXPECT_EQ(links.pci, "/sys/devices/pci0000:3a/0000:3b:00.1");
}

TEST(LinksOf, none_are_given_nothing) {
  const Links links = links_of({});
  EXPECT_EQ(links.mbits, 0);
  EXPECT_EQ(links.number, 0u);
  EXPECT_EQ(links.pci, "");
}

}  // namespace
}  // namespace harp::nccl
