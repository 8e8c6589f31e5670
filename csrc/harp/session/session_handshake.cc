// Hellos: who is there, what it can receive, and that it is no recording that speaks.
#include <algorithm>

#include "harp/session/session.h"

namespace taco::harp {
namespace {

constexpr Duration kFirstHelloInterval = 5 * kMillisecond;
constexpr Duration kLastHelloInterval = 100 * kMillisecond;
// Anybody can send a packet of another version from the peer's address: a peer that is of our
// version answers meanwhile.
constexpr Duration kVersionPatience = kSecond;

}  // namespace

// Anybody who saw one can send a hello again, so nothing follows from one but an answer, until it
// sends back the nonce that this session has chosen.
void Session::on_hello(const wire::Hello& hello, const RxPacket& packet) {
  if (state_ == State::kEnded || hello.sender != config_.peer_incarnation) return;
  const bool fresh = hello.target_nonce == own_nonce_;
  const bool known = established() && hello.sender_nonce == peer_nonce_ &&
                     hello.sender_connection == peer_connection_;
  if (fresh && established() && !known) {
    return declare_lost(Status("it has begun its session anew; what was under way is lost",
                               PeerLoss{-1, config_.description, 0}));
  }
  largest_hello_ = std::max(largest_hello_, static_cast<std::uint32_t>(packet.data.size()));
  if (fresh) {
    last_heard_ = silence_base_ = host_.now();
    unanswered_probes_ = 0;
    if (!established()) establish(hello, packet);
  }
  echo_ = hello.sender_nonce;
  if ((hello.flags & wire::kEstablished) == 0) {
    answer_hello_ = true;
    ready();
  }
  update_timer();
}

void Session::establish(const wire::Hello& hello, const RxPacket& packet) {
  peer_connection_ = hello.sender_connection;
  peer_nonce_ = hello.sender_nonce;
  remote_ = *packet.source;
  config_.local_path = packet.local_path;
  max_datagram_ = std::min<std::size_t>(max_datagram_, hello.max_datagram);
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

Session::Sent Session::send_hello() {
  if (established()) hello_due_ = false;
  if (!hello_due_ && !answer_hello_) return Sent::kNothing;
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
  hello.flags = known ? wire::kEstablished : 0;
  prove(hello, config_.key);
  const std::span body(reinterpret_cast<const std::byte*>(&hello), sizeof hello);
  wire::Header header = wire::frames_header(wire::Type::kHello, 0, 0, 0, body.size());
  if (!offer_packet(header, body)) return Sent::kNicFull;
  hello_due_ = answer_hello_ = false;
  if (!established()) {
    const Duration most = events_.expecting() ? kLastHelloInterval : kSecond;
    hello_at_ = host_.now() + std::min(kFirstHelloInterval << std::min(hellos_++, 10u), most);
  }
  return Sent::kYes;
}

}  // namespace taco::harp
