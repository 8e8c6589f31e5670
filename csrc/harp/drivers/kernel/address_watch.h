// Hears from the kernel that addresses or interfaces of this host have come, gone or changed, in
// the middle of a job: a cable is pulled, a lease ends, an MTU or a MAC address is set, somebody
// types `ip address del`.
//
// A host of containers has hundreds of interfaces, of which one comes or goes every now and then,
// and to list them takes milliseconds. So of the kernel's messages only those count that can matter
// to somebody, and the addresses are looked at on a thread of its own, which ends with the look.
//
// Owner thread only.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/own_fd.h"
#include "base/status.h"
#include "harp/drivers/kernel/kernel_link.h"
#include "harp/network.h"
#include "harp/nic.h"

struct nlmsghdr;  // the kernel's

namespace taco::harp {

// The result of a look.
struct HostAddresses {
  std::vector<Endpoint> held;                  // by interfaces that are up and have a carrier
  std::vector<NicOptions::Local> may_be_used;  // see NicOptions::find_more
};

class AddressWatch {
 public:
  // `find_more`, which may be null, is called on another thread.
  static Result<std::unique_ptr<AddressWatch>> open(decltype(NicOptions::find_more) find_more);
  ~AddressWatch();
  AddressWatch(const AddressWatch&) = delete;
  AddressWatch& operator=(const AddressWatch&) = delete;

  // Readable when take() may have something to do, or to give.
  int descriptor() const { return messages_.get(); }
  // Returns the addresses that the host has now, if a look has ended since the last call.
  std::optional<HostAddresses> take();

 private:
  explicit AddressWatch(decltype(NicOptions::find_more) find_more)
      : find_more_(std::move(find_more)) {}
  void list_interfaces_now();
  bool hear();
  bool matters(const nlmsghdr& message);
  void look();

  struct Link {
    unsigned flags = 0;  // whether it is up, and has a carrier
    std::uint32_t mtu = 0;
    std::vector<std::byte> mac;
    bool has_address = false;  // by which it may matter, or had one

    bool take(const KernelLink& now);
  };

  const decltype(NicOptions::find_more) find_more_;
  OwnFd messages_;                                 // the kernel's
  std::unordered_map<std::uint32_t, Link> links_;  // by index, as last heard of
  bool again_ = false;                             // something has changed since the look began
  std::thread looking_;
  std::atomic<bool> looked_{false};     // hands over:
  std::optional<HostAddresses> found_;  // none: the kernel did not tell
};

// Those of `addresses` (bit i: the i-th) that are not among `held`.
std::uint32_t missing_of(std::span<const NicAddress> addresses, std::span<const Endpoint> held);

}  // namespace taco::harp
