// One interface of the xdp driver: its program, and a socket for each queue that its engine has.
//
// Owner thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "harp/drivers/frames/ethernet.h"
#include "harp/drivers/xdp/queue_share.h"
#include "harp/drivers/xdp/xdp_filter.h"
#include "harp/drivers/xdp/xdp_socket.h"
#include "harp/nic.h"

namespace taco::harp {

class XdpInterface {
 public:
  // By name, with sockets for that share of its queues, and none of these taken yet.
  // kUnsupported: no interface for Ethernet frames of its own, such as loopback.
  static Result<std::unique_ptr<XdpInterface>> make(const std::string& name,
                                                    const QueueShare& share);
  // Takes its queues, and has the program run. Waits for nobody: false says that somebody has not
  // given one up yet (why_not_taken), and that this may be called again.
  Result<bool> take();
  Status why_not_taken() const;

  const std::string& name() const { return name_; }
  std::uint32_t index() const { return index_; }
  const MacAddress& mac() const { return mac_; }
  std::size_t mtu() const { return mtu_; }
  std::span<const std::unique_ptr<XdpSocket>> sockets() const { return sockets_; }
  XdpSocket& sender() { return *sockets_.front(); }
  Status set_addresses(std::span<const Endpoint> addresses) {
    return filter_->set_addresses(addresses);
  }
  std::uint64_t dropped() const;
  // False: it is not there any more, or down, or has another MTU than its frames are made for. A
  // MAC address that was set is taken over.
  bool follow();

 private:
  explicit XdpInterface(std::string name) : name_(std::move(name)) {}
  Status make_sockets();
  Result<bool> take_queues();
  Status on_it(const Status& failure) const;

  const std::string name_;
  std::string remedy_;  // what to do where one of its queues is somebody's
  std::vector<std::uint32_t> queues_;
  std::size_t taken_ = 0;  // of them
  std::uint32_t index_ = 0;
  MacAddress mac_{};
  std::size_t mtu_ = 0;
  // Its program ends before the sockets that it hands frames to.
  std::vector<std::unique_ptr<XdpSocket>> sockets_;
  std::unique_ptr<XdpFilter> filter_;
};

}  // namespace taco::harp
