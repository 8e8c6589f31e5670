// A session's time: one Timer, armed for the earliest of its deadlines and looked at lazily. After
// a stall of the engine's own loop, deadlines move by the gap (on_gap).
//
// A session that nothing is asked of rests: it looks at the time no more, so that thousands of them
// cost an engine nothing. What happens to it next stirs it.
#include <algorithm>

#include "harp/session/session.h"

namespace taco::harp {
namespace {

Duration tick_of(Duration peer_timeout) {
  return std::clamp(peer_timeout / 5, 10 * kMillisecond, kSecond);
}

}  // namespace

void Session::on_expiry(Timer& timer, Time now) {
  auto& session = *static_cast<Session*>(timer.context);
  session.host_.set_now(std::max(now, session.host_.now()));
  session.on_timer();
}

Time Session::next_deadline() const {
  switch (handshake_.state()) {
    case Handshake::State::kCalling:
      return next_tick_;
    case Handshake::State::kWaiting:
      return std::min(next_tick_, handshake_.next_call(hello_is_awaited()));
    case Handshake::State::kEstablished:
      break;
  }
  Time next = next_tick_;
  for (const auto& path : paths_) next = std::min(next, path->next_deadline());
  return next;
}

// An armed timer is moved forward only; when it expires early, nothing is due and it is armed anew.
void Session::update_timer() {
  if (life_.ended()) return;
  const Time next = next_deadline();
  if (next < timer_.deadline) host_.arm(timer_, next);
}

void Session::on_timer() {
  if (life_.ended()) return;
  if (host_.now() >= next_tick_) on_tick();
  if (life_.ended()) return;
  if (!established()) {
    if (!waits_for_turn() && handshake_.on_timer(hello_is_awaited(), host_.now())) call();
  } else {
    for (const auto& path : paths_) look_after(*path);
  }
  update_timer();
}

// The first ways join each address with one; where none of them is answered, others may lead there.
void Session::call() {
  if (handshake_.wants_more_ways()) handshake_.add_ways(free_pairs());
  ready();
}

// A hello is to be said again, but others have their turn first.
bool Session::waits_for_turn() {
  const Time now = host_.now();
  const bool waiting = handshake_.state() == Handshake::State::kWaiting;
  if (!waiting || handshake_.is_put_off() || now < handshake_.next_call(hello_is_awaited())) {
    return false;
  }
  const std::size_t bytes =
      std::max(handshake_.due().bytes, sizeof(wire::Header) + sizeof(wire::Hello));
  const Time turn = host_.calls_.take(now, bytes);
  if (turn <= now) return false;
  handshake_.put_off(turn);
  return true;
}

// Hellos may have been rare so far.
void Session::on_expecting() {
  stir();
  update_timer();
}

// The advice to people on what to look at.
std::string Session::why_silent() const {
  const std::string deadline =
      std::to_string(peer_timeout_ / kMillisecond) + " ms (TACO_PEER_TIMEOUT_MS)";
  if (last_heard_ != 0) {
    return "silent for more than " + deadline +
           "; check that its host is up, that its process is not stopped, and that the network "
           "lets UDP through both ways";
  }
  std::string text = "it never answered, for " + deadline;
  if (const int version = handshake_.other_version(); version != 0) {
    text += "; packets of HARP version " + std::to_string(version) +
            " came from its address, and this process speaks version " +
            std::to_string(wire::kVersion) +
            ": install one version of taco_torch everywhere; or, if they are somebody else's,";
  } else {
    text += ";";
  }
  return text +
         " check that the network lets UDP through between the hosts (a firewall?) and that these "
         "addresses reach each other (TACO_IFNAME chooses others)";
}

// Keepalive and the silence verdict. Silence counts only while somebody expects something.
void Session::on_tick() {
  const Time now = host_.now();
  const Duration interval = tick_of(peer_timeout_);
  next_tick_ = now + interval;
  for (const auto& path : paths_) path->forget_lost();
  tell_paths();
  const bool never_answered = !established() && now - called_at_ > peer_timeout_;
  if (never_answered && credit_.is_open()) credit_.take_back();
  if (life_.peer_left() || !awaits_something()) {
    silence_base_ = now;
    trim();
    if (!may_rest()) return;
    next_tick_ = kNever;
    return host_.let_rest(*this);
  }
  const Duration silence = now - silence_base_;
  if (silence > peer_timeout_ && !life_.leaving()) {
    const double heard = last_heard_ == 0 ? -1 : static_cast<double>(now - last_heard_) / kSecond;
    return declare_lost(Status(why_silent(), PeerLoss{-1, description_, heard}));
  }
  if (silence >= interval && established()) probe();
}

void Session::stir() {
  if (next_tick_ != kNever || life_.ended()) return;
  silence_base_ = host_.now();
  next_tick_ = host_.now() + tick_of(peer_timeout_);
  host_.wake(*this);
  update_timer();
}

// Others wait for credit that the peer was told to give back, and never will where it is dead.
bool Session::awaits_something() const {
  return events_.expecting() || content_unacknowledged() ||
         (established() && credit_.lowering() != CreditAccount::Lowering::kNone);
}

// Nothing is under way, or remembered, that time would change: what a peer has been granted that
// may have died before it answered comes back.
bool Session::may_rest() const {
  if (life_.peer_left()) return true;
  if (busy() || (!established() && credit_.is_open())) return false;
  return tell_paths_by_ == kNever &&
         std::all_of(paths_.begin(), paths_.end(),
                     [](const auto& path) { return path->is_at_rest(); });
}

void Session::probe() {
  if (life_.ended() || !established()) return;
  for (const auto& path : paths_) {
    if (path->is_live()) path->probe();
  }
  ready();
}

// Called before anything that arrived meanwhile is heard, so that the base does not come to lie in
// the future.
void Session::on_gap(Duration late, Duration away) {
  silence_base_ = std::min(silence_base_ + away, host_.now());
  for (const auto& path : paths_) path->on_gap(late, away);
}

// Gives back what a busy time has left behind.
void Session::trim() {
  for (const auto& path : paths_) path->trim();
  if (sealing_ != nullptr) sealing_->trim();
  eager_.trim();
  records_.trim();
  reassembly_.trim();
  free_pairs_.reset();
  if (open_receives_ == 0) std::vector<RecvState*>().swap(receives_);
  if (sends_.size() == free_sends_.size()) {
    std::vector<BulkSend*>().swap(sends_);
    std::vector<std::uint32_t>().swap(free_sends_);
    queue_.reset();
  }
  if (taken_.empty()) std::vector<SendRequest*>().swap(taken_);
}

}  // namespace taco::harp
