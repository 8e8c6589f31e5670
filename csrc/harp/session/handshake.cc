#include "harp/session/handshake.h"

#include "base/assert.h"

namespace taco::harp {

// Anybody who saw one can send a hello again, so nothing follows from one but an answer, until it
// sends back the nonce that this session has chosen; and of those that do only the first is known
// to be no recording.
Handshake::Meaning Handshake::meaning_of(const wire::Hello& hello) const {
  const bool fresh = is_fresh(hello);
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

// Old hellos may come after the peer's own before that is answered: it shows that it is none by
// sending back the nonce of this session, and keeps the answer.
void Handshake::note(const wire::Hello& hello, const AddressPair& from, std::size_t bytes) {
  const bool fresh = is_fresh(hello);
  if (answer_.due && answer_.to_fresh && !fresh) return;
  if (!(from == heard_by_)) largest_hello_ = 0;
  heard_by_ = from;
  largest_hello_ = std::max(largest_hello_, static_cast<std::uint32_t>(bytes));
  echo_ = hello.sender_nonce;
  if ((hello.flags & wire::kEstablished) != 0) return;
  answer_ = {from, static_cast<std::uint32_t>(bytes), true, fresh};
}

// An answer takes the way the hello came, and is no longer than that was: whoever sends a copy of
// one makes us send no more than it did.
Handshake::Due Handshake::due() const {
  if (answer_.due) {
    return {answer_.pair, std::min<std::size_t>(answer_.bytes, max_datagram_), true};
  }
  return {next_way(), rounds() % 2 == 0 ? max_datagram_ : 0, false};
}

void Handshake::fill(wire::Hello& hello, const AddressPair& by) const {
  const bool known = established() && echo_ == peer_nonce_;
  hello.sender_connection = connection_;
  hello.target_connection = known ? peer_connection_ : 0;
  hello.sender_nonce = nonce_;
  hello.target_nonce = echo_;
  hello.max_datagram = static_cast<std::uint32_t>(max_datagram_);
  hello.largest_received = by == heard_by_ ? largest_hello_ : 0;
  hello.sender_engine = wire::engine_of(connection_);
  if (established()) hello.flags = known ? wire::kEstablished : wire::kChallenge;
}

void Handshake::on_said(const Due& said, Time now) {
  TACO_ASSERT(is_due());
  answer_.due = false;
  const auto way = std::find(ways_.begin(), ways_.end(), said.pair);
  if (way != ways_.end()) been_ |= std::uint64_t{1} << (way - ways_.begin());
  if (established()) return;
  // Ours is as good as sent when the answer went where it would have gone. Where it took another
  // way, the peer is there, and a call by one that may lead nowhere from its end would only be
  // faster: it waits, but once only, for what was answered may be a recording.
  const bool is_call = !said.answer || said.pair == next_way();
  if (!is_call && (way == ways_.end() || postponed_)) return;
  postponed_ = !is_call;
  if (state_.is(State::kCalling)) state_.go(State::kWaiting);
  called_ = now;
  is_put_off_ = false;
  if (is_call) ++calls_;
}

// Ever more rarely, round by round: soon where a peer is about to listen, and never much later than
// the time for which it has been silent so far.
Time Handshake::next_call(bool awaited) const {
  if (is_put_off_) return called_;
  const Duration most = awaited ? kLongestInterval : kIdleInterval;
  Duration interval = kFirstInterval;
  std::size_t round = calls_ == 0 ? 0 : (calls_ - 1) / ways_.size();
  for (; round > 0 && interval < most; --round) {
    interval = interval < kQuickInterval ? std::min(2 * interval, kQuickInterval)
                                         : interval + interval / 4;
  }
  return called_ + std::min(interval, most);
}

AddressPair Handshake::proved_by(const AddressPair& from) const {
  if (from == answer_.pair) return from;
  // The peer may be known by another address on its way to us: then our own one tells.
  const AddressPair* likely = &ways_.front();
  for (std::size_t i = 0; i < ways_.size(); ++i) {
    if ((been_ >> i & 1) == 0) continue;
    if (ways_[i] == from) return from;
    if (ways_[i].local == from.local) likely = &ways_[i];
  }
  return *likely;
}

void Handshake::add_ways(std::span<const AddressPair> more) {
  has_more_ways_ = true;
  ways_.insert(ways_.end(), more.begin(),
               more.begin() + std::min(more.size(), kMaxWays - ways_.size()));
}

std::vector<AddressPair> Handshake::take_other_ways(const AddressPair& used) {
  TACO_ASSERT(established());
  std::vector<AddressPair> ways = std::exchange(ways_, {});
  const auto added = ways.begin() + static_cast<std::ptrdiff_t>(std::exchange(first_ways_, 0));
  const bool was_added = std::find(added, ways.end(), used) != ways.end();
  ways.erase(added, ways.end());
  if (was_added) return ways;
  auto place = std::find(ways.begin(), ways.end(), used);
  if (place == ways.end()) {
    place = std::find_if(ways.begin(), ways.end(),
                         [&](const AddressPair& way) { return way.local == used.local; });
  }
  ways.erase(place != ways.end() ? place : ways.begin());
  return ways;
}

bool Handshake::on_timer(bool awaited, Time now) {
  if (state_.is(State::kWaiting) && now >= next_call(awaited)) {
    state_.go(State::kCalling);
    is_put_off_ = false;
  }
  return state_.is(State::kCalling);
}

}  // namespace taco::harp
