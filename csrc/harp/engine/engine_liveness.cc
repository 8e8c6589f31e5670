#include "harp/engine/engine_liveness.h"

#include <algorithm>
#include <string>
#include <utility>

#include "harp/address.h"
#include "harp/engine/peer.h"
#include "harp/session/session.h"

namespace taco::harp {

bool Suspicion::hint(std::uint32_t Suspicion::*count, Time now) {
  const bool first = hints() == 0;
  ++(this->*count);
  last = now;
  if (asked < now) asked = kNever;  // so that one did not get through either
  if (!first) return false;
  since = now;
  excused = 0;
  asked = kNever;
  on_probe(now);
  return true;
}

Liveness::Liveness(TimerHeap& timers) : timers_(timers) {
  tick_.on_expiry = on_tick;
  tick_.context = this;
}

Liveness::~Liveness() { timers_.disarm(tick_); }

void Liveness::add(Peer& peer) {
  if (!std::exchange(peer.watched, true)) watched_.push_back(&peer);
}

void Liveness::watch_st(Peer& peer, Time now) {
  add(peer);
  if (tick_.heap_index == SIZE_MAX) timers_.arm(tick_, now + kLook);
}

void Liveness::on_refusal_st(Peer& peer, const Refusal& refusal, Time now) {
  Session* const session = peer.session.get();
  if (session == nullptr || session->ended()) return;
  if (!session->sends_to(refusal.destination)) return;
  peer.suspicion.clear_if_heard(session->last_heard());
  peer.suspicion.partial = !session->on_refused(refusal.destination, refusal.quoted);
  peer.suspicion.patience =
      std::clamp(session->answer_time(), Suspicion::kSilence, Suspicion::kLongSilence);
  suspect(peer, &Suspicion::refusals, now);
}

void Liveness::on_reset_st(Peer& peer, Time now) { suspect(peer, &Suspicion::resets, now); }

void Liveness::suspect(Peer& peer, std::uint32_t Suspicion::*count, Time now) {
  if (peer.suspicion.hint(count, now)) peer.session->probe();
  add(peer);
  if (tick_.heap_index == SIZE_MAX || tick_.deadline > now + kBurstStep) {
    timers_.arm(tick_, now + kBurstStep);
  }
}

void Liveness::on_gap_st(Duration gap) {
  for (Peer* peer : watched_) peer->suspicion.excuse(gap);
}

void Liveness::on_tick(Timer& timer, Time now) {
  auto& self = *static_cast<Liveness*>(timer.context);
  Time next = kNever;
  int probes = 0;
  std::erase_if(self.watched_, [&](Peer* peer) {
    const Time look = self.examine(*peer, now, &probes);
    next = std::min(next, look);
    peer->watched = look != kNever;
    return look == kNever;
  });
  self.timers_.arm(timer, next);
}

Time Liveness::examine(Peer& peer, Time now, int* probes) {
  Session* session = peer.session.get();
  if (session == nullptr || session->ended()) return kNever;
  peer.suspicion.clear_if_heard(session->last_heard());
  if (peer.suspicion.hints() > 0) return examine_suspect(peer, now);
  if (!peer.matcher.expecting()) return kNever;
  Suspicion& suspicion = peer.suspicion;
  if (suspicion.requests_seen != peer.requests) {
    suspicion.requests_seen = peer.requests;
    suspicion.looks = 0;
  }
  const Duration look = std::min(kLook * (1 + suspicion.looks / 8), kMaxLook);
  const Time quiet_since = std::max(session->last_heard(), suspicion.last_probe);
  if (now - quiet_since < look) return quiet_since + look;
  if (*probes < kMaxProbesATick) {
    ++*probes;
    ++suspicion.looks;
    suspicion.last_probe = now;
    session->probe();
  }
  return now + look;
}

Time Liveness::examine_suspect(Peer& peer, Time now) {
  Suspicion& suspicion = peer.suspicion;
  if (suspicion.is_proof(now)) {
    declare_dead(peer, now);
    return kNever;
  }
  // Slower and slower: when refusals have run dry, the next may take a second to come.
  const Duration step =
      std::clamp<Duration>((now - suspicion.since) / 4, kBurstStep, kMaxBurstStep);
  if (now - suspicion.last_probe >= step) {
    suspicion.on_probe(now);
    peer.session->probe();
  }
  return std::min(suspicion.last_probe + step, suspicion.proof_at(now));
}

void Liveness::declare_dead(Peer& peer, Time now) {
  const Time heard = peer.session->last_heard();
  const double silent = heard == 0 ? -1 : static_cast<double>(now - heard) / kSecond;
  const std::string refused =
      std::to_string(peer.suspicion.hints()) + " packets to its port were refused";
  const std::string text =
      heard != 0 ? "its process has ended (" + refused +
                       "); look in its log for a crash, a kill or an out-of-memory kill"
                 : refused +
                       " and nothing was ever heard: it has left (destroyed its process group), "
                       "its process has ended (look in its log), or a firewall rejects UDP";
  peer.session->declare_lost(Status(text, PeerLoss{-1, peer.description, silent, heard == 0}));
}

}  // namespace taco::harp
