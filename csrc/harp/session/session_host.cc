#include "harp/session/session_host.h"

#include <algorithm>

#include "harp/session/session.h"

namespace taco::harp {
namespace {

// One session's turn, so that a long message does not keep others waiting.
constexpr std::size_t kTurnBytes = 128 * 1024;

}  // namespace

SessionHost::SessionHost(Nic& nic, BytePool& buffers)
    : nic_(nic), buffers_(buffers), credit_(nic.capabilities().receive_buffer / 2) {}

std::vector<std::vector<std::uint32_t>> SessionHost::ways_to_each(
    std::span<const Endpoint> remotes) {
  std::vector<std::vector<std::uint32_t>> ways;
  for (const Endpoint& remote : remotes) ways.push_back(ways_to(remote));
  return ways;
}

auto SessionHost::place_of(std::uint64_t peer_connection) const {
  return std::ranges::lower_bound(by_peer_connection_, peer_connection, {},
                                  &Session::peer_connection_id);
}

void SessionHost::add(Session& session) { sessions_.push_back(&session); }

void SessionHost::remove(Session& session) {
  std::erase(sessions_, &session);
  const auto known = place_of(session.peer_connection_id());
  if (known != by_peer_connection_.end() && *known == &session) by_peer_connection_.erase(known);
  if (ready_.is_linked(session.places_)) ready_.erase(session.places_);
  let_rest(session);
}

// A peer that takes another one's connection for its own, of which it cannot know, changes nothing.
void SessionHost::know_by_peer_connection(Session& session) {
  const std::uint64_t id = session.peer_connection_id();
  if (session_to(id) == nullptr) by_peer_connection_.insert(place_of(id), &session);
}

Session* SessionHost::session_to(std::uint64_t peer_connection) const {
  const auto known = place_of(peer_connection);
  const bool is_there =
      known != by_peer_connection_.end() && (*known)->peer_connection_id() == peer_connection;
  return is_there ? *known : nullptr;
}

// Whatever makes a session busy is to be transmitted.
void SessionHost::make_ready(Session& session) {
  SessionPlaces& places = session.places_;
  if (!ready_.is_linked(places)) ready_.push_back(places);
  if (places.may_be_busy || !awake_.is_linked(places)) return;
  awake_.erase(places);
  awake_.push_front(places);
  places.may_be_busy = true;
  ++to_look_at_;
}

bool SessionHost::any_busy() {
  for (; to_look_at_ > 0; --to_look_at_) {
    SessionPlaces& places = *awake_.front();
    if (places.session->lingers()) return true;
    awake_.erase(places);
    awake_.push_back(places);
    places.may_be_busy = false;
  }
  return false;
}

void SessionHost::wake(Session& session) { awake_.push_back(session.places_); }

void SessionHost::let_rest(Session& session) {
  SessionPlaces& places = session.places_;
  if (!awake_.is_linked(places)) return;
  awake_.erase(places);
  if (std::exchange(places.may_be_busy, false)) --to_look_at_;
}

void SessionHost::tell_of_gap(Duration late, Duration away) {
  for (const SessionPlaces& places : awake_) places.session->on_gap(late, away);
}

// Somebody waits for credit that others hold: those who hold more than their share give up some.
void SessionHost::share_credit() {
  credit_.ask_everybody();
  for (Session* session : sessions_) {
    if (session->grants().is_concerned()) session->refresh_credit();
  }
}

bool SessionHost::is_stopped(const Session& session) const {
  return (session.locals() & ~full_locals_) == 0;
}

bool SessionHost::has_ready_eager() const {
  return std::any_of(ready_.begin(), ready_.end(),
                     [](const SessionPlaces& place) { return place.session->has_eager(); });
}

// The first to find a socket full stops those who send through it and no other: they keep their
// places, and it goes behind them. The others go on.
bool SessionHost::run_transmits() {
  nic_full_ = false;
  full_locals_ = 0;
  nic_.reap_st();
  if (credit_.starving()) share_credit();
  const SessionPlaces* const last = ready_.back();
  while (const SessionPlaces* const place = ready_.pop_front()) {
    Session* const session = place->session;
    if (is_stopped(*session)) {
      make_ready(*session);
    } else {
      const Session::Turn turn = session->transmit(kTurnBytes);
      full_locals_ |= session->full_locals();
      if (turn == Session::Turn::kNicFull) stopped_.push_back(session);
      if (turn == Session::Turn::kMore) make_ready(*session);
    }
    if (place == last) break;
  }
  const bool may_go_on = std::any_of(ready_.begin(), ready_.end(), [&](const SessionPlaces& place) {
    return !is_stopped(*place.session);
  });
  nic_full_ = !stopped_.empty() && !may_go_on;
  for (Session* session : stopped_) make_ready(*session);
  stopped_.clear();
  return may_go_on;
}

}  // namespace taco::harp
