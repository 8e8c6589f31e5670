// Is a silent peer dead? The engine's watch over peers on other hosts (those on this host are
// watched by shared memory's own means).
//
// - A port-unreachable that quotes one of our packets, unguessable connection id included, is a
//   hint, if the packet went to where the peer has answered, or is called first. It starts a burst
//   of probes; the peer is dead when at least kRefusals packets were refused, nothing has been
//   heard since the first, and either refusals have come for as long as an answer takes, or a probe
//   that was not refused has waited so long for one: kSilence, and more where round trips are long.
//   One forged or stray ICMP kills nobody, nor does a firewall that refuses while it reloads its
//   rules.
// - Where several ways lead to the peer, a firewall on one of them may refuse what goes there. As
//   long as nothing was refused on the others, such hints need a silence of kLongSilence.
// - A reset that quotes one of our packets, and comes from where that went and the peer has
//   answered, says that another process has the port now. A reader of our packets can forge it, and
//   be faster than a peer whose host is busy: such hints need that silence, too.
// - While a request is open, a peer silent for kLook is asked for a sign of life, so that a dead
//   process is refused (and found out) soon even if we only receive. The longer nothing but signs
//   of life is exchanged, the rarer the questions: long waits must cost nothing.
// - If a host has vanished altogether, the session itself decides that, after peer_timeout.
//
// Owned by the engine; token holder only.
#pragma once

#include <algorithm>
#include <vector>

#include "base/clock.h"
#include "harp/engine/timer_heap.h"
#include "harp/nic.h"
#include "harp/transport.h"

namespace taco::harp {

struct Peer;
class Session;

// Hints of others about a peer since it was last heard.
struct Suspicion {
  static constexpr std::uint32_t kRefusals = 3;
  static constexpr Duration kSilence = 100 * kMillisecond;
  static constexpr Duration kLongSilence = kSecond;
  static constexpr Duration kMaxExcused = 100 * kMillisecond;

  std::uint32_t refusals = 0;       // by the network
  bool partial = false;             // which has refused nothing yet on some of several ways
  std::uint32_t resets = 0;         // by a process
  Time since = 0;                   // the first of either
  Time last = 0;                    // the last of either
  Time asked = kNever;              // the first probe after that
  Duration patience = kSilence;     // within which an answer would have come
  Duration excused = 0;             // our own stalls since then, in which it could not be heard
  Time last_probe = 0;              // of the burst, or of waiting in silence
  std::uint32_t looks = 0;          // probes since a request was posted last
  std::uint32_t requests_seen = 0;  // Peer::requests then

  std::uint32_t hints() const { return refusals + resets; }
  // Counts one of either. True for the first since the peer was last heard.
  bool hint(std::uint32_t Suspicion::*count, Time now);
  // Bounded, or an engine that stalls again and again would never come to a verdict.
  void excuse(Duration stall) {
    if (hints() > 0) excused = std::min(excused + stall, kMaxExcused);
  }
  void clear_if_heard(Time last_heard) {
    if (last_heard > since) refusals = resets = 0;
  }
  void on_probe(Time now) {
    last_probe = now;
    if (asked == kNever) asked = now;
  }
  bool is_refused() const { return refusals >= kRefusals && !partial; }
  bool is_proof(Time now) const {
    if (is_refused() && last - since - excused >= patience) return true;
    return hints() >= kRefusals && now >= unanswered_at();
  }
  // When it will be, if nobody stalls and no further hint comes; kNever: without one it will not.
  Time proof_at(Time now) const {
    return hints() < kRefusals || is_proof(now) ? kNever : unanswered_at();
  }
  Time unanswered_at() const {
    const Time at_last = since + excused + kLongSilence;
    return is_refused() && asked != kNever ? std::min(asked + excused + patience, at_last)
                                           : at_last;
  }
};

class Liveness {
 public:
  explicit Liveness(TimerHeap& timers);
  ~Liveness();
  Liveness(const Liveness&) = delete;
  Liveness& operator=(const Liveness&) = delete;

  // A packet to this peer was refused.
  void on_refusal_st(Peer& peer, const Refusal& refusal, Time now);
  void on_reset_st(Peer& peer, Time now);
  // A request was posted: watch the peer until none is open.
  void watch_st(Peer& peer, Time now);
  // The peer goes.
  void forget_st(const Peer& peer) { std::erase(watched_, &peer); }
  // The engine itself stood still.
  void on_gap_st(Duration gap);

  static constexpr Duration kLook = 20 * kMillisecond;
  static constexpr Duration kMaxLook = 200 * kMillisecond;
  // The network answers at most 6 refusals to a host at once, then one a second: probing faster
  // or many peers at once would only use them up.
  static constexpr Duration kBurstStep = 3 * kMillisecond;
  static constexpr Duration kMaxBurstStep = 250 * kMillisecond;
  static constexpr int kMaxProbesATick = 16;

 private:
  static void on_tick(Timer& timer, Time now);
  // Notes one more hint that the peer has ended; `count` is the kind's count.
  void add(Peer& peer);  // to those that are watched
  void suspect(Peer& peer, std::uint32_t Suspicion::*count, Time now);
  // Each returns when it wants to look at the peer again.
  Time examine(Peer& peer, Time now, int* probes);
  Time examine_suspect(Peer& peer, Time now);
  void declare_dead(Peer& peer, Time now);

  TimerHeap& timers_;
  std::vector<Peer*> watched_;  // with open requests, or suspected
  Timer tick_;
};

}  // namespace taco::harp
