// Hellos: who is there, what it can receive, and that it is no recording that speaks.
#include <algorithm>
#include <cstring>

#include "harp/session/session.h"

namespace taco::harp {
namespace {

constexpr Duration kFirstHelloInterval = 5 * kMillisecond;
constexpr Duration kLastHelloInterval = 100 * kMillisecond;
constexpr Duration kIdleHelloInterval = kSecond;
// Anybody can send a packet of another version from the peer's address: a peer that is of our
// version answers meanwhile.
constexpr Duration kVersionPatience = kSecond;

}  // namespace

// Anybody who saw one can send a hello again, so nothing follows from one but an answer, until it
// sends back the nonce that this session has chosen; and of those that do only the first is known
// to be no recording.
bool Session::on_hello(const wire::Hello& hello, const RxPacket& packet) {
  if (state_ == State::kEnded || hello.sender != config_.peer_incarnation) return true;
  const bool fresh = hello.target_nonce == own_nonce_;
  const bool challenge = (hello.flags & wire::kChallenge) != 0;
  if (established()) {
    if (challenge) return true;  // of a session that has ended by now
    const bool known =
        hello.sender_nonce == peer_nonce_ && hello.sender_connection == peer_connection_;
    if (fresh && !known) return false;
  }
  largest_hello_ = std::max(largest_hello_, static_cast<std::uint32_t>(packet.data.size()));
  if (fresh && !challenge && !established()) establish(hello, packet);
  echo_ = hello.sender_nonce;
  if ((hello.flags & wire::kEstablished) == 0) {
    answer_hello_ = true;
    answer_to_ = AddressPair::of(packet);
    answer_bytes_ = static_cast<std::uint32_t>(packet.data.size());
    ready();
  }
  update_timer();
  return true;
}

void Session::lose_to_new_session() {
  declare_lost(Status("it has begun its session anew; what was under way is lost",
                      PeerLoss{-1, config_.description, 0}));
}

void Session::establish(const wire::Hello& hello, const RxPacket& packet) {
  peer_connection_ = hello.sender_connection;
  peer_nonce_ = hello.sender_nonce;
  // Our nonce has been to one of these and back. A hello that comes by yet another pair proves
  // nothing about that: should the peer be there, its packets set off a challenge.
  const AddressPair pair = AddressPair::of(packet);
  path_.move_to(pair == answer_to_ ? pair : path_.pair(), host_.now());
  max_datagram_ = std::min<std::size_t>(max_datagram_, hello.max_datagram);
  path_.mtu().open(max_datagram_, host_.now());
  path_.mtu().on_proof(hello.largest_received, host_.now());
  last_heard_ = silence_base_ = host_.now();
  unanswered_probes_ = 0;
  // Frames may have come before the hello.
  if (static_cast<std::int32_t>(hello.credit_epoch - peer_epoch_) >= 0) {
    peer_limit_ = hello.credit_limit;
    peer_epoch_ = hello.credit_epoch;
  }
  if (state_ == State::kConnecting) state_ = State::kOpen;
  ready();
}

void Session::refuse_version(std::uint8_t version) {
  if (state_ == State::kEnded || established()) return;
  const std::string ours = std::to_string(wire::kVersion), theirs = std::to_string(version);
  declare_lost(Status("it speaks HARP version " + theirs + ", this process version " + ours +
                          ": install one version of taco_torch everywhere",
                      PeerLoss{-1, config_.description, -1}));
}

void Session::suspect_version(std::uint8_t version) {
  if (other_version_at_ == kNever) other_version_at_ = host_.now();
  if (host_.now() - other_version_at_ >= kVersionPatience) refuse_version(version);
}

// Padded to `bytes`, if that is more: where it arrives, datagrams of that size do.
bool Session::offer_hello(const wire::Hello& hello, std::size_t bytes, const AddressPair& pair) {
  const std::size_t least = sizeof(wire::Header) + sizeof hello;
  const std::size_t body = std::max(bytes, least) - sizeof(wire::Header);
  std::byte* const block = host_.buffers().take(body);
  std::memcpy(block, &hello, sizeof hello);
  std::memset(block + sizeof hello, 0, body - sizeof hello);
  wire::Header header = wire::frames_header(wire::Type::kHello, {}, body);
  const bool taken = offer_packet(header, {block, body}, pair, /*unfragmented=*/bytes > least);
  host_.buffers().give(block, body);
  return taken;
}

Session::Sent Session::send_hello() {
  if (established()) hello_due_ = false;
  if (!hello_due_ && !answer_hello_) return Sent::kNothing;
  // An answer takes the way the hello came, and is no longer than that was: whoever sends a copy of
  // one makes us send no more than it did.
  const bool answer = answer_hello_;
  const AddressPair& pair = answer ? answer_to_ : path_.pair();
  const std::size_t padded = answer ? std::min<std::size_t>(answer_bytes_, max_datagram_)
                                    : (hellos_ % 2 == 0 ? max_datagram_ : 0);
  const bool known = established() && echo_ == peer_nonce_;
  wire::Hello hello{};
  hello.sender = config_.own_incarnation;
  hello.target = config_.peer_incarnation;
  hello.sender_connection = own_connection_;
  hello.target_connection = known ? peer_connection_ : 0;
  hello.sender_nonce = own_nonce_;
  hello.target_nonce = echo_;
  hello.max_datagram = static_cast<std::uint32_t>(max_datagram_);
  hello.largest_received = largest_hello_;
  hello.credit_limit = credit_.limit();
  hello.credit_epoch = credit_.epoch();
  hello.max_ack_delay_us = kMillisecond / kMicrosecond;
  hello.sender_engine = wire::engine_of(own_connection_);
  if (established()) hello.flags = known ? wire::kEstablished : wire::kChallenge;
  prove(hello, config_.key);
  const bool taken = offer_hello(hello, padded, pair);
  if (!taken) return Sent::kNicFull;
  answer_hello_ = false;
  // Ours is as good as sent when the answer went where it would have gone.
  if (answer && !(pair == path_.pair())) return Sent::kYes;
  hello_due_ = false;
  if (!established()) {
    hello_said_ = host_.now();
    ++hellos_;
  }
  return Sent::kYes;
}

// Rarely, while neither side waits. A peer whose packets come is established already, and waits for
// acknowledgements; and whoever leaves has not long to say goodbye.
Time Session::next_hello() const {
  const bool awaited = events_.expecting() || content_unacknowledged() ||
                       state_ == State::kLeaving || last_heard_ != 0;
  const Duration most = awaited ? kLastHelloInterval : kIdleHelloInterval;
  const std::uint32_t before = std::clamp(hellos_, 1u, 11u) - 1;
  return hello_said_ + std::min(kFirstHelloInterval << before, most);
}

}  // namespace taco::harp
