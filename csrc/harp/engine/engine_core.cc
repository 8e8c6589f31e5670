// How others reach the engine: submitting, waiting, the Transport's calls, statistics, the end.
#include "harp/engine/engine_core.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "harp/fork.h"

namespace taco::harp {
namespace {

Status gone() {
  return Status(Code::kInvalidArgument, "the peer was released, and its process is gone");
}

}  // namespace

EngineCore::EngineCore(const EngineOptions& options, std::unique_ptr<Nic> nic,
                       std::unique_ptr<ShmEndpoint> shm, PeerTable& peers)
    : SessionHost(*nic, buffers_),
      options_(options),
      nic_owner_(std::move(nic)),
      shm_(std::move(shm)),
      peers_(peers),
      duty_(static_cast<Driven&>(*this)),
      liveness_(session_timers_, linked_),
      strays_(*this, options.own, *this),
      generation_(fork_generation()) {
  released_.engine = this;
  idle_timer_.on_expiry = on_idle_timer;
  idle_timer_.context = this;
}

Result<std::unique_ptr<EngineCore>> EngineCore::create(const EngineOptions& options,
                                                       std::unique_ptr<Nic> nic,
                                                       std::unique_ptr<ShmEndpoint> shm,
                                                       PeerTable& peers) {
  std::unique_ptr<EngineCore> engine(
      new EngineCore(options, std::move(nic), std::move(shm), peers));
  TACO_RETURN_IF_ERROR(engine->start());
  return engine;
}

Status EngineCore::start() {
  for (std::unique_ptr<WaitSet>* slot : {&thread_set_, &caller_set_}) {
    auto set = WaitSet::create();
    if (!set.ok()) return set.status();
    *slot = std::move(set).value();
    for (const NicDescriptor& each : nic().descriptors()) {
      TACO_RETURN_IF_ERROR((*slot)->add(each.fd));
    }
    if (shm_ == nullptr) continue;
    TACO_RETURN_IF_ERROR((*slot)->add(shm_->doorbell_fd(), /*edge=*/true));
    TACO_RETURN_IF_ERROR((*slot)->add_event(shm_->events_fd()));
  }
  set_now(monotonic_now());
  expected_back_ = now();
  peers_changed();
  // Signals belong to the program's own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { duty_.run(); });
  pthread_setname_np(thread_.native_handle(), "taco-engine-0");
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return {};
}

// Never runs in a forked child, where the thread does not exist and the descriptors are closed: the
// Stack leaves the engine alone there.
EngineCore::~EngineCore() { close(0); }

// In a forked child nobody runs tasks, and the descriptors that would wake somebody are closed:
// their numbers may be another file's by now.
void EngineCore::submit(Task& task, bool caller_will_wait) {
  if (generation_ != fork_generation()) return;
  queue_.push(task);
  if (!caller_will_wait) duty_.submitted();
}

bool EngineCore::wait(const Event& event, Time deadline) {
  if (generation_ != fork_generation()) return event.is_set();
  return duty_.wait(event, deadline);
}

void EngineCore::assert_owner() const {
  if (duty_.held_by_me()) [[likely]]
    return;
  TACO_LOG_ERROR("harp", "an engine function was called without the engine's token");
  abort();
}

// Null: it was released, and is gone.
Peer* EngineCore::peer_of(PeerId id) const {
  assert_owner();
  return peers_.find(id);
}

Link& EngineCore::link_of(Peer& peer) {
  if (peer.link == nullptr) open_link_st(peer);
  return *peer.link;
}

void EngineCore::open_link_st(Peer& peer) {
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

void EngineCore::open_session(Peer& peer) {
  SessionConfig config;
  config.own_incarnation = options_.own.incarnation;
  config.peer_incarnation = peer.address.incarnation;
  config.key = pair_key(options_.own, {peer.address.incarnation, peer.address.secret});
  config.peer_endpoint = peer.route.remote.endpoint;
  config.local_path = peer.route.local_path;
  config.max_datagram = std::min(nic().addresses()[peer.route.local_path].max_datagram,
                                 max_datagram(peer.route.remote.endpoint, peer.route.remote.mtu));
  config.peer_timeout = options_.peer_timeout;
  config.description = peer.description;
  config.congestion = options_.congestion;
  peer.session =
      std::make_unique<Session>(std::move(config), static_cast<SessionHost&>(*this), peer.matcher);
  by_connection_[peer.session->connection_id()] = &peer;
  peer.link = peer.session.get();
}

// No packet finds the peer's session any more.
void EngineCore::forget_session(const Peer& peer) {
  if (peer.session != nullptr) by_connection_.erase(peer.session->connection_id());
  recent_connection_ = 0;
  recent_peer_ = nullptr;
}

void EngineCore::send_st(PeerId id, SendRequest& request) {
  Peer* const peer = peer_of(id);
  request.peer = id;
  if (peer == nullptr) return matcher_host_.completions.push(request, gone());
  link_of(*peer);
  ++peer->requests;
  peer->matcher.send(request);
  if (peer->session != nullptr) liveness_.watch_st(now());
}

void EngineCore::recv_st(PeerId id, RecvRequest& request) {
  Peer* const peer = peer_of(id);
  request.peer = id;
  if (peer == nullptr) return matcher_host_.completions.push(request, gone());
  link_of(*peer);
  ++peer->requests;
  peer->matcher.recv(request);
  // A receive of an eager message says nothing to the link, whose watch over the peer's life begins
  // with the connection.
  if (peer->shm != nullptr && !peer->shm->is_connected()) peer->shm->connect();
  if (peer->session != nullptr) liveness_.watch_st(now());
}

void EngineCore::cancel_st(SendRequest& request, const Status& why) {
  if (Peer* peer = peer_of(request.peer)) peer->matcher.cancel(request, why);
}

void EngineCore::cancel_st(RecvRequest& request, const Status& why) {
  if (Peer* peer = peer_of(request.peer)) peer->matcher.cancel(request, why);
}

void EngineCore::release_st(Staging& staging) {
  assert_owner();
  if (staging.block == nullptr) return;
  shm_->release(staging);  // nothing else stages
}

bool EngineCore::has_unmatched_st(PeerId id, const MessageKey& key) const {
  const Peer* peer = peer_of(id);
  return peer != nullptr && peer->matcher.has_unmatched(key);
}

void EngineCore::solicit_st(PeerId id, const MessageKey& key) {
  Peer* const peer = peer_of(id);
  if (peer == nullptr) return;
  link_of(*peer);
  peer->matcher.solicit(key);
}

void EngineCore::forget_group_st(std::uint64_t group) {
  assert_owner();
  matcher_host_.over.add(group);
  for (Peer* peer : linked_) peer->matcher.forget_group(group);
}

void EngineCore::notify_st(PeerId id, std::span<const std::byte> bytes) {
  Peer* const peer = peer_of(id);
  if (peer == nullptr) return;
  link_of(*peer);
  peer->matcher.notify(bytes);
}

void EngineCore::arm_st(Timer& timer, Time deadline) {
  assert_owner();
  timers_.arm(timer, deadline);
}

void EngineCore::disarm_st(Timer& timer) {
  assert_owner();
  timers_.disarm(timer);
}

bool EngineCore::is_local_st(PeerId id) const {
  const Peer* peer = peer_of(id);
  return peer != nullptr && peer->shares_host();
}

void EngineCore::set_observer(Observer* observer) {
  if (closed_.load() && !in_engine()) return;
  run_and_wait([&] { matcher_host_.observer = observer; });
}

// Between two looks the core is always given away: whoever we wait for may need this very one, and
// on an idle core giving it away costs next to nothing. Measured on 2 busy cores, half a round trip
// of 8 B over UDP: 47 us when polling 40 us without, 4.8 us with.
//
// A caller polls for longer than a small operation takes. A rank that sleeps is woken on whatever
// core suits the scheduler; it often puts three of four ranks on one of two cores, and as pollers
// never look idle, there they stay. Measured, 4 hosts on 2 cores, all_reduce of 8 B: 300 us when
// polling 20 us, 250 at 50, 120 at 200, 105 at 400, and large messages no slower. The engine's
// thread works beside the program, so it polls briefly.
void EngineCore::peers_changed() {
  const long cores = std::max(1L, sysconf(_SC_NPROCESSORS_ONLN));
  const bool crowded = static_cast<long>(peers_.local_count()) + 1 > cores;
  Duration caller = 400 * kMicrosecond;
  Duration thread = crowded ? 20 * kMicrosecond : 50 * kMicrosecond;
  if (options_.spin_us >= 0) caller = thread = options_.spin_us * kMicrosecond;
  duty_.set_spin(caller, thread);
}

StackStats EngineCore::stats() {
  if (closed_.load()) return last_stats_;
  StackStats stats;
  run_and_wait([&] {
    const ProtocolCounters& protocol = counters();
    stats.bytes_sent = protocol.bytes_sent;
    stats.bytes_received = protocol.bytes_received;
    stats.packets_sent = protocol.packets_sent;
    stats.packets_received = protocol.packets_received;
    stats.retransmits = protocol.retransmits;
    stats.spurious_retransmits = protocol.spurious_retransmits;
    stats.checksum_failures = protocol.checksum_failures;
    stats.duplicates = protocol.duplicates;
    stats.bytes_copied = matcher_host_.bytes_copied;
    stats.socket_overflows = nic().overflows();
    for (const Peer* peer : linked_) {
      stats.sessions += peer->session != nullptr ? 1 : 0;
      if (peer->session != nullptr && peer->session->established())
        stats.path_bytes = StackStats::narrower(stats.path_bytes, peer->session->path_size());
      stats.unmatched += peer->matcher.kept_for_peer();
    }
    stats.peers = peers_.size();
    stats.credit_outstanding = credit().outstanding();
    stats.sleeps = duty_.sleeps();
  });
  if (shm_ != nullptr) {
    const ShmStats& shm = shm_->stats();
    stats.shm_bytes = shm.bytes_sent.load(std::memory_order_relaxed);
    stats.shm_messages = shm.messages_sent.load(std::memory_order_relaxed);
    stats.doorbells = shm.doorbells.load(std::memory_order_relaxed);
    stats.shm_links = shm.links.load(std::memory_order_relaxed);
  }
  return stats;
}

void EngineCore::close(Duration linger) {
  if (closed_.exchange(true)) return;
  if (generation_ != fork_generation()) return;
  Event left;
  run_and_wait([&] {
    for (Peer* peer : linked_) {
      if (!peer->matcher.lost()) peer->link->leave();
    }
    left_ = &left;
  });
  duty_.wait(left, monotonic_now() + linger);
  run_and_wait([&] {
    left_ = nullptr;
    matcher_host_.observer = nullptr;
    const Status closed(Code::kAborted, "the transport was closed");
    for (Peer* peer : linked_) {
      if (!peer->matcher.lost()) peer->matcher.on_lost(closed);
    }
    while (!matcher_host_.completions.empty()) matcher_host_.completions.run(nullptr);
    // Groups may hold the Stack for long yet. Who has not heard of us so far and calls now must
    // find nobody here, instead of waiting for an answer.
    nic().close_st();
    if (shm_ != nullptr) shm_->stop();
  });
  duty_.stop();
  thread_.join();
}

}  // namespace taco::harp
