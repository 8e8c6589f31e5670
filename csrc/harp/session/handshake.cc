#include "harp/session/handshake.h"

#include "base/assert.h"

namespace taco::harp {

// Anybody who saw one can send a hello again, so nothing follows from one but an answer, until it
// sends back the nonce that this session has chosen; and of those that do only the first is known
// to be no recording.
Handshake::Meaning Handshake::meaning_of(const wire::Hello& hello) const {
  const bool fresh = hello.target_nonce == nonce_;
  const bool challenge = (hello.flags & wire::kChallenge) != 0;
  if (established()) {
    if (challenge) return Meaning::kStale;  // of a session that has ended by now
    return fresh && !is_peers(hello) ? Meaning::kBegunAnew : Meaning::kHello;
  }
  return fresh && !challenge ? Meaning::kEstablishes : Meaning::kHello;
}

void Handshake::establish(const wire::Hello& hello) {
  TACO_ASSERT(meaning_of(hello) == Meaning::kEstablishes);
  state_.go(State::kEstablished);
  peer_connection_ = hello.sender_connection;
  peer_nonce_ = hello.sender_nonce;
  max_datagram_ = std::min<std::size_t>(max_datagram_, hello.max_datagram);
}

void Handshake::note(const wire::Hello& hello, const AddressPair& from, std::size_t bytes) {
  largest_hello_ = std::max(largest_hello_, static_cast<std::uint32_t>(bytes));
  echo_ = hello.sender_nonce;
  if ((hello.flags & wire::kEstablished) != 0) return;
  answer_ = {from, static_cast<std::uint32_t>(bytes), true};
}

// An answer takes the way the hello came, and is no longer than that was: whoever sends a copy of
// one makes us send no more than it did.
Handshake::Due Handshake::due(const AddressPair& own) const {
  if (answer_.due) {
    return {answer_.pair, std::min<std::size_t>(answer_.bytes, max_datagram_), true};
  }
  return {own, calls_ % 2 == 0 ? max_datagram_ : 0, false};
}

void Handshake::fill(wire::Hello& hello) const {
  const bool known = established() && echo_ == peer_nonce_;
  hello.sender_connection = connection_;
  hello.target_connection = known ? peer_connection_ : 0;
  hello.sender_nonce = nonce_;
  hello.target_nonce = echo_;
  hello.max_datagram = static_cast<std::uint32_t>(max_datagram_);
  hello.largest_received = largest_hello_;
  hello.sender_engine = wire::engine_of(connection_);
  if (established()) hello.flags = known ? wire::kEstablished : wire::kChallenge;
}

void Handshake::on_said(const Due& said, const AddressPair& own, Time now) {
  TACO_ASSERT(is_due());
  answer_.due = false;
  // Ours is as good as sent when the answer went where it would have gone.
  if (established() || (said.answer && !(said.pair == own))) return;
  if (state_.is(State::kCalling)) state_.go(State::kWaiting);
  called_ = now;
  ++calls_;
}

// Rarely, while neither side waits.
Time Handshake::next_call(bool awaited) const {
  const Duration most = awaited ? kLastInterval : kIdleInterval;
  const std::uint32_t before = std::clamp(calls_, 1u, 11u) - 1;
  return called_ + std::min(kFirstInterval << before, most);
}

bool Handshake::on_timer(bool awaited, Time now) {
  if (state_.is(State::kWaiting) && now >= next_call(awaited)) state_.go(State::kCalling);
  return state_.is(State::kCalling);
}

bool Handshake::on_other_version(Time now) {
  if (other_version_at_ == kNever) other_version_at_ = now;
  return now - other_version_at_ >= kVersionPatience;
}

}  // namespace taco::harp
