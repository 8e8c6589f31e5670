// An engine that has connected to very many peers, each of which then falls silent: as ranks that
// have had to do with each other once. In memory and virtual time. Test support.
#pragma once

#include <arpa/inet.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "harp/engine/engine_loop.h"
#include "harp/engine/peer.h"
#include "harp/engine/token.h"
#include "support/sim_random.h"

namespace taco::harp {

// Packets cross it at once, to whoever is at the other end at the moment; else they are lost.
class WireNic final : public Nic {
 public:
  explicit WireNic(const std::vector<Endpoint>& addresses) {
    for (const Endpoint& each : addresses) addresses_.push_back({each, 1472});
  }
  const NicCapabilities& capabilities() const override { return capabilities_; }
  std::span<const NicAddress> addresses() const override { return addresses_; }
  std::span<const NicDescriptor> descriptors() const override { return {}; }
  std::size_t send_st(std::span<const TxPacket> packets) override {
    for (const TxPacket& packet : packets) carry(packet);
    return packets.size();
  }
  bool is_full_st(std::uint32_t) const override { return false; }
  std::size_t receive_st(std::span<RxPacket> packets) override {
    held_.clear();
    while (held_.size() < packets.size() && !arrived_.empty()) {
      held_.push_back(std::move(arrived_.front()));
      arrived_.pop_front();
    }
    for (std::size_t i = 0; i < held_.size(); ++i)
      packets[i] = {held_[i].bytes, 0, &held_[i].source, held_[i].local_path};
    return held_.size();
  }
  std::uint32_t missing_st() const override { return missing; }
  void close_st() override {}

  WireNic* other = nullptr;
  std::uint32_t missing = 0;
  std::uint64_t sent = 0, bytes = 0;  // packets, and all of them together

 private:
  struct Arrival {
    std::vector<std::byte> bytes;
    Endpoint source;
    std::uint32_t local_path;
  };
  void carry(const TxPacket& packet) {
    ++sent;
    bytes += packet.bytes;
    if (other == nullptr) return;
    for (std::uint32_t i = 0; i < other->addresses_.size(); ++i) {
      if (!(other->addresses_[i].endpoint == *packet.destination)) continue;
      Arrival arrival{{}, addresses_[packet.local_path].endpoint, i};
      for (const IoSlice& slice : packet.slices) {
        const auto* const from = static_cast<const std::byte*>(slice.data);
        arrival.bytes.insert(arrival.bytes.end(), from, from + slice.bytes);
      }
      other->arrived_.push_back(std::move(arrival));
    }
  }

  const NicCapabilities capabilities_{.receive_buffer = 1 << 30};
  std::vector<NicAddress> addresses_;
  std::deque<Arrival> arrived_;
  std::vector<Arrival> held_;
};

// One process: the loop that runs in production, and its Nic.
class WireHost {
 public:
  // Its number is its addresses' as well.
  WireHost(std::uint32_t number, std::uint32_t addresses)
      : nic(endpoints(number, addresses)),
        random_(number + 1),
        loop(options(), token_, nic, nullptr, peers_) {
    token_.try_acquire();
  }
  ~WireHost() { loop.end_st(Status(Code::kAborted, "the end")); }
  WireHost(const WireHost&) = delete;
  WireHost& operator=(const WireHost&) = delete;

  PeerId know(const WireHost& other) {
    PeerPlan plan;
    plan.address.incarnation = other.options_.own.incarnation;
    plan.address.secret = other.options_.own.secret;
    plan.address.host_name = "a host";  // people are told of each host's paths
    for (std::uint32_t i = 0; i < nic.addresses().size(); ++i) {
      plan.routes.push_back({i, {.endpoint = other.nic.addresses()[i].endpoint, .mtu = 1500}});
      plan.address.paths.push_back(plan.routes.back().remote);
    }
    const auto added = peers_.add(
        plan.address.incarnation, [&]() -> Result<PeerPlan> { return plan; },
        [&](PeerId id, PeerPlan made) {
          return std::make_unique<Peer>(id, std::move(made), loop.matching());
        });
    return added.value()->id;
  }

  // That one has ended, and nobody needs it.
  void forget(PeerId id) {
    peers_.release(id);
    loop.end_peer_st(*peers_.find(id));
  }

  // Whether anything has happened.
  bool turn(Time now) {
    loop.begin_turn_st(now);
    const bool worked = loop.turn_st();
    loop.expect_turn_st(loop.next_deadline_st());
    return worked;
  }

  // Turns whenever something is due. Returns how often.
  std::uint64_t run(Time now, Time until) {
    for (std::uint64_t turns = 0;;) {
      now = std::max(loop.next_deadline_st(), now + kMicrosecond);
      if (now > until) return turns;
      do ++turns;
      while (turn(now));
    }
  }

  // Routes that were asked for.
  std::uint64_t lookups = 0;
  WireNic nic;

 private:
  static std::vector<Endpoint> endpoints(std::uint32_t number, std::uint32_t count) {
    std::vector<Endpoint> all;
    for (std::uint32_t i = 0; i < count; ++i) {
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_addr.s_addr = htonl((10U << 24) + (i << 20) + number);
      address.sin_port = htons(4'000);
      all.push_back(endpoint_of(reinterpret_cast<const sockaddr*>(&address)));
    }
    return all;
  }
  // Its i-th address reaches the i-th of others.
  std::vector<Endpoint> sources_of(const Endpoint& destination) {
    ++lookups;
    std::vector<Endpoint> sources;
    for (const NicAddress& own : nic.addresses()) {
      if (!same_network(own.endpoint, destination, 12)) continue;
      sources.push_back(own.endpoint);
      set_port(sources.back(), 0);
    }
    return sources;
  }
  const LoopOptions& options() {
    options_.own.incarnation = random_.next();
    for (std::byte& each : options_.own.secret) each = static_cast<std::byte>(random_.next());
    options_.random = [this] { return random_.next(); };
    options_.security = Security::kAuth;
    options_.routes = [this] { return [this](const Endpoint& to) { return sources_of(to); }; };
    return options_;
  }

  SimRandom random_;
  LoopOptions options_;
  Token token_;

 public:
  EngineLoop loop;

 private:
  PeerTable peers_;  // goes before the loop, to which its sessions refer
};

// Sends to so many peers, one after the other, which answer and then are heard of no more. All have
// `addresses` addresses.
class ManySessions {
 public:
  ManySessions(std::uint32_t peers, std::uint32_t addresses) : hub_(0, addresses) {
    for (std::uint32_t i = 1; i <= peers && all_connected_; ++i) {
      WireHost peer(i, addresses);
      ids_.push_back(hub_.know(peer));
      all_connected_ = connect(peer, ids_.back());
    }
  }

  bool all_connected() const { return all_connected_; }
  WireHost& hub() { return hub_; }
  Time now() const { return now_; }
  PeerId id(std::uint32_t peer) const { return ids_[peer]; }

  // Returns how often the hub had something to do.
  std::uint64_t run(Duration time) {
    const Time begin = std::exchange(now_, now_ + time);
    return hub_.run(begin, now_);
  }

 private:
  struct Message {
    Message() {
      send.key = recv.key = {1, 1};
      send.data = &out;
      send.bytes = recv.max_bytes = sizeof out;
      recv.sink = Sink::place(&in);
      send.context = recv.context = this;
      send.on_done = [](SendRequest& request, const Status& status) {
        static_cast<Message*>(request.context)->done(status);
      };
      recv.on_done = [](RecvRequest& request, const Status& status) {
        static_cast<Message*>(request.context)->done(status);
      };
    }
    void done(const Status& status) {
      ++ended;
      good = good && status.ok();
    }
    std::uint64_t out = 7, in = 0;
    SendRequest send;
    RecvRequest recv;
    int ended = 0;
    bool good = true;
  };

  // A message each way, and then the time that acknowledgements and further paths take.
  bool connect(WireHost& peer, PeerId there) {
    hub_.nic.other = &peer.nic;
    peer.nic.other = &hub_.nic;
    const PeerId here = peer.know(hub_);
    Message of_hub, of_peer;
    begin(hub_, there, of_hub);
    begin(peer, here, of_peer);
    const Time limit = now_ + kSecond;
    Time quiet_from = kNever;
    while (now_ < limit && now_ - 100 * kMillisecond < quiet_from) {
      now_ += 100 * kMicrosecond;
      const bool worked = hub_.turn(now_) | peer.turn(now_);
      const bool over = of_hub.ended == 2 && of_peer.ended == 2;
      if (!over || worked) quiet_from = kNever;
      if (over && !worked) quiet_from = std::min(quiet_from, now_);
    }
    hub_.nic.other = peer.nic.other = nullptr;
    return of_hub.ended == 2 && of_peer.ended == 2 && of_hub.good && of_peer.good;
  }
  void begin(WireHost& host, PeerId to, Message& message) {
    host.loop.begin_turn_st(now_);
    host.loop.recv_st(to, message.recv);
    host.loop.send_st(to, message.send);
  }

  Time now_ = kSecond;
  WireHost hub_;
  std::vector<PeerId> ids_;
  bool all_connected_ = true;
};

}  // namespace taco::harp
