// The engine's progress loop, one turn at a time.
#include <sched.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/log.h"
#include "harp/engine/engine_core.h"

namespace taco::harp {

namespace {

// A loop that was away for longer than this extends every deadline by it.
constexpr Duration kGap = 2 * kMillisecond;
// Most bursts taken before timers are looked at; what is left then waits for the next turn.
constexpr int kDrainBursts = 64;

}  // namespace

bool EngineCore::turn_st() {
  const Duration gap = note_time();
  if (gap > 0) extend_deadlines(gap);
  WaitSet& wait_set = set_of(duty_.caller_drives() ? Who::kCaller : Who::kEngineThread);
  wait_set.settle();
  bool worked = run_submitted();
  if (wait_set.take_event()) shm_->on_events(now());
  if (shm_ != nullptr) {
    keep_apart();
    worked |= shm_->poll(now());
  }
  if (self_ != nullptr) worked |= self_->progress();

  // Timers judge by silence, so everything that has arrived is heard first.
  const bool timers_due = gap > 0 || next_deadline_st() <= now();
  bool full = true;
  for (int bursts = 0; full && bursts < (timers_due ? kDrainBursts : 1); ++bursts) {
    worked |= receive_burst(&full);
  }
  for (const Refusal& refusal : nic().take_refusals_st()) liveness_.on_refusal_st(refusal, now());
  worked |= timers_.run_due(now()) > 0;
  worked |= session_timers_.run_due(now()) > 0;

  if (!matcher_host_.completions.empty()) {
    matcher_host_.completions.run(matcher_host_.observer);
    worked = true;
  }
  if (has_ready()) {
    run_transmits();
    // A full Nic is no reason to turn again at once.
    worked |= !nic_full();
  }
  if (left_ != nullptr && !any_link_busy()) {
    left_->set();
    left_ = nullptr;
  }
  return worked || !matcher_host_.completions.empty();
}

// Reads the clock, once a turn. Returns how long the loop was away without having meant to, when
// that is long enough to matter, else 0.
Duration EngineCore::note_time() {
  const Time time = monotonic_now();
  set_now(time);
  const Duration away = expected_back_ == kNever ? 0 : time - expected_back_;
  expected_back_ = time;
  return away > kGap ? away : 0;
}

// Before anything is submitted or heard that counts from now on.
void EngineCore::extend_deadlines(Duration gap) {
  timers_.postpone_all(gap);
  liveness_.on_gap_st(gap);
  for (Peer* peer : linked_) {
    if (peer->session != nullptr) peer->session->on_gap(gap);
  }
}

// Callers only: the engine's thread works beside the program, wherever there is room.
void EngineCore::keep_apart() {
  if (!duty_.caller_drives()) return;
  int core = sched_getcpu();
  if (placement_.is_due(now())) core = placement_.look(now(), core, shm_->peer_cores());
  shm_->publish_core(core);
}

void EngineCore::block(Who who) {
  if (who == Who::kCaller && shm_ != nullptr) shm_->publish_core(-1);
  set_of(who).block();
}

bool EngineCore::run_submitted() {
  if (queue_.empty()) return false;
  for (Task* task = queue_.take_all(); task != nullptr;) {
    // The task may be submitted again, or end its life, as soon as it has begun.
    Task* next = SubmitQueue::next(*task);
    task->run_st(*this);
    task = next;
  }
  return true;
}

bool EngineCore::receive_burst(bool* full) {
  std::array<RxPacket, Nic::kReceiveBurst> packets;
  const std::size_t count = nic().receive_st(packets);
  for (std::size_t i = 0; i < count; ++i) dispatch(packets[i]);
  *full = count == packets.size();
  return count > 0;
}

// Finds the session by connection id, never by the address a packet came from.
void EngineCore::dispatch(const RxPacket& packets) {
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

Session* EngineCore::session_of(std::uint64_t connection) {
  if (connection == 0) return nullptr;
  if (connection != recent_connection_) {
    const auto found = by_connection_.find(connection);
    if (found == by_connection_.end()) return nullptr;
    recent_connection_ = connection;
    recent_peer_ = found->second;
  }
  return recent_peer_->session.get();
}

std::optional<PairKey> EngineCore::key_with(std::uint64_t incarnation) {
  const Peer* peer = peers_.find_incarnation(incarnation);
  if (peer == nullptr || peer->shares_host()) return std::nullopt;
  if (peer->session != nullptr) return peer->session->key();
  return pair_key(options_.own, {peer->address.incarnation, peer->address.secret});
}

Session& EngineCore::session_with(std::uint64_t incarnation) {
  Peer& peer = *peers_.find_incarnation(incarnation);
  open_link_st(peer);
  // Lost, and needed by nobody, it makes room for those who come to need it.
  if (peer.matcher.lost()) look_at_idle_soon();
  return *peer.session;
}

Session* EngineCore::begin_anew(std::uint64_t incarnation) {
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

void EngineCore::on_reset(Session& session) {
  for (Peer* peer : linked_) {
    if (peer->session.get() == &session) return liveness_.on_reset_st(*peer, now());
  }
}

bool EngineCore::has_open_requests_st() const {
  for (const Peer* peer : linked_) {
    if (peer->matcher.expecting()) return true;
  }
  return false;
}

Time EngineCore::next_deadline_st() const {
  return std::min(timers_.next_deadline(), session_timers_.next_deadline());
}

bool EngineCore::prepare_sleep_st() {
  if (!queue_.empty() || !matcher_host_.completions.empty()) return false;
  if (has_ready() && !nic_full()) return false;
  if (self_ != nullptr && self_->busy()) return false;
  if (!asleep_ && shm_ != nullptr && !shm_->prepare_sleep()) return false;
  asleep_ = true;
  watch_for_room();
  expected_back_ = next_deadline_st();
  return true;
}

void EngineCore::cancel_sleep_st() {
  if (!asleep_) return;
  asleep_ = false;
  if (shm_ != nullptr) shm_->cancel_sleep();
  nic().look_everywhere_st();
}

// Peers on this host are not told, so they ring no bell; what this process has said meanwhile they
// are told of all the same.
bool EngineCore::prepare_doze_st(Time until) {
  if (!queue_.empty() || !matcher_host_.completions.empty() || has_ready()) return false;
  if (any_link_busy()) return false;
  if (shm_ != nullptr) shm_->flush();
  expected_back_ = until;
  return true;
}

// While an address is full, room in it is something to wake up for.
void EngineCore::watch_for_room() {
  const bool full = has_ready() && nic_full();
  if (full == watching_room_) return;
  watching_room_ = full;
  for (const NicDescriptor& each : nic().descriptors()) {
    const bool watch = full && nic().is_full_st(each.local_path);
    thread_set_->watch_writable(each.fd, watch);
    caller_set_->watch_writable(each.fd, watch);
  }
}

bool EngineCore::any_link_busy() const {
  for (const Peer* peer : linked_) {
    if (peer->link != nullptr && !peer->matcher.lost() && peer->link->busy()) return true;
  }
  return false;
}

std::uint64_t EngineCore::random() {
  std::uint64_t value = 0;
  while (getrandom(&value, sizeof value, 0) != sizeof value) {
  }
  return value;
}

}  // namespace taco::harp
