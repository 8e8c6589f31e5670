#include "support/sim_process.h"

#include <algorithm>
#include <array>

namespace taco::harp {
namespace {

constexpr Duration kNoticeableGap = 2 * kMillisecond;
constexpr Duration kRetryFullNic = 100 * kMicrosecond;

}  // namespace

SimProcess::SimProcess(SimNetwork& network, std::uint64_t seed, Observer* observer)
    : SimProcess(std::make_unique<SimNic>(network), std::make_unique<MatcherHost>(), seed) {
  matching_.observer = observer;
}

SimProcess::SimProcess(std::unique_ptr<SimNic> nic, std::unique_ptr<MatcherHost> matching,
                       std::uint64_t seed)
    : SessionHost(*nic, matching->buffers),
      nic_(std::move(nic)),
      matching_owner_(std::move(matching)),
      matching_(*matching_owner_),
      random_(seed),
      incarnation_(random_.next()) {
  for (std::byte& byte : secret_) byte = static_cast<std::byte>(random_.next());
  strays_ = std::make_unique<StrayPackets>(*this, Identity{incarnation_, secret_},
                                           static_cast<StrayPackets::Peers&>(*this));
}

SimProcess::~SimProcess() { peers_.clear(); }

void SimProcess::know(const std::vector<std::unique_ptr<SimProcess>>& cluster) {
  peers_.resize(cluster.size());
  for (std::size_t i = 0; i < cluster.size(); ++i) {
    peers_[i].incarnation = cluster[i]->incarnation_;
    peers_[i].secret = cluster[i]->secret_;
  }
}

Session& SimProcess::ensure(std::uint32_t node) {
  Peer& peer = peers_[node];
  if (peer.session == nullptr) {
    peer.matcher = std::make_unique<Matcher>(node, matching_);
    open_session(node);
    peer.matcher->attach(*peer.session);
  }
  return *peer.session;
}

void SimProcess::open_session(std::uint32_t node) {
  Peer& peer = peers_[node];
  SessionConfig config;
  config.own_incarnation = incarnation_;
  config.peer_incarnation = peer.incarnation;
  config.key = pair_key({incarnation_, secret_}, {peer.incarnation, peer.secret});
  config.peer_endpoint = SimNetwork::endpoint(node, address_);
  config.local_path = address_;
  config.description = "node " + std::to_string(node);
  config.congestion = congestion_;
  config.peer_timeout = peer_timeout_;
  peer.session = std::make_unique<Session>(std::move(config), *this, *peer.matcher);
}

Matcher& SimProcess::matcher(std::uint32_t node) {
  ensure(node);
  return *peers_[node].matcher;
}

Session* SimProcess::session(std::uint32_t node) { return peers_[node].session.get(); }

void SimProcess::drop(std::uint32_t node) {
  peers_[node].session.reset();
  peers_[node].matcher.reset();
}

void SimProcess::turn(Time now) {
  if (now < stalled_until_) return;
  set_now(now);
  const Duration gap = stalled_until_ > last_turn_ ? stalled_until_ - last_turn_ : 0;
  if (gap > kNoticeableGap) {
    for (Peer& peer : peers_) {
      if (peer.session != nullptr) peer.session->on_gap(gap);
    }
  }
  receive();
  last_turn_ = now;
  fire_timers();
  more_ = run_transmits() && !nic_full();
  matching_.completions.run(matching_.observer);
  more_ |= !matching_.completions.empty() || nic_->has_received();
}

void SimProcess::receive() {
  std::array<RxPacket, 8> burst;
  for (;;) {
    const std::size_t count = nic_->receive_st(burst);
    for (std::size_t i = 0; i < count; ++i) dispatch(burst[i]);
    if (count < burst.size()) return;
  }
}

// As the engine does: a whole run to the session of its first datagram, else one by one.
void SimProcess::dispatch(const RxPacket& packets) {
  if (Session* session = session_of(wire::peek_connection(packets.data))) {
    return session->on_packets(packets);
  }
  const std::size_t stride =
      packets.segment_bytes == 0 ? packets.data.size() : packets.segment_bytes;
  for (std::size_t at = 0; at < packets.data.size(); at += stride) {
    RxPacket packet = packets;
    packet.data = packets.data.subspan(at, std::min(stride, packets.data.size() - at));
    packet.segment_bytes = 0;
    if (Session* session = session_of(wire::peek_connection(packet.data))) {
      session->on_packets(packet);
    } else {
      strays_->take(packet);
    }
  }
}

Session* SimProcess::session_of(std::uint64_t connection) {
  for (Peer& peer : peers_) {
    if (peer.session != nullptr && peer.session->connection_id() == connection) {
      return peer.session.get();
    }
  }
  return nullptr;
}

std::optional<PairKey> SimProcess::key_with(std::uint64_t incarnation) {
  for (const Peer& peer : peers_) {
    if (peer.incarnation == incarnation) {
      return pair_key({incarnation_, secret_}, {peer.incarnation, peer.secret});
    }
  }
  return std::nullopt;
}

std::uint32_t SimProcess::node_of(std::uint64_t incarnation) const {
  std::uint32_t node = 0;
  while (peers_[node].incarnation != incarnation) ++node;
  return node;
}

Session& SimProcess::session_with(std::uint64_t incarnation) {
  return ensure(node_of(incarnation));
}

// As the engine does with a peer that somebody needs.
Session* SimProcess::begin_anew(std::uint64_t incarnation) {
  const std::uint32_t node = node_of(incarnation);
  Peer& peer = peers_[node];
  if (peer.session->busy() || peer.matcher->lost() || peer.matcher->is_waiting()) {
    peer.session->lose_to_new_session();
    return nullptr;
  }
  open_session(node);
  peer.matcher->begin_anew(*peer.session);
  return peer.session.get();
}

void SimProcess::fire_timers() {
  for (;;) {
    Timer* due = nullptr;
    for (Timer* timer : timers_) {
      if (timer->deadline <= now() && (due == nullptr || timer->deadline < due->deadline)) {
        due = timer;
      }
    }
    if (due == nullptr) return;
    disarm(*due);
    due->on_expiry(*due, now());
  }
}

void SimProcess::arm(Timer& timer, Time deadline) {
  timer.deadline = deadline;
  if (timer.heap_index != SIZE_MAX) return;
  timer.heap_index = timers_.size();
  timers_.push_back(&timer);
}

void SimProcess::disarm(Timer& timer) {
  if (timer.heap_index == SIZE_MAX) return;
  timers_.back()->heap_index = timer.heap_index;
  std::swap(timers_[timer.heap_index], timers_.back());
  timers_.pop_back();
  timer.heap_index = SIZE_MAX;
  timer.deadline = kNever;
}

Time SimProcess::next_event() const {
  Time next = kNever;
  if (more_ || nic_->has_received() || (has_ready() && !nic_full())) next = now();
  if (nic_full()) next = std::min(next, now() + kRetryFullNic);
  for (const Timer* timer : timers_) next = std::min(next, timer->deadline);
  next = std::min(next, nic_->wake_time());
  return std::max(next, stalled_until_);
}

bool SimProcess::busy() const {
  for (const Peer& peer : peers_) {
    if (peer.session != nullptr && peer.session->busy()) return true;
  }
  return !matching_.completions.empty();
}

void SimProcess::leave() {
  for (Peer& peer : peers_) {
    if (peer.session != nullptr) peer.session->leave();
  }
}

}  // namespace taco::harp
