// Links and sessions: how a peer's is made on first use, which session a packet is for, and when a
// session begins anew.
#include <algorithm>

#include "base/log.h"
#include "harp/address.h"
#include "harp/engine/engine_loop.h"

namespace taco::harp {

Link& EngineLoop::link_of(Peer& peer) {
  if (peer.link == nullptr) open_link_st(peer);
  return *peer.link;
}

void EngineLoop::open_link_st(Peer& peer) {
  assert_owner();
  if (peer.link != nullptr) return;
  if (peer.reach == Reach::kSelf) {
    peer.self = std::make_unique<SelfLink>(peer.matcher);
    self_ = peer.self.get();
    peer.link = self_;
  } else if (peer.reach == Reach::kMemory) {
    peer.shm = shm_->open(peer.address.shm, peer.description);
    peer.shm->attach(peer.matcher);
    peer.link = peer.shm;
  } else {
    open_session(peer);
  }
  peer.matcher.attach(*peer.link);
  linked_.push_back(&peer);
}

void EngineLoop::open_session(Peer& peer) {
  SessionConfig config;
  config.own_incarnation = options_.own.incarnation;
  config.peer_incarnation = peer.address.incarnation;
  config.key = key_of(peer.address);
  config.security = options_.security;
  config.checksum = options_.checksum;
  config.packets_per_key = options_.packets_per_key;
  const Route& first = peer.routes.front();
  for (const Route& route : peer.routes) {
    config.ways.push_back({route.remote.endpoint, route.local_path});
  }
  config.max_datagram = std::min(nic().addresses()[first.local_path].max_datagram,
                                 max_datagram(first.remote.endpoint, first.remote.mtu));
  config.peer_timeout = options_.peer_timeout;
  config.description = peer.description;
  config.congestion = options_.congestion;
  peer.session =
      std::make_unique<Session>(std::move(config), static_cast<SessionHost&>(*this), peer.matcher);
  by_connection_[peer.session->connection_id()] = &peer;
  peer.link = peer.session.get();
}

// No packet finds the peer's session any more.
void EngineLoop::forget_session(const Peer& peer) {
  if (peer.session != nullptr) by_connection_.erase(peer.session->connection_id());
  recent_connection_ = 0;
  recent_peer_ = nullptr;
}

// Finds the session by connection id, never by the address a packet came from.
void EngineLoop::on_packets_st(const RxPacket& packets) {
  assert_owner();
  if (Session* session = session_of(wire::peek_connection(packets.data))) {
    session->on_packets(packets);
    return;
  }
  // The kernel may have merged what belongs to nobody with what does.
  const std::size_t step = packets.segment_bytes != 0 ? packets.segment_bytes : packets.data.size();
  for (std::size_t at = 0; at < packets.data.size(); at += step) {
    RxPacket packet = packets;
    packet.data = packets.data.subspan(at, std::min(step, packets.data.size() - at));
    packet.segment_bytes = 0;
    if (Session* session = session_of(wire::peek_connection(packet.data))) {
      session->on_packets(packet);
    } else {
      strays_.take(packet);
    }
  }
}

Session* EngineLoop::session_of(std::uint64_t connection) {
  if (connection == 0) return nullptr;
  if (connection != recent_connection_) {
    const auto found = by_connection_.find(connection);
    if (found == by_connection_.end()) return nullptr;
    recent_connection_ = connection;
    recent_peer_ = found->second;
  }
  return recent_peer_->session.get();
}

// An address has gone, or come back. People are told once, however many peers there are.
void EngineLoop::on_addresses_changed() {
  const std::uint32_t missing = nic().missing_st(), back = missing_ & ~missing;
  const std::span<const NicAddress> addresses = nic().addresses();
  std::vector<Endpoint> told;  // several ports have one address
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    const Endpoint& address = addresses[i].endpoint;
    const bool is_told = std::any_of(told.begin(), told.end(), [&](const Endpoint& other) {
      return same_host_address(other, address);
    });
    if (((missing ^ missing_) >> i & 1) == 0 || is_told) continue;
    told.push_back(address);
    Endpoint host = address;
    set_port(host, 0);
    if ((missing >> i & 1) != 0) {
      TACO_LOG_WARNING("harp",
                       "this host no longer has the address %s, or its interface is down: paths "
                       "from there are left until it is back",
                       to_string(host).c_str());
    } else {
      TACO_LOG_INFO("harp", "the address %s is back", to_string(host).c_str());
    }
  }
  missing_ = missing;
  for (Peer* peer : linked_) {
    if (peer->session != nullptr) peer->session->on_addresses_changed(missing, back);
  }
}

void EngineLoop::on_addresses_added() {
  const std::span<const NicAddress> addresses = nic().addresses();
  for (; addresses_ < addresses.size(); ++addresses_) {
    Endpoint host = addresses[addresses_].endpoint;
    set_port(host, 0);
    TACO_LOG_INFO("harp", "this host has a new address, %s, which is used from now on",
                  to_string(host).c_str());
  }
  for (Peer* peer : linked_) {
    if (peer->session != nullptr) peer->session->on_addresses_added();
  }
}

// What this host has itself leads nowhere: bridges often have one address on every host.
std::optional<std::uint32_t> EngineLoop::way_to(const Endpoint& remote) {
  const std::span<const NicAddress> addresses = nic().addresses();
  std::optional<std::uint32_t> found;
  const auto source = options_.route(remote);
  for (std::uint32_t i = 0; i < addresses.size(); ++i) {
    const Endpoint& own = addresses[i].endpoint;
    if (same_host_address(own, remote)) return std::nullopt;
    if (!found && source && same_host_address(own, *source)) found = i;
  }
  return found;
}

std::vector<Endpoint> EngineLoop::published_by(std::uint64_t incarnation) {
  std::vector<Endpoint> published;
  const Peer* const peer = peers_.find_incarnation(incarnation);
  if (peer == nullptr) return published;
  for (const PathAddress& path : peer->address.paths) published.push_back(path.endpoint);
  return published;
}

PairKey EngineLoop::key_of(const Address& peer) const {
  return pair_key(options_.own, {peer.incarnation, peer.secret}, options_.job_key);
}

std::optional<PairKey> EngineLoop::key_with(std::uint64_t incarnation) {
  const Peer* peer = peers_.find_incarnation(incarnation);
  if (peer == nullptr || peer->shares_host()) return std::nullopt;
  if (peer->session != nullptr) return peer->session->key();
  return key_of(peer->address);
}

Session& EngineLoop::session_with(std::uint64_t incarnation) {
  Peer& peer = *peers_.find_incarnation(incarnation);
  open_link_st(peer);
  // Lost, and needed by nobody, it makes room for those who come to need it.
  if (peer.matcher.lost()) look_at_idle_soon();
  return *peer.session;
}

Session* EngineLoop::begin_anew(std::uint64_t incarnation) {
  Peer& peer = *peers_.find_incarnation(incarnation);
  const bool loses = peer.session->busy() && peers_.is_referenced(peer);
  if (loses || peer.matcher.lost() || peer.matcher.is_waiting()) {
    peer.session->lose_to_new_session();
    look_at_idle_soon();
    return nullptr;
  }
  TACO_LOG_DEBUG("harp", "%s has begun its session anew", peer.description.c_str());
  forget_session(peer);
  open_session(peer);
  peer.matcher.begin_anew(*peer.session);
  peer.suspicion = {};
  if (peer.idle_since != 0) peer.idle_since = now();
  return peer.session.get();
}

void EngineLoop::on_reset(Session& session) {
  for (Peer* peer : linked_) {
    if (peer->session.get() == &session) return liveness_.on_reset_st(*peer, now());
  }
}

}  // namespace taco::harp
