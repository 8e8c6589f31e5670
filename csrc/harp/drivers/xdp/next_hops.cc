#include "harp/drivers/xdp/next_hops.h"

#include <errno.h>
#include <linux/neighbour.h>
#include <netinet/in.h>
#include <string.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/mixed_bits.h"
#include "harp/drivers/kernel/kernel_link.h"
#include "harp/drivers/kernel/netlink.h"

namespace taco::harp {

namespace {

// Changes are heard so often; a MAC address that is not there yet is asked for again so soon.
constexpr Duration kHearEvery = 5 * kMillisecond;
constexpr Duration kLookEvery = 10 * kMillisecond;
// The kernel doubts a neighbour that has said nothing for half a minute or so, once it sends to it.
constexpr Duration kConfirmEvery = kSecond;
constexpr unsigned kUsable =
    NUD_REACHABLE | NUD_STALE | NUD_DELAY | NUD_PROBE | NUD_PERMANENT | NUD_NOARP;

// News of all that decides where packets go: neighbours, interfaces, routes, the rules that choose
// among tables of routes, and next hops that routes only refer to.
constexpr std::uint32_t news_groups() {
  std::uint32_t groups = 0;
  for (const int each : {RTNLGRP_NEIGH, RTNLGRP_LINK, RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_ROUTE,
                         RTNLGRP_IPV4_RULE, RTNLGRP_IPV6_RULE, RTNLGRP_NEXTHOP}) {
    groups |= std::uint32_t{1} << (each - 1);
  }
  return groups;
}

unsigned char family_byte(const Endpoint& endpoint) {
  return is_ipv6(endpoint) ? AF_INET6 : AF_INET;
}

// An error that says nothing about what was asked.
bool is_momentary(int error) {
  return error == ENOMEM || error == ENOBUFS || error == EAGAIN || error == EINTR;
}

struct NeighbourEntry {
  std::uint32_t interface = 0;
  std::optional<Endpoint> address;
  std::optional<MacAddress> mac;  // while it is to be used
};

NeighbourEntry read_neighbour_entry(std::span<const std::byte> body) {
  NeighbourEntry entry;
  ndmsg header{};
  if (body.size() < sizeof header) return entry;
  memcpy(&header, body.data(), sizeof header);
  // A bridge or a VXLAN tells of where it forwards to, which is no neighbour of this host's.
  if (header.ndm_family != AF_INET && header.ndm_family != AF_INET6) return entry;
  entry.interface = static_cast<std::uint32_t>(header.ndm_ifindex);
  for_attributes(body, sizeof header, [&](int type, std::span<const std::byte> value) {
    if (type == NDA_DST && (value.size() == 4 || value.size() == 16)) {
      entry.address = endpoint_of_address(value, 0);
    }
    if (type == NDA_LLADDR && value.size() == sizeof(MacAddress) &&
        (header.ndm_state & kUsable) != 0) {
      entry.mac.emplace();
      std::ranges::copy(value, entry.mac->begin());
    }
  });
  return entry;
}

}  // namespace

std::size_t NextHops::KeyHash::operator()(const Key& key) const {
  std::array<std::uint64_t, 4> words;
  static_assert(sizeof words == sizeof key);
  memcpy(words.data(), &key, sizeof words);
  std::uint64_t mixed = 0;
  for (const std::uint64_t word : words) mixed = mixed_bits(mixed ^ word);
  return mixed;
}

Result<std::unique_ptr<NextHops>> NextHops::open() {
  std::unique_ptr<NextHops> made(new NextHops);
  auto questions = open_netlink(0);
  if (!questions.ok()) return questions.status();
  auto news = open_netlink(news_groups());
  if (!news.ok()) return news.status();
  made->questions_ = std::move(questions).value();
  made->news_ = std::move(news).value();
  return made;
}

const NextHops::Hop* NextHops::find(const Endpoint& source, const OwnNetwork& own,
                                    const Endpoint& destination, Time now) {
  if (now >= hear_again_) hear(now);
  const Key key{mapped_address(source), mapped_address(destination)};
  auto found = entries_.find(key);
  if (found == entries_.end()) {
    if (entries_.size() >= kMaxEntries) entries_.clear();
    found = entries_.try_emplace(key).first;
  }
  Entry& entry = found->second;
  if (!entry.has_mac) {
    if (now < entry.look_again) return nullptr;
    entry.look_again = now + kLookEvery;
    look_up(source, own, destination, entry);
    const bool has_none = !entry.has_route && !entry.is_unanswered;
    if (has_none) entry.look_again = kNever;  // until a route changes
    if (!entry.has_mac) return nullptr;
  }
  if (now >= entry.confirm) {
    entry.confirm = now + kConfirmEvery;
    return nullptr;
  }
  return &entry.hop;
}

void NextHops::hear(Time now) {
  hear_again_ = now + kHearEvery;
  const bool all = hear_kernel(news_.get(), [&](const nlmsghdr& each) { take_message(each); });
  if (!all) forget();
}

void NextHops::take_message(const nlmsghdr& message) {
  switch (message.nlmsg_type) {
    case RTM_NEWNEIGH:
    case RTM_DELNEIGH:
      take_neighbour(body_of(message), message.nlmsg_type == RTM_DELNEIGH);
      break;
    case RTM_NEWLINK:
    case RTM_DELLINK:
      if (read_kernel_link(message)) forget();
      break;
    case RTM_NEWROUTE:
    case RTM_DELROUTE:
    case RTM_NEWRULE:
    case RTM_DELRULE:
    case RTM_NEWNEXTHOP:
    case RTM_DELNEXTHOP:
      forget();
      break;
    default:
      break;
  }
}

void NextHops::take_neighbour(std::span<const std::byte> body, bool is_gone) {
  const NeighbourEntry heard = read_neighbour_entry(body);
  if (!heard.address) return;
  for (auto& [key, entry] : entries_) {
    const bool is_it = entry.has_route && entry.hop.interface == heard.interface &&
                       same_host_address(entry.neighbour, *heard.address);
    if (!is_it) continue;
    entry.has_mac = !is_gone && heard.mac.has_value();
    if (entry.has_mac) entry.hop.mac = *heard.mac;
    entry.look_again = 0;
  }
}

// A neighbour on a network that several interfaces share is reached by the one that has this
// address, as the udp driver has it.
void NextHops::look_up(const Endpoint& source, const OwnNetwork& own, const Endpoint& destination,
                       Entry& entry) {
  entry.has_route = find_route(source, destination, entry);
  if (entry.has_route && own.interface != 0 && same_network(destination, source, own.prefix)) {
    entry.hop.interface = own.interface;
    entry.neighbour = destination;
  }
  if (entry.has_route) find_mac(entry);
}

bool NextHops::find_route(const Endpoint& source, const Endpoint& destination, Entry& entry) {
  rtmsg header{};
  header.rtm_family = family_byte(destination);
  header.rtm_dst_len = header.rtm_src_len =
      static_cast<unsigned char>(8 * address_bytes(destination).size());
  NetlinkRequest request(RTM_GETROUTE, ++sequence_, header);
  request.add(RTA_DST, address_bytes(destination));
  request.add(RTA_SRC, address_bytes(source));
  NetlinkAnswer answer;
  const nlmsghdr* const route = ask_kernel(questions_.get(), request, RTM_NEWROUTE, answer);
  entry.is_unanswered = route == nullptr && is_momentary(answer.error);
  if (route == nullptr) return false;
  const std::span<const std::byte> body = body_of(*route);
  if (body.size() < sizeof header) return false;
  memcpy(&header, body.data(), sizeof header);
  entry.neighbour = destination;
  entry.hop.interface = 0;
  bool is_understood = true;
  for_attributes(body, sizeof header, [&](int type, std::span<const std::byte> value) {
    if (type == RTA_OIF && value.size() == sizeof entry.hop.interface) {
      memcpy(&entry.hop.interface, value.data(), value.size());
    }
    const bool is_address = value.size() == address_bytes(destination).size();
    if (type == RTA_GATEWAY && is_address) entry.neighbour = endpoint_of_address(value, 0);
    // A router of the other family, or something put around the packet.
    is_understood &= type != RTA_VIA && type != RTA_ENCAP;
  });
  return is_understood && header.rtm_type == RTN_UNICAST && entry.hop.interface != 0;
}

void NextHops::find_mac(Entry& entry) {
  ndmsg header{};
  header.ndm_family = family_byte(entry.neighbour);
  header.ndm_ifindex = static_cast<int>(entry.hop.interface);
  NetlinkRequest request(RTM_GETNEIGH, ++sequence_, header);
  request.add(NDA_DST, address_bytes(entry.neighbour));
  NetlinkAnswer answer;
  const nlmsghdr* const found = ask_kernel(questions_.get(), request, RTM_NEWNEIGH, answer);
  if (found == nullptr) return;
  const NeighbourEntry entry_read = read_neighbour_entry(body_of(*found));
  entry.has_mac = entry_read.mac.has_value();
  if (entry.has_mac) entry.hop.mac = *entry_read.mac;
}

}  // namespace taco::harp
