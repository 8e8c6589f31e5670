// A session's time: one Timer, armed for the earliest of its deadlines and looked at lazily. After
// a stall of the engine's own loop, deadlines move by the gap (on_gap).
#include <algorithm>

#include "harp/session/session.h"

namespace taco::harp {
namespace {

constexpr Duration kRememberLost = 500 * kMillisecond;

Duration tick_of(Duration peer_timeout) {
  return std::clamp(peer_timeout / 5, 10 * kMillisecond, kSecond);
}

}  // namespace

void Session::on_expiry(Timer& timer, Time now) {
  auto& session = *static_cast<Session*>(timer.context);
  session.host_.set_now(std::max(now, session.host_.now()));
  session.armed_ = kNever;
  session.on_timer();
}

Time Session::next_deadline() const {
  Time next = next_tick_;
  if (!established()) return hello_due_ ? next : std::min(next, next_hello());
  next = std::min({next, ack_deadline_, path_.mtu().deadline()});
  next = std::min(next, sent_.next_loss(reorder_.get(rtt_), loss_not_before_));
  const bool waiting = sent_.in_flight() > 0 || credit_blocked_;
  if (waiting && !probe_due_ && !peer_left_) {
    next = std::min(next, probe_base_ + rtt_.probe_timeout(backoff_));
  }
  return next;
}

// An armed timer is moved forward only; when it expires early, nothing is due and it is armed anew.
void Session::update_timer() {
  if (state_ == State::kEnded) return;
  const Time next = next_deadline();
  if (next >= armed_) return;
  armed_ = next;
  host_.arm(timer_, next);
}

void Session::on_timer() {
  if (state_ == State::kEnded) return;
  const Time now = host_.now();
  if (now >= next_tick_) on_tick();
  if (state_ == State::kEnded) return;
  if (!established()) {
    hello_due_ |= now >= next_hello();
    if (hello_due_) ready();
    return update_timer();
  }
  if (now >= ack_deadline_) {
    ack_deadline_ = kNever;
    ack_now_ = true;
    ready();
  }
  lose_overdue();
  on_mtu_timer();
  on_probe_timeout();
  update_timer();
}

// Only here, when everything that has arrived was heard: the acknowledgement that shows a hole may
// be followed by the one that fills it.
void Session::lose_overdue() {
  AckSample lost = sample();
  mtu_probes_lost_ = 0;
  lost.lost = sent_.detect_lost(host_.now(), reorder_.get(rtt_), loss_not_before_, *this);
  lost.lost -= mtu_probes_lost_;
  if (lost.lost > 0) congestion_.on_loss(window_, lost);
}

// Nothing was heard for longer than it should take: a ping brings either an acknowledgement, which
// shows what is missing, or more silence. No data is sent again on suspicion.
void Session::on_probe_timeout() {
  const bool waiting = sent_.in_flight() > 0 || credit_blocked_;
  if (!waiting || probe_due_ || peer_left_) return;
  if (host_.now() < probe_base_ + rtt_.probe_timeout(backoff_)) return;
  probe_due_ = true;
  if (++backoff_ == 3) congestion_.on_silence(window_);
  ready();
}

// Keepalive and the silence verdict. Silence counts only while somebody expects something.
void Session::on_tick() {
  const Time now = host_.now();
  const Duration interval = tick_of(config_.peer_timeout);
  next_tick_ = now + interval;
  sent_.forget_lost(now - kRememberLost);
  if (peer_left_ || !(events_.expecting() || content_unacknowledged())) {
    silence_base_ = now;
    return trim();
  }
  const Duration silence = now - silence_base_;
  if (silence > config_.peer_timeout && state_ != State::kLeaving) {
    const double heard = last_heard_ == 0 ? -1 : static_cast<double>(now - last_heard_) / kSecond;
    const std::string deadline =
        std::to_string(config_.peer_timeout / kMillisecond) + " ms (TACO_PEER_TIMEOUT_MS)";
    std::string text =
        last_heard_ == 0
            ? "it never answered, for " + deadline +
                  "; check that the network lets UDP through between the hosts (a firewall?) and "
                  "that these addresses reach each other (TACO_IFNAME chooses others)"
            : "silent for more than " + deadline +
                  "; check that its host is up, that its process is not stopped, and that the "
                  "network lets UDP through both ways";
    return declare_lost(Status(std::move(text), PeerLoss{-1, config_.description, heard}));
  }
  if (silence >= interval && established()) probe();
}

void Session::probe() {
  if (state_ == State::kEnded || !established()) return;
  probe_due_ = true;
  ready();
}

// Called before anything that arrived meanwhile is heard, so that no base comes to lie in the
// future. What the network or the peer's host still holds back after a stall gets one window to
// come in; a stall that begins within that window, or just as it ends, brings no other, or stalls
// that follow each other closely would put off losses for ever.
void Session::on_gap(Duration gap) {
  const Time now = back_at_ = host_.now();
  silence_base_ = std::min(silence_base_ + gap, now);
  probe_base_ = std::min(probe_base_ + gap, now);
  if (now - gap > loss_not_before_) loss_not_before_ = now + reorder_.get(rtt_);
}

// Gives back what a busy time has left behind.
void Session::trim() {
  sent_.trim();
  eager_.trim();
  records_.trim();
  reassembly_.trim();
  path_.trim(host_.now());
  if (open_receives_ == 0) std::vector<RecvState*>().swap(receives_);
  if (sends_.size() == free_sends_.size()) {
    std::vector<BulkSend*>().swap(sends_);
    std::vector<std::uint32_t>().swap(free_sends_);
  }
  if (taken_.empty()) std::vector<SendRequest*>().swap(taken_);
}

}  // namespace taco::harp
