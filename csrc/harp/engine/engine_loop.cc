// A turn of the loop, and the Transport's calls.
#include "harp/engine/engine_loop.h"

#include <algorithm>
#include <array>

namespace taco::harp {
namespace {

// A loop that begins a turn later than this asks why.
constexpr Duration kGap = 2 * kMillisecond;
// Most bursts taken before timers are looked at; what is left then waits for the next turn.
constexpr int kDrainBursts = 64;
// Tables that have grown are looked at again so much later: whoever needs them all the time keeps
// them.
constexpr Duration kTrimAfter = kSecond;

// So many sessions hear in one turn that addresses have changed: half a millisecond's work, for
// which others can wait.
constexpr std::size_t kToldATurn = 32;

const char* name_of(Path::Standing standing) {
  switch (standing) {
    case Path::Standing::kProving:
      return "proving";
    case Path::Standing::kLive:
      return "live";
    case Path::Standing::kLeft:
      return "left";
    case Path::Standing::kResting:
      return "resting";
  }
  return "";
}

Status gone() {
  return Status(Code::kInvalidArgument, "the peer was released, and its process is gone");
}

}  // namespace

EngineLoop::EngineLoop(const LoopOptions& options, const Token& token, Nic& nic, ShmEndpoint* shm,
                       PeerTable& peers)
    : SessionHost(nic, buffers_),
      options_(options),
      token_(token),
      shm_(shm),
      peers_(peers),
      liveness_(session_timers_),
      strays_(*this, options.own.incarnation, *this),
      arrivals_(nic.arrivals_st()) {
  note_new_addresses();
  matching_.observer = &services_;
  idle_timer_.on_expiry = on_idle_timer;
  trim_timer_.on_expiry = on_trim_timer;
  idle_timer_.context = trim_timer_.context = this;
}

bool EngineLoop::is_late_st(Time now) const {
  return expected_back_ != kNever && now - expected_back_ > kGap;
}

void EngineLoop::begin_turn_st(Time now, Duration worked) {
  assert_owner();
  set_now(now);
  gap_ = is_late_st(now) ? now - expected_back_ : 0;
  expected_back_ = now;
  if (gap_ > 0) extend_deadlines(gap_, excuses_.grant(now, gap_, worked));
}

// Before anything is submitted or heard that counts from now on. What has waited to be heard tells
// nothing of the network's time, whatever it waited for.
void EngineLoop::extend_deadlines(Duration late, Duration away) {
  if (away > 0) {
    timers_.postpone_all(away);
    liveness_.on_gap_st(away);
  }
  tell_of_gap(late, away);
}

bool EngineLoop::turn_st() {
  assert_owner();
  bool worked = self_ != nullptr && self_->progress();

  // Timers judge by silence, so everything that has arrived is heard first.
  const bool timers_due = gap_ > 0 || next_deadline_st() <= now();
  bool full = true;
  for (int bursts = 0; full && bursts < (timers_due ? kDrainBursts : 1); ++bursts) {
    worked |= receive_burst(&full);
    if (take_pressing()) run_transmits();
  }
  if (nic().missing_st() != missing_ || nic().arrivals_st() != arrivals_) look_at_addresses();
  if (news_.untold > 0) {
    tell_sessions(kToldATurn);
    worked = true;
  }
  for (const Refusal& refusal : nic().take_refusals_st()) {
    if (Peer* const peer = addressee_of(refusal.quoted)) {
      liveness_.on_refusal_st(*peer, refusal, now());
    }
  }
  if (!matching_.large.empty() && trim_timer_.deadline == kNever) {
    session_timers_.arm(trim_timer_, now() + kTrimAfter);
  }
  worked |= timers_.run_due(now()) > 0;
  worked |= session_timers_.run_due(now()) > 0;

  if (!matching_.completions.empty()) {
    matching_.completions.run(matching_.observer);
    worked = true;
  }
  if (has_ready() || credit().owes_turns()) {
    run_transmits();
    // A full Nic is no reason to turn again at once.
    worked |= !nic_full();
  }
  return worked || !matching_.completions.empty();
}

void EngineLoop::on_trim_timer(Timer& timer, Time now) {
  auto& self = *static_cast<EngineLoop*>(timer.context);
  std::erase_if(self.matching_.large, [](Matcher* matcher) { return matcher->trim(); });
  if (!self.matching_.large.empty()) self.session_timers_.arm(timer, now + kTrimAfter);
}

void EngineLoop::transmit_eager_st() {
  assert_owner();
  if (has_ready_eager()) run_transmits();
}

// Where nothing has come for a while most often nothing has come yet, or a single packet: a Nic
// asked for that alone has less to do. Where one has come there may be more.
bool EngineLoop::receive_burst(bool* full) {
  std::array<RxPacket, Nic::kReceiveBurst> packets;
  const std::size_t most = burst_;
  const std::size_t count = nic().receive_st(std::span(packets).first(most));
  for (std::size_t i = 0; i < count; ++i) on_packets_st(packets[i]);
  burst_ = count > 0 ? packets.size() : 1;
  *full = count == most;
  return count > 0;
}

bool EngineLoop::may_sleep_st() const {
  assert_owner();
  if (!matching_.completions.empty() || (has_ready() && !nic_full())) return false;
  if (news_.untold > 0) return false;
  return self_ == nullptr || !self_->busy();
}

bool EngineLoop::is_quiet_st() {
  assert_owner();
  return matching_.completions.empty() && !has_ready() && news_.untold == 0 && !any_link_busy_st();
}

Time EngineLoop::next_deadline_st() const {
  assert_owner();
  return std::min(timers_.next_deadline(), session_timers_.next_deadline());
}

bool EngineLoop::has_open_requests_st() const {
  assert_owner();
  return matching_.expecting > 0;
}

// A caller that has waited asks whenever it leaves, and most of thousands of sessions are idle.
bool EngineLoop::any_link_busy_st() {
  assert_owner();
  return any_busy() || std::ranges::any_of(near_, [](const Peer* peer) {
           return !peer->matcher.lost() && peer->link->busy();
         });
}

// Null: it was released, and is gone.
Peer* EngineLoop::peer_of(PeerId id) const {
  assert_owner();
  return peers_.find(id);
}

void EngineLoop::send_st(PeerId id, SendRequest& request) {
  Peer* const peer = peer_of(id);
  request.peer = id;
  if (peer == nullptr) return matching_.completions.push(request, gone());
  link_of(*peer);
  ++peer->requests;
  peer->matcher.send(request);
  if (peer->session != nullptr) liveness_.watch_st(*peer, now());
}

void EngineLoop::recv_st(PeerId id, RecvRequest& request) {
  Peer* const peer = peer_of(id);
  request.peer = id;
  if (peer == nullptr) return matching_.completions.push(request, gone());
  link_of(*peer);
  ++peer->requests;
  peer->matcher.recv(request);
  // A receive of an eager message says nothing to the link, whose watch over the peer's life begins
  // with the connection.
  if (peer->shm != nullptr && !peer->shm->is_connected()) peer->shm->connect();
  if (peer->session != nullptr) liveness_.watch_st(*peer, now());
}

void EngineLoop::cancel_st(SendRequest& request, const Status& why) {
  if (Peer* peer = peer_of(request.peer)) peer->matcher.cancel(request, why);
}

void EngineLoop::cancel_st(RecvRequest& request, const Status& why) {
  if (Peer* peer = peer_of(request.peer)) peer->matcher.cancel(request, why);
}

void EngineLoop::release_st(Staging& staging) {
  assert_owner();
  if (staging.block == nullptr) return;
  shm_->release(staging);  // nothing else stages
}

bool EngineLoop::has_unmatched_st(PeerId id, const MessageKey& key) const {
  const Peer* peer = peer_of(id);
  return peer != nullptr && peer->matcher.has_unmatched(key);
}

void EngineLoop::solicit_st(PeerId id, const MessageKey& key) {
  Peer* const peer = peer_of(id);
  if (peer == nullptr) return;
  link_of(*peer);
  peer->matcher.solicit(key);
}

void EngineLoop::forget_group_st(std::uint64_t group) {
  assert_owner();
  matching_.over.add(group);
  for (Peer* peer : linked_) peer->matcher.forget_group(group);
}

void EngineLoop::notify_st(PeerId id, std::span<const std::byte> bytes) {
  Peer* const peer = peer_of(id);
  if (peer == nullptr) return;
  link_of(*peer);
  peer->matcher.notify(bytes);
}

bool EngineLoop::is_idle_st(PeerId id) const {
  const Peer* peer = peer_of(id);
  if (matching_.completions.concerns(id)) return false;
  return peer == nullptr || peer->link == nullptr || !peer->link->busy();
}

void EngineLoop::arm_st(Timer& timer, Time deadline) {
  assert_owner();
  timers_.arm(timer, deadline);
}

void EngineLoop::disarm_st(Timer& timer) {
  assert_owner();
  timers_.disarm(timer);
}

bool EngineLoop::is_local_st(PeerId id) const {
  const Peer* peer = peer_of(id);
  return peer != nullptr && peer->shares_host();
}

Status EngineLoop::loss_st(PeerId id) const {
  const Peer* peer = peer_of(id);
  return peer != nullptr ? peer->matcher.loss() : gone();
}

std::vector<PathReport> EngineLoop::paths_st() const {
  assert_owner();
  std::vector<PathReport> reports;
  for (const Peer* peer : linked_) {
    if (peer->session == nullptr || peer->session->ended()) continue;
    for (const auto& path : peer->session->paths()) {
      PathReport& report = reports.emplace_back();
      report.peer = peer->description;
      report.local = to_string(nic().addresses()[path->pair().local].endpoint);
      report.remote = to_string(path->pair().remote);
      report.state = name_of(path->standing());
      report.round_trip = path->round_trip();
      report.window = path->window();
      report.bytes_sent = path->payload_sent();
      report.lost = path->packets_lost();
      report.datagram = path->mtu().size();
    }
  }
  return reports;
}

void EngineLoop::add_to_st(StackStats& stats) {
  assert_owner();
  const ProtocolCounters& protocol = counters();
  stats.bytes_sent += protocol.bytes_sent;
  stats.bytes_received += protocol.bytes_received;
  stats.packets_sent += protocol.packets_sent;
  stats.packets_received += protocol.packets_received;
  stats.retransmits += protocol.retransmits;
  stats.spurious_retransmits += protocol.spurious_retransmits;
  stats.checksum_failures += protocol.checksum_failures + protocol.forged;
  stats.refused_packets +=
      protocol.malformed + protocol.unproven + protocol.unsealed + protocol.early;
  stats.duplicates += protocol.duplicates;
  stats.paths_left += protocol.paths_left;
  stats.paths_moved += protocol.paths_moved;
  stats.bytes_copied += matching_.bytes_copied;
  stats.socket_overflows += nic().overflows();
  for (const Peer* peer : linked_) {
    stats.sessions += peer->session != nullptr ? 1 : 0;
    if (peer->session != nullptr && peer->session->established()) {
      stats.path_bytes = StackStats::narrower(stats.path_bytes, peer->session->path_size());
      stats.paths += peer->session->paths().live();
    }
    stats.unmatched += peer->matcher.kept_for_peer();
  }
  stats.peers += peers_.size();
  stats.credit_outstanding += credit().outstanding();
}

}  // namespace taco::harp
