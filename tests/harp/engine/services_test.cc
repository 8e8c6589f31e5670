#include "harp/engine/services.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace taco::harp {
namespace {

constexpr Service kPages{1}, kPlugin{15};

struct Ear final : Observer {
  void on_unmatched_st(PeerId, const MessageKey&, std::uint64_t, bool) override {
    heard += "unmatched ";
  }
  void on_mismatch_st(PeerId, const MessageKey&, std::uint64_t, std::uint64_t) override {
    heard += "mismatch ";
  }
  void on_peer_lost_st(PeerId, const Status&) override { heard += "lost "; }
  void on_peer_left_st(PeerId) override { heard += "left "; }
  void on_notice_st(PeerId, std::span<const std::byte>) override { heard += "notice "; }
  std::string heard;
};

std::vector<std::byte> notice_of(Service service) {
  return {std::byte{notice_byte(service, 7)}, std::byte{0xff}};
}

TEST(ServiceTest, an_id_keeps_the_services_number_of_a_group_but_for_four_bits) {
  EXPECT_EQ(group_id(Service::kCollectives, 0x7ac0), 0x7ac0u);
  for (const Service service : {Service::kCollectives, kPages, kPlugin}) {
    const std::uint64_t id = group_id(service, ~std::uint64_t{0});
    EXPECT_EQ(service_of_group(id), service);
    EXPECT_EQ(id & 0x0fff'ffff'ffff'ffff, 0x0fff'ffff'ffff'ffff);
    EXPECT_EQ(service_of_notice(notice_of(service)), service);
  }
}

TEST(ServicesTest, each_hears_what_concerns_it_and_all_hear_of_a_peers_end) {
  Services services;
  Ear collectives, pages;
  services.set(Service::kCollectives, &collectives);
  services.set(kPages, &pages);
  services.on_unmatched_st(1, {group_id(kPages, 5), 1}, 0, true);
  services.on_mismatch_st(1, {group_id(Service::kCollectives, 5), 1}, 0, 1);
  services.on_notice_st(1, notice_of(kPages));
  services.on_notice_st(1, {});
  services.on_peer_lost_st(1, Status(Code::kPeerLost, "gone"));
  services.on_peer_left_st(2);
  EXPECT_EQ(collectives.heard, "mismatch notice lost left ");
  EXPECT_EQ(pages.heard, "unmatched notice lost left ");
}

TEST(ServicesTest, what_is_for_a_service_that_is_not_here_is_dropped) {
  Services services;
  Ear pages;
  services.on_peer_left_st(1);
  services.set(kPages, &pages);
  services.on_unmatched_st(1, {group_id(kPlugin, 5), 1}, 0, true);
  services.on_notice_st(1, notice_of(kPlugin));
  services.set(kPages, nullptr);
  services.on_unmatched_st(1, {group_id(kPages, 5), 1}, 0, true);
  services.on_peer_lost_st(1, Status(Code::kPeerLost, "gone"));
  EXPECT_EQ(pages.heard, "");
}

}  // namespace
}  // namespace taco::harp
