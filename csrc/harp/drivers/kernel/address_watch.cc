#include "harp/drivers/kernel/address_watch.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <string.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/thread.h"
#include "harp/address.h"
#include "harp/drivers/kernel/netlink.h"

namespace taco::harp {
namespace {

constexpr unsigned kCarries = IFF_UP | IFF_RUNNING;

std::optional<std::vector<Endpoint>> held_addresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return std::nullopt;
  std::vector<Endpoint> held;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    if ((entry->ifa_flags & IFF_UP) == 0 || (entry->ifa_flags & IFF_RUNNING) == 0) continue;
    held.push_back(endpoint_of(entry->ifa_addr));
  }
  freeifaddrs(list);
  return held;
}

// The kernel's answer makes the socket readable, by which the owner learns that a look has ended.
void have_kernel_answer(int socket) {
  nlmsghdr nothing{};
  nothing.nlmsg_len = sizeof nothing;
  nothing.nlmsg_type = NLMSG_NOOP;
  nothing.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK;
  [[maybe_unused]] const ssize_t sent = send(socket, &nothing, sizeof nothing, 0);
}

}  // namespace

Result<std::unique_ptr<AddressWatch>> AddressWatch::open(
    decltype(NicOptions::find_more) find_more) {
  std::unique_ptr<AddressWatch> watch(new AddressWatch(std::move(find_more)));
  auto messages = open_netlink(RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR);
  if (!messages.ok()) return messages.status();
  watch->messages_ = std::move(messages).value();
  watch->list_interfaces_now();
  return watch;
}

void AddressWatch::list_interfaces_now() {
  if (const auto links = list_kernel_links(); links.ok()) {
    for (const KernelLink& each : links.value()) static_cast<void>(links_[each.index].take(each));
  }
  const auto held = list_kernel_addresses();
  if (!held.ok()) return;
  for_messages(held.value(), [&](const nlmsghdr& each) { static_cast<void>(matters(each)); });
}

// True: what the kernel tells of it is not what was known.
bool AddressWatch::Link::take(const KernelLink& now) {
  const Link before = *this;
  flags = now.flags & kCarries;
  if (now.mtu != 0) mtu = now.mtu;
  if (!now.mac.empty()) mac = now.mac;
  return before.flags != flags || before.mtu != mtu || before.mac != mac;
}

AddressWatch::~AddressWatch() {
  if (looking_.joinable()) looking_.join();
}

std::optional<HostAddresses> AddressWatch::take() {
  again_ |= hear();
  std::optional<HostAddresses> found;
  if (looking_.joinable() && looked_.load(std::memory_order_acquire)) {
    looking_.join();
    found = std::exchange(found_, std::nullopt);
  }
  if (again_ && !looking_.joinable()) look();
  return found;
}

// True: something that matters has changed.
bool AddressWatch::hear() {
  bool changed = false;
  const bool all =
      hear_kernel(descriptor(), [&](const nlmsghdr& each) { changed |= matters(each); });
  return changed || !all;
}

// An IPv6 address of one link is nobody's way. And of an interface matters only whether it carries
// anything, how much at once and from which MAC address, if it has an address; the kernel tells of
// these before it tells that an interface is gone.
bool AddressWatch::matters(const nlmsghdr& message) {
  if (message.nlmsg_type == RTM_NEWADDR || message.nlmsg_type == RTM_DELADDR) {
    ifaddrmsg address{};
    const std::span<const std::byte> body = body_of(message);
    if (body.size() < sizeof address) return false;
    memcpy(&address, body.data(), sizeof address);
    if (address.ifa_family == AF_INET6 && address.ifa_scope == RT_SCOPE_LINK) return false;
    links_[address.ifa_index].has_address = true;
    return true;
  }
  const auto told = read_kernel_link(message);
  if (!told) return false;
  if (message.nlmsg_type == RTM_DELLINK) {
    links_.erase(told->index);
    return false;
  }
  Link& link = links_[told->index];
  const bool is_another = link.take(*told);
  return link.has_address && is_another;
}

void AddressWatch::look() {
  again_ = false;
  looked_.store(false, std::memory_order_relaxed);
  auto thread = start_thread("taco-addresses", [this] {
    if (auto held = held_addresses()) {
      found_ = HostAddresses{std::move(*held), {}};
      if (find_more_) found_->may_be_used = find_more_();
    }
    looked_.store(true, std::memory_order_release);
    have_kernel_answer(descriptor());
  });
  if (thread.ok()) {
    looking_ = std::move(thread).value();
  } else {
    again_ = true;  // with the next look at the descriptors
    TACO_LOG_WARNING("harp", "%s", thread.status().message().c_str());
  }
}

std::uint32_t missing_of(std::span<const NicAddress> addresses, std::span<const Endpoint> held) {
  std::uint32_t missing = 0;
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    const bool is_held = std::ranges::any_of(
        held, [&](const Endpoint& one) { return same_host_address(addresses[i].endpoint, one); });
    if (!is_held) missing |= std::uint32_t{1} << i;
  }
  return missing;
}

}  // namespace taco::harp
