// An observer of the simulated network, who keeps what he sees and sends what he likes. Test
// support.
#pragma once

#include <cstring>
#include <span>
#include <vector>

#include "harp/session/wire.h"
#include "support/sim_cluster.h"

namespace taco::harp {

using Datagram = std::vector<std::byte>;

inline Datagram datagram_of(wire::Header header, std::span<const std::byte> body) {
  wire::seal(header, body);
  Datagram bytes(sizeof header + body.size());
  std::memcpy(bytes.data(), &header, sizeof header);
  if (!body.empty()) std::memcpy(bytes.data() + sizeof header, body.data(), body.size());
  return bytes;
}

inline wire::Header header_of(const Datagram& bytes) {
  wire::Header header;
  std::memcpy(&header, bytes.data(), sizeof header);
  return header;
}

inline bool is_type(const Datagram& bytes, wire::Type type) {
  return (header_of(bytes).version_and_type & 15) == static_cast<int>(type);
}

struct SimObserver {
  struct Seen {
    std::uint32_t from, to, address;
    Datagram bytes;
  };
  explicit SimObserver(SimCluster& cluster) : cluster(cluster) {
    cluster.network().set_tap([this](const SimNetwork::Departure& sent) {
      seen.push_back({sent.from.node, sent.to.node, sent.to.address,
                      Datagram(sent.bytes.begin(), sent.bytes.end())});
    });
  }
  ~SimObserver() { cluster.network().set_tap(nullptr); }
  SimObserver(const SimObserver&) = delete;
  SimObserver& operator=(const SimObserver&) = delete;

  std::vector<Datagram> seen_between(std::uint32_t from, std::uint32_t to, wire::Type type) const {
    std::vector<Datagram> found;
    for (const Seen& one : seen) {
      if (one.from == from && one.to == to && is_type(one.bytes, type)) found.push_back(one.bytes);
    }
    return found;
  }
  // Arrives at `to` now, as if sent by `from`, or from elsewhere.
  void send(std::uint32_t from, std::uint32_t to, Datagram bytes, std::uint32_t address = 0) {
    const Endpoint source = SimNetwork::endpoint(from, address);
    cluster[to].inject({bytes, 0, &source, 0});
  }

  SimCluster& cluster;
  std::vector<Seen> seen;
};

}  // namespace taco::harp
