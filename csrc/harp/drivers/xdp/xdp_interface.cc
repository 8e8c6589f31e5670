#include "harp/drivers/xdp/xdp_interface.h"

#include <errno.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "base/descriptors.h"
#include "base/log.h"
#include "base/names.h"
#include "base/own_fd.h"
#include "harp/drivers/kernel/device_queues.h"

namespace taco::harp {

namespace {

constexpr std::size_t kVlanTagBytes = 4;  // of a frame that comes with one

// A remedy where an engine finds no queue that is free.
std::string remedy_for(const std::string& name, std::uint32_t queues, const QueueShare& share) {
  const std::uint32_t wanted = std::max(share.shares, queues + 1);
  std::string text;
  if (share.shares > queues) {
    text = name + " has " + count_text(queues, "queue") + " for " +
           count_text(share.shares / share.engines, "rank") + " of " +
           count_text(share.engines, "engine") + ", and each engine needs one: ";
  }
  return text + "more queues (`ethtool -L " + name + " combined " + std::to_string(wanted) +
         "`, where the device has them; harp-setup does so on hardware), fewer engines "
         "(TACO_HARP_ENGINES), an interface for each rank (TACO_IFNAME), or TACO_HARP_DRIVER=udp; "
         "TACO_HARP_XDP_QUEUES says which rank has which queues";
}

// The kernel is asked by name.
struct LinkFacts {
  bool is_ethernet = false;
  MacAddress mac{};
  std::size_t mtu = 0;
  std::uint32_t index = 0;
  std::uint32_t queues = 1;
  bool is_up = false;
};

ifreq request_about(const std::string& name) {
  ifreq request{};
  const std::size_t bytes = std::min(name.size(), sizeof request.ifr_name - 1);
  memcpy(request.ifr_name, name.data(), bytes);
  return request;
}

Result<LinkFacts> facts_of(const std::string& name) {
  const OwnFd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  LinkFacts facts;
  ifreq request = request_about(name);
  bool known = fd && ioctl(fd.get(), SIOCGIFINDEX, &request) == 0;
  facts.index = static_cast<std::uint32_t>(request.ifr_ifindex);
  request = request_about(name);
  known = known && ioctl(fd.get(), SIOCGIFHWADDR, &request) == 0;
  facts.is_ethernet = request.ifr_hwaddr.sa_family == ARPHRD_ETHER;
  memcpy(facts.mac.data(), request.ifr_hwaddr.sa_data, facts.mac.size());
  request = request_about(name);
  known = known && ioctl(fd.get(), SIOCGIFMTU, &request) == 0;
  facts.mtu = static_cast<std::size_t>(request.ifr_mtu);
  request = request_about(name);
  known = known && ioctl(fd.get(), SIOCGIFFLAGS, &request) == 0;
  facts.is_up = (request.ifr_flags & IFF_UP) != 0;
  if (!known) return Status(Code::kResource, name + ": " + system_error_text(errno));
  facts.queues = std::min(device_queues(name).now, XdpFilter::kMaxQueues);
  return facts;
}

}  // namespace

Result<std::unique_ptr<XdpInterface>> XdpInterface::make(const std::string& name,
                                                         const QueueShare& share) {
  const auto facts = facts_of(name);
  if (!facts.ok()) return facts.status();
  if (!facts.value().is_ethernet) {
    return Status(Code::kUnsupported, name + " carries no Ethernet frames");
  }
  std::unique_ptr<XdpInterface> made(new XdpInterface(name));
  made->index_ = facts.value().index;
  made->mac_ = facts.value().mac;
  made->mtu_ = facts.value().mtu;
  made->remedy_ = remedy_for(name, facts.value().queues, share);
  // Queues of other ranks may be other interfaces' (TACO_IFNAME); those of its engines are not.
  if (share.engines > facts.value().queues) {
    return made->on_it(Status(Code::kResource, made->remedy_));
  }
  made->queues_ = share.of(facts.value().queues);
  TACO_RETURN_IF_ERROR(made->on_it(made->make_sockets()));
  return made;
}

Status XdpInterface::on_it(const Status& failure) const {
  return failure.with_prefix("TACO_HARP_DRIVER=xdp on " + name_ + ": ");
}

Status XdpInterface::make_sockets() {
  auto filter = XdpFilter::create();
  if (!filter.ok()) return filter.status();
  filter_ = std::move(filter).value();
  for (const std::uint32_t queue : queues_) {
    auto socket = XdpSocket::make({index_, queue, mtu_ + kEthernetHeader + kVlanTagBytes});
    if (!socket.ok()) return socket.status();
    sockets_.push_back(std::move(socket).value());
  }
  return {};
}

Result<bool> XdpInterface::take() {
  const auto taken = take_queues();
  if (!taken.ok()) return on_it(taken.status());
  if (!taken.value()) return false;
  TACO_LOG_INFO("harp", "xdp on %s: %s, %s, %zu of %u queues, MTU %zu", name_.c_str(),
                filter_->mode() == XdpMode::kNative ? "native" : "generic",
                sender().copies() ? "copying" : "zero copy", queues_.size(),
                device_queues(name_).now, mtu_);
  return true;
}

// A queue is ours once it has our socket, and only then may the program know us by it.
Result<bool> XdpInterface::take_queues() {
  for (; taken_ < queues_.size(); ++taken_) {
    auto taken = sockets_[taken_]->take_queue();
    if (!taken.ok() || !taken.value()) return taken;
  }
  auto attached = filter_->attach(index_, queues_.front());
  if (!attached.ok() || !attached.value()) return attached;
  for (std::size_t i = 0; i < queues_.size(); ++i) {
    TACO_RETURN_IF_ERROR(filter_->add_socket(queues_[i], sockets_[i]->fd()));
  }
  return true;
}

Status XdpInterface::why_not_taken() const {
  if (taken_ == queues_.size()) {
    return on_it(Status(Code::kResource,
                        "the XDP program of another process or engine comes and goes there"));
  }
  return on_it(Status(Code::kResource, "queue " + std::to_string(queues_[taken_]) +
                                           " belongs to another process or engine, and a queue "
                                           "has one owner: " +
                                           remedy_));
}

std::uint64_t XdpInterface::dropped() const {
  std::uint64_t total = 0;
  for (const auto& socket : sockets_) total += socket->dropped();
  return total;
}

bool XdpInterface::follow() {
  const auto now = facts_of(name_);
  if (!now.ok()) return false;
  mac_ = now.value().mac;
  return now.value().index == index_ && now.value().mtu == mtu_ && now.value().is_up;
}

}  // namespace taco::harp
