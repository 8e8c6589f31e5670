#include "harp/drivers/dpdk/dpdk_settings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "support/ip.h"

namespace taco::harp {
namespace {

TEST(DpdkSettingsTest, devices_have_addresses_and_what_else_is_said_of_them) {
  const auto parsed = parse_dpdk_devices(
      "net_memif0,role=server,socket=/run/a.sock 10.0.0.1/24 fd00::1/64; "
      "0000:00:06.0 10.1.0.5/16 gateway=10.1.0.1 mtu=9000 slots=2048;");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  const std::vector<DpdkDevice>& devices = parsed.value();
  ASSERT_EQ(devices.size(), 2u);
  EXPECT_EQ(devices[0].link.name, "net_memif0");
  EXPECT_EQ(devices[0].arguments, "role=server,socket=/run/a.sock");
  ASSERT_EQ(devices[0].link.addresses.size(), 2u);
  EXPECT_EQ(devices[0].link.addresses[1].address, ip("fd00::1"));
  EXPECT_EQ(devices[0].link.addresses[1].prefix, 64);
  EXPECT_FALSE(devices[0].is_pci());
  EXPECT_TRUE(devices[1].is_pci());
  EXPECT_EQ(devices[1].link.gateways, std::vector<Endpoint>{ip("10.1.0.1")});
  EXPECT_EQ(devices[1].mtu, 9000u);
  EXPECT_EQ(devices[1].slots, 2048u);
}

TEST(DpdkSettingsTest, what_is_wrong_is_named_with_its_device) {
  const auto error_of = [](const std::string& text) {
    return parse_dpdk_devices(text).status().message();
  };
  const struct {
    const char* text;
    const char* named;
  } cases[] = {
      {"", "names no device"},
      {"net_ring0", "no address"},
      {"net_ring0 10.0.0.1", "\"10.0.0.1\""},
      {"net_ring0 10.0.0.1/33", "1 to 32"},
      {"net_ring0 fd00::1/129", "1 to 128"},
      {"net_ring0 10.0.0.256/24", "\"10.0.0.256/24\""},
      {"net_ring0 127.0.0.1/8", "\"127.0.0.1/8\""},
      {"net_ring0 224.0.0.1/8", "\"224.0.0.1/8\""},
      {"net_ring0 10.0.0.1/24 mtu=90", "576 to 9000"},
      {"net_ring0 10.0.0.1/24 mtu=1500x", "\"mtu=1500x\""},
      {"net_ring0 10.0.0.1/24 slots=1", "64 to 16384"},
      {"net_ring0 10.0.0.1/24 gateway=10.0.1.1", "none of the device's networks"},
      {"net_ring0 10.0.0.1/24 gateway=10.0.0.2 gateway=10.0.0.3", "second gateway"},
      {"net_ring0 10.0.0.1/24 speed=9", "unknown key"},
      {"net_ring0 10.0.0.1/24; net_ring0 10.0.1.1/24", "twice"},
      {"net_ring0 10.0.0.1/24; net_ring1 10.0.0.1/16", "another device's"},
  };
  for (const auto& each : cases) {
    const std::string error = error_of(each.text);
    EXPECT_NE(error.find(each.named), std::string::npos) << each.text << ": " << error;
    EXPECT_NE(error.find("expected DEVICE[,ARGUMENTS] ADDRESS/PREFIX"), std::string::npos) << error;
  }
}

TEST(DpdkSettingsTest, eal_pins_nothing_and_takes_huge_pages_where_there_are_enough) {
  const auto devices = parse_dpdk_devices("net_memif0,role=client 10.0.0.1/24").value();
  const auto has = [](const std::vector<std::string>& all, const std::string& one) {
    return std::ranges::count(all, one) == 1;
  };
  const auto without = eal_arguments(devices, {{0, 2, 3}, 0}, "").value();
  EXPECT_TRUE(has(without, "--lcores=0@(0,2,3)") && has(without, "--no-huge"));
  EXPECT_TRUE(has(without, "--no-pci"));
  const auto with = eal_arguments(devices, {{0}, std::size_t{1} << 30}, " -n 2 ").value();
  EXPECT_TRUE(has(with, "--in-memory") && !has(with, "--no-huge"));
  EXPECT_EQ(with.back(), "2");
  const auto pci = parse_dpdk_devices("0000:00:06.0,large_llq_hdr=1 10.1.0.5/16").value();
  const auto hardware = eal_arguments(pci, {{0}, 0}, "").value();
  EXPECT_TRUE(has(hardware, "0000:00:06.0,large_llq_hdr=1") && !has(hardware, "--no-pci"));
}

TEST(DpdkSettingsTest, arguments_by_which_eal_would_end_the_process_are_refused) {
  const auto devices = parse_dpdk_devices("net_ring0 10.0.0.1/24").value();
  for (const char* word : {"-h", "--help", "-v", "--version", "--proc-type=secondary"}) {
    const auto refused = eal_arguments(devices, {{0}, 0}, word);
    ASSERT_FALSE(refused.ok()) << word;
    EXPECT_NE(refused.status().message().find(word), std::string::npos);
  }
}

TEST(DpdkSettingsTest, an_engine_has_a_memif_beside_the_one_that_is_named) {
  const auto one = [](const std::string& text) { return parse_dpdk_devices(text).value().front(); };
  const DpdkDevice named = one("net_memif0,id=3,role=client,socket=/a 10.0.0.1/24");
  EXPECT_EQ(device_of_engine(named, 0).link.name, "net_memif0");
  EXPECT_EQ(device_of_engine(named, 0).arguments, "id=3,role=client,socket=/a");
  EXPECT_EQ(device_of_engine(named, 2).link.name, "net_memif0_2");
  EXPECT_EQ(device_of_engine(named, 2).arguments, "role=client,socket=/a,id=131075");
  EXPECT_EQ(device_of_engine(one("net_memif0 10.0.0.1/24"), 1).arguments, "id=65536");
}

TEST(DpdkSettingsTest, several_engines_are_refused_all_other_devices) {
  const auto why = [](const std::string& text, std::uint32_t engines) {
    return check_engines(parse_dpdk_devices(text).value(), engines).message();
  };
  EXPECT_EQ(why("net_memif0 10.0.0.1/24; net_memif1,id=65535 10.0.1.1/24", 64), "");
  EXPECT_EQ(why("0000:00:06.0 10.0.0.1/24; net_ring0 10.0.1.1/24", 1), "");
  EXPECT_NE(why("net_memif0 10.0.0.1/24; 0000:00:06.0 10.0.1.1/24", 2)
                .find("TACO_HARP_ENGINES=\"2\" with TACO_HARP_DRIVER=dpdk: the device 0000:00:06.0 "
                      "belongs to one engine"),
            std::string::npos);
  EXPECT_NE(why("net_memif0,id=65536 10.0.0.1/24", 2).find("net_memif0 needs an id= below 65536"),
            std::string::npos);
}

TEST(DpdkSettingsTest, routes_lead_to_neighbours_first_and_else_to_routers) {
  std::vector<FrameLink> links;
  const auto devices =
      parse_dpdk_devices("a 10.0.0.1/30; b 10.0.0.5/30 gateway=10.0.0.6; c fd00::1/64");
  ASSERT_TRUE(devices.ok()) << devices.status().message();
  for (const DpdkDevice& device : devices.value()) links.push_back(device.link);
  EXPECT_EQ(sources_towards(links, ip("10.0.0.2")), std::vector<Endpoint>{ip("10.0.0.1")});
  EXPECT_EQ(sources_towards(links, ip("10.0.0.6")), std::vector<Endpoint>{ip("10.0.0.5")});
  EXPECT_EQ(sources_towards(links, ip("192.0.2.1")), std::vector<Endpoint>{ip("10.0.0.5")});
  EXPECT_EQ(sources_towards(links, ip("fd01::1")), std::vector<Endpoint>{});
  EXPECT_EQ(next_hop(links[1], ip("10.0.0.5"), ip("192.0.2.1", 9)), ip("10.0.0.6"));
  EXPECT_EQ(next_hop(links[0], ip("10.0.0.1"), ip("10.0.0.2", 9)), ip("10.0.0.2"));
  EXPECT_EQ(next_hop(links[0], ip("10.0.0.1"), ip("192.0.2.1", 9)), std::nullopt);
}

}  // namespace
}  // namespace taco::harp
