// By which interface, and to which MAC address, frames to a destination leave: from the kernel's
// routes and its table of neighbours. For drivers that bypass the kernel's IP and leave ARP and
// neighbour discovery to it.
//
// The kernel looks for a neighbour only when it sends to it itself, and makes sure now and then
// that one is still there only if it goes on sending. So whatever has no next hop here goes by a
// socket of the kernel's, and so does one datagram to each destination every now and then.
//
// Owner thread only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>

#include "base/clock.h"
#include "base/own_fd.h"
#include "base/status.h"
#include "harp/address.h"
#include "harp/drivers/frames/ethernet.h"

struct nlmsghdr;  // the kernel's

namespace taco::harp {

class NextHops {
 public:
  struct Hop {
    std::uint32_t interface = 0;  // index
    MacAddress mac{};
  };

  static Result<std::unique_ptr<NextHops>> open();

  // From an address that is on `own`, if that says something. Null: by the kernel, this time.
  const Hop* find(const Endpoint& source, const OwnNetwork& own, const Endpoint& destination,
                  Time now);
  // Forgets all next hops, which may have changed.
  void forget() { entries_.clear(); }

 private:
  using Address = std::array<std::byte, 16>;  // IPv4 is mapped into IPv6
  struct Key {
    Address source, destination;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const;
  };
  struct Entry {
    bool has_route = false;      // to somewhere that Ethernet frames can be sent to
    bool is_unanswered = false;  // the kernel had no memory to say which
    bool has_mac = false;
    Hop hop;
    Endpoint neighbour;  // the destination, or a router
    Time look_again = 0;
    Time confirm = 0;  // by a datagram of the kernel's own
  };

  static constexpr std::size_t kMaxEntries = 65'536;

  NextHops() = default;
  void hear(Time now);
  void take_message(const nlmsghdr& message);
  void take_neighbour(std::span<const std::byte> body, bool is_gone);
  void look_up(const Endpoint& source, const OwnNetwork& own, const Endpoint& destination,
               Entry& entry);
  bool find_route(const Endpoint& source, const Endpoint& destination, Entry& entry);
  void find_mac(Entry& entry);

  OwnFd questions_, news_;
  std::uint32_t sequence_ = 0;
  std::unordered_map<Key, Entry, KeyHash> entries_;
  Time hear_again_ = 0;
};

}  // namespace taco::harp
