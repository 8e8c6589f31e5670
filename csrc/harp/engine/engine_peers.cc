// When peers go. A peer is needed while a group refers to it. After that its link stays, for the
// next group of the same processes, as long as its process lives: ending it any earlier could not
// be told from leaving by a member of a group that is only just being made. So what is kept without
// being needed is bounded by the processes that run, and whatever has died, left, or not been
// reachable for long is forgotten: session, credit, matcher, shared memory, id.
#include <algorithm>

#include "base/log.h"
#include "harp/engine/engine_loop.h"

namespace taco::harp {
namespace {

constexpr Duration kLook = kSecond;
constexpr Duration kSoon = 10 * kMillisecond;
// A peer that has left may not have heard yet that its goodbye has arrived.
constexpr Duration kFarewell = kSecond;
// Nobody waits for an idle peer: there is time to be sure that it is gone.
constexpr int kTimeouts = 3;

}  // namespace

void EngineLoop::take_released_st() {
  assert_owner();
  for (Peer* peer : peers_.take_released()) {
    if (peer->idle_since == 0) idle_.push_back(peer);
    peer->idle_since = now();
  }
  // Later in this turn, when everything that has arrived was heard.
  look_at_idle_soon();
}

void EngineLoop::look_at_idle_soon() {
  if (!idle_.empty()) session_timers_.arm(idle_timer_, now());
}

void EngineLoop::on_idle_timer(Timer& timer, Time now) {
  auto& self = *static_cast<EngineLoop*>(timer.context);
  Time next = kNever;
  std::erase_if(self.idle_, [&](Peer* peer) {
    if (self.peers_.is_referenced(*peer)) {
      peer->idle_since = 0;
      return true;
    }
    const Time look = self.examine_idle(*peer, now);
    if (look != 0) {
      next = std::min(next, look);
      return false;
    }
    self.end_peer_st(*peer);
    return true;
  });
  self.session_timers_.arm(timer, next);
}

// When to look again; 0: it is gone, and so is everything it had a part in.
Time EngineLoop::examine_idle(Peer& peer, Time now) {
  if (peer.opening || peer.matcher.expecting() || matching_.completions.concerns(peer.id)) {
    return now + kSoon;
  }
  if (peer.link == nullptr) return 0;
  if (peer.reach == Reach::kSelf) return kNever;
  if (peer.matcher.lost()) {
    const bool heard_out = !peer.link->busy() && now - peer.idle_since >= kFarewell;
    return peer.matcher.left() && !heard_out ? now + kSoon : 0;
  }
  if (peer.reach == Reach::kMemory) {
    const bool connected = peer.shm->is_connected();
    return connected || now - peer.idle_since < kTimeouts * options_.peer_timeout ? now + kLook : 0;
  }
  Session& session = *peer.session;
  if (session.ended()) return 0;
  const Time base = std::max(session.last_heard(), peer.idle_since);
  if (now - base >= kTimeouts * options_.peer_timeout) return 0;
  if (now - std::max(base, peer.suspicion.last_probe) >= options_.peer_timeout) {
    peer.suspicion.last_probe = now;
    session.probe();
  }
  return now + std::min(kLook, options_.peer_timeout / 2);
}

void EngineLoop::end_peer_st(Peer& peer) {
  assert_owner();
  const std::unique_ptr<Peer> ended = peers_.remove(peer);
  if (ended == nullptr) {  // a new group has just come to need it
    peer.idle_since = 0;
    return;
  }
  TACO_LOG_DEBUG("harp", "%s is gone, and nobody needs it", peer.description.c_str());
  const auto place = std::ranges::find(linked_, &peer);
  if (place != linked_.end()) {
    if (static_cast<std::size_t>(place - linked_.begin()) < news_.untold) --news_.untold;
    linked_.erase(place);
  }
  if (peer.shares_host()) std::erase(near_, &peer);
  forget_session(peer);
  liveness_.forget_st(peer);
  if (peer.shm != nullptr) shm_->close(peer.shm);
}

void EngineLoop::leave_st() {
  assert_owner();
  for (Peer* peer : linked_) {
    if (!peer->matcher.lost()) peer->link->leave();
  }
}

void EngineLoop::end_st(const Status& why) {
  assert_owner();
  matching_.observer = nullptr;
  // Peers that have come since all others were said goodbye to are told that this process leaves,
  // or they would take it for dead.
  leave_st();
  if (has_ready()) run_transmits();
  for (Peer* peer : linked_) {
    if (!peer->matcher.lost()) peer->matcher.on_lost(why);
  }
  while (!matching_.completions.empty()) matching_.completions.run(nullptr);
  // Groups may hold the Stack for long yet. A peer that has not heard of us so far and calls now
  // must find nobody here, instead of waiting for an answer.
  nic().close_st();
}

}  // namespace taco::harp
