// Links and sessions: how a peer's is made on first use, which session a packet is for, and when a
// session begins anew.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "base/names.h"
#include "base/prefetch.h"
#include "harp/address.h"
#include "harp/engine/engine_loop.h"
#include "harp/engine/routes.h"

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
  if (peer.shares_host()) near_.push_back(&peer);
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
    const bool is_gone = (nic().missing_st() >> route.local_path & 1) != 0;
    const auto now = is_gone ? ways_to(route.remote.endpoint) : std::vector<std::uint32_t>();
    config.ways.push_back({route.remote.endpoint, now.empty() ? route.local_path : now.front()});
  }
  config.max_datagram = std::min(nic().addresses()[config.ways.front().local].max_datagram,
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

Peer* EngineLoop::peer_at(const Session& session) const {
  const auto found = by_connection_.find(session.connection_id());
  return found == by_connection_.end() ? nullptr : found->second;
}

// The peer to which a packet went of which this is the beginning. Null: we have not sent it, as far
// as the connection that it quotes shows. Anybody may ask, so it takes no search.
Peer* EngineLoop::addressee_of(std::span<const std::byte> quoted) const {
  if (quoted.size() < sizeof(wire::Header)) return nullptr;
  if (!wire::is_hello(quoted)) {
    const std::uint64_t id = wire::peek_connection(quoted);
    const Session* const session = id == 0 ? nullptr : session_to(id);
    return session == nullptr ? nullptr : peer_at(*session);
  }
  // A hello carries no connection of the peer's yet, but ours.
  wire::Hello hello;
  if (quoted.size() < sizeof(wire::Header) + sizeof hello) return nullptr;
  std::memcpy(&hello, quoted.data() + sizeof(wire::Header), sizeof hello);
  const auto found = by_connection_.find(hello.sender_connection);
  return found == by_connection_.end() ? nullptr : found->second;
}

// Addresses have gone, come back, or are new. Of what was before that, sessions hear before.
void EngineLoop::look_at_addresses() {
  tell_sessions(news_.untold);
  const std::uint32_t missing = nic().missing_st();
  const std::uint32_t changed = std::exchange(missing_, missing) ^ missing;
  const std::uint32_t added = note_new_addresses();
  arrivals_ = nic().arrivals_st();
  add_late(added);
  tell_of_addresses(added, changed);
  news_ = {missing, changed, added, options_.routes(), linked_.size()};
}

// Those that are told in one turn send in the same one what follows, while the cache holds them.
void EngineLoop::tell_sessions(std::size_t most) {
  std::swap(routes_now_, news_.routes);
  for (; most > 0 && news_.untold > 0; --most) {
    prefetch_untold();
    told_ = linked_[--news_.untold];
    Session* const session = told_->session.get();
    if (session == nullptr) continue;
    const std::uint32_t back = news_.changed & ~news_.missing;
    if (news_.changed != 0) session->on_addresses_changed(news_.missing, back);
    if (news_.added != 0) session->on_addresses_added(news_.added);
  }
  told_ = nullptr;
  std::swap(routes_now_, news_.routes);
  if (news_.untold == 0) news_ = {};
}

// Sessions that rest are not in the caches, where there are thousands. Parts of the next ones come
// while one is told, each once it is known where it lies.
void EngineLoop::prefetch_untold() const {
  constexpr std::size_t kAhead = 3;
  const auto session_in = [&](std::size_t stages) -> const std::unique_ptr<Session>* {
    const std::size_t ahead = 1 + stages * kAhead;
    return news_.untold > ahead ? &linked_[news_.untold - 1 - ahead]->session : nullptr;
  };
  if (const auto* const place = session_in(4)) __builtin_prefetch(place);
  if (const auto* const place = session_in(3); place != nullptr && *place != nullptr) {
    prefetch(**place);
  }
  if (const auto* const place = session_in(2); place != nullptr && *place != nullptr) {
    (*place)->prefetch_parts();
  }
  if (const auto* const place = session_in(1); place != nullptr && *place != nullptr) {
    (*place)->prefetch_paths();
  }
}

// Returns the addresses that are not what they were (bit i: the i-th).
std::uint32_t EngineLoop::note_new_addresses() {
  const std::span<const NicAddress> addresses = nic().addresses();
  std::uint32_t added = 0;
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    if (i < hosts_.size() && same_host_address(hosts_[i], addresses[i].endpoint)) continue;
    added |= 1u << i;
    if (i == hosts_.size()) hosts_.emplace_back();
    hosts_[i] = addresses[i].endpoint;
    set_port(hosts_[i], 0);
  }
  return added;
}

// People are told once, however many peers or ports there are.
void EngineLoop::tell_of_addresses(std::uint32_t added, std::uint32_t changed) const {
  std::vector<Endpoint> told;
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    const bool is_new = (added >> i & 1) != 0;
    if ((!is_new && (changed >> i & 1) == 0) || std::ranges::count(told, hosts_[i]) != 0) continue;
    const std::string host = to_string(told.emplace_back(hosts_[i]));
    if (is_new) {
      TACO_LOG_INFO("harp", "this host has a new address, %s, which is used from now on",
                    host.c_str());
    } else if ((missing_ >> i & 1) != 0) {
      TACO_LOG_WARNING("harp",
                       "this host no longer has the address %s, or its interface is down: paths "
                       "from there are left until it is back",
                       host.c_str());
    } else {
      TACO_LOG_INFO("harp", "the address %s is back", host.c_str());
    }
  }
}

// An address that this host has itself leads nowhere: bridges often have one address on every host.
std::vector<std::uint32_t> EngineLoop::ways_to(const Endpoint& remote) {
  const std::span<const NicAddress> addresses = nic().addresses();
  const auto at = [&](const Endpoint& host) {
    return std::ranges::find_if(
        addresses, [&](const NicAddress& own) { return same_host_address(own.endpoint, host); });
  };
  std::vector<std::uint32_t> ways;
  if (at(remote) != addresses.end()) return ways;
  const RouteLookup& routes = routes_now_ ? routes_now_ : options_.routes();
  for (const Endpoint& source : routes(remote)) {
    const auto found = at(source);
    if (found == addresses.end()) continue;
    const auto local = static_cast<std::uint32_t>(found - addresses.begin());
    // A route may stay when a cable is pulled.
    if ((nic().missing_st() >> local & 1) == 0) ways.push_back(local);
  }
  return ways;
}

std::vector<std::vector<std::uint32_t>> EngineLoop::ways_to_each(
    std::span<const Endpoint> remotes) {
  const RouteLookup before = std::exchange(routes_now_, options_.routes());
  auto ways = SessionHost::ways_to_each(remotes);
  routes_now_ = before;
  return ways;
}

std::vector<Endpoint> EngineLoop::published_by(std::uint64_t incarnation) {
  std::vector<Endpoint> published;
  const bool is_told = told_ != nullptr && told_->address.incarnation == incarnation;
  const Peer* const peer = is_told ? told_ : peers_.find_incarnation(incarnation);
  if (peer == nullptr) return published;
  for (const PathAddress& path : peer->address.paths) published.push_back(path.endpoint);
  return published;
}

// One line a host, of which the processes have the same interfaces; none where there is nothing to
// choose from.
void EngineLoop::on_paths_opened(const Session& session) {
  if (log_level() > LogLevel::kInfo || session.paths_due() < 2) return;
  const Peer* const peer = peer_at(session);
  if (peer == nullptr) return;
  const Address& host = peer->address;
  const std::size_t hash = std::hash<std::string>{}(host.host_id + host.host_name);
  if (std::find(paths_told_.begin(), paths_told_.end(), hash) != paths_told_.end()) return;
  paths_told_.push_back(hash);
  std::string list;
  for (const auto& path : session.paths()) {
    append_name(list, to_string(nic().addresses()[path->pair().local].endpoint) + " to " +
                          to_string(path->pair().remote) + (path->is_live() ? "" : " (silent)"));
  }
  TACO_LOG_INFO("harp", "%zu of %zu paths to %s: %s", session.paths().live(), session.paths_due(),
                host.host_name.c_str(), list.c_str());
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
  if (Peer* const peer = peer_at(session)) liveness_.on_reset_st(*peer, now());
}

}  // namespace taco::harp
