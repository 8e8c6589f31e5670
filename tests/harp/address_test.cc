#include "harp/address.h"

#include <gtest/gtest.h>

#include <random>

#include "harp/session/wire.h"
#include "support/ip.h"

namespace taco::harp {
namespace {

Address sample() {
  Address address;
  address.incarnation = 0x0123456789abcdef;
  address.secret.fill(std::byte{7});
  address.pid = 4242;
  address.has_shm = true;
  address.shm.incarnation = 9;
  address.host_id = "boot-1234";
  address.host_name = "nodeb";
  address.paths = {{ip("10.0.0.2", 41234), 1500, 10'000}, {ip("fd00::2", 41235), 9000, 0}};
  return address;
}

TEST(AddressTest, survives_the_rendezvous_unchanged) {
  const Address address = sample();
  const auto decoded = decode(encode(address));
  ASSERT_TRUE(decoded.ok()) << decoded.status().message();
  EXPECT_EQ(decoded.value().incarnation, address.incarnation);
  EXPECT_EQ(decoded.value().secret, address.secret);
  EXPECT_EQ(decoded.value().pid, address.pid);
  EXPECT_TRUE(decoded.value().shm == address.shm);
  EXPECT_EQ(decoded.value().host_id, address.host_id);
  EXPECT_EQ(decoded.value().host_name, address.host_name);
  ASSERT_EQ(decoded.value().paths.size(), 2u);
  EXPECT_TRUE(decoded.value().paths[0].endpoint == address.paths[0].endpoint);
  EXPECT_TRUE(decoded.value().paths[1].endpoint == address.paths[1].endpoint);
  EXPECT_EQ(decoded.value().paths[1].mtu, 9000u);
}

TEST(AddressTest, the_largest_one_fits_its_bound) {
  Address address = sample();
  address.host_name = std::string(300, 'x');
  address.host_id = std::string(300, 'y');
  address.paths.assign(40, {ip("fd00::2", 1), 1500, 0});
  const std::string bytes = encode(address);
  EXPECT_LE(bytes.size(), kMaxAddressBytes);
  EXPECT_TRUE(decode(bytes).ok());
}

TEST(AddressTest, another_version_is_named_beside_ours) {
  std::string bytes = encode(sample());
  bytes[5] = 9;  // the wire's version
  const auto decoded = decode(bytes);
  ASSERT_FALSE(decoded.ok());
  EXPECT_EQ(decoded.status().code(), Code::kVersionMismatch);
  EXPECT_NE(decoded.status().message().find("version 9"), std::string::npos);
  EXPECT_NE(decoded.status().message().find("version " + std::to_string(wire::kVersion)),
            std::string::npos);
}

TEST(AddressTest, every_damaged_byte_and_every_length_is_refused) {
  const std::string good = encode(sample());
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x20);
    EXPECT_FALSE(decode(bad).ok()) << "byte " << i;
    EXPECT_FALSE(decode(good.substr(0, i)).ok()) << "length " << i;
  }
  EXPECT_FALSE(decode(good + "x").ok());
}

TEST(AddressTest, random_bytes_are_refused_without_harm) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const std::string good = encode(sample());
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = good.substr(0, 6);  // magic and versions, so that the body is read
    const std::size_t length = random() % 300;
    for (std::size_t j = 0; j < length; ++j) bytes += static_cast<char>(random());
    EXPECT_FALSE(decode(bytes).ok());
  }
}

TEST(AddressTest, endpoints_print_as_people_write_them) {
  EXPECT_EQ(to_string(ip("10.0.0.2", 41234)), "10.0.0.2:41234");
  EXPECT_EQ(to_string(ip("10.0.0.2", 0)), "10.0.0.2");
  EXPECT_EQ(to_string(ip("fd00::2", 7)), "[fd00::2]:7");
  EXPECT_EQ(describe(sample(), ip("10.0.0.2", 41234)), "10.0.0.2:41234 (pid 4242 on nodeb)");
  EXPECT_TRUE(is_loopback(ip("127.0.1.1", 0)) && is_loopback(ip("::1", 0)));
  EXPECT_FALSE(is_loopback(ip("128.0.0.1", 0)));
  EXPECT_TRUE(is_link_local(ip("fe80::1", 0)) && is_link_local(ip("169.254.3.4", 0)));
  EXPECT_TRUE(same_host_address(ip("10.0.0.2", 1), ip("10.0.0.2", 2)));
  EXPECT_FALSE(same_host_address(ip("10.0.0.2", 1), ip("fd00::2", 1)));
}

TEST(AddressTest, an_address_in_a_record_comes_back_as_it_was) {
  for (const Endpoint& endpoint : {ip("10.1.2.3", 4100), ip("fd00::17", 65'535)}) {
    EXPECT_EQ(endpoint_from(mapped_address(endpoint), wire_port_of(endpoint)), endpoint)
        << to_string(endpoint);
  }
}

TEST(AddressTest, what_no_other_host_could_reach_is_not_usable) {
  EXPECT_TRUE(is_usable(ip("10.1.2.3", 1)));
  EXPECT_TRUE(is_usable(ip("fd00::17", 1)));
  EXPECT_FALSE(is_usable(ip("10.1.2.3", 0)));
  for (const char* text : {"127.0.0.1", "0.0.0.0", "169.254.1.1", "224.0.0.1", "255.255.255.255"}) {
    EXPECT_FALSE(is_usable(ip(text, 1))) << text;
  }
  for (const char* text : {"::1", "::", "fe80::1", "ff02::1"}) {
    EXPECT_FALSE(is_usable(ip(text, 1))) << text;
  }
}

}  // namespace
}  // namespace taco::harp
