// Hellos in and out, and what the session makes of them.
#include <algorithm>
#include <cstring>

#include "harp/session/session.h"

namespace taco::harp {

bool Session::on_hello(const wire::Hello& hello, const RxPacket& packet) {
  if (life_.ended() || hello.sender != peer_incarnation_) return true;
  if (!protects_alike(hello)) return true;
  const AddressPair from = AddressPair::of(packet);
  switch (handshake_.meaning_of(hello)) {
    case Handshake::Meaning::kStale:
      return true;
    case Handshake::Meaning::kBegunAnew:
      return false;
    case Handshake::Meaning::kEstablishes:
      establish(hello, from);
      break;
    case Handshake::Meaning::kHello:
      break;
  }
  handshake_.note(hello, from, packet.data.size());
  // The next hello, which sends the peer's nonce back, may be all that the peer hears before it
  // sends.
  credit_.open();
  if (!established()) {
    called_at_ = host_.now();
    stir();
  }
  if (handshake_.is_due()) ready();
  update_timer();
  return true;
}

void Session::lose_to_new_session() {
  declare_lost(Status("it has begun its session anew; what was under way is lost",
                      PeerLoss{-1, description_, 0}));
}

void Session::establish(const wire::Hello& hello, const AddressPair& from) {
  handshake_.establish(hello);
  host_.know_by_peer_connection(*this);
  make_keys();
  // A hello that comes by a pair where our nonce has never been proves nothing about that: should
  // the peer be there, its packets set off a challenge.
  const AddressPair pair = handshake_.proved_by(from);
  paths_.first().open(pair, agreed(pair), pair == from ? hello.largest_received : 0);
  refused_ = 0;
  last_heard_ = silence_base_ = host_.now();
  // Frames may have come before the hello.
  send_credit_.begin(hello.credit_limit, hello.credit_epoch);
  open_paths();
  ready();
}

// From here on both sides know what nobody else does.
void Session::make_keys() {
  if (security_ == Security::kNone) return;
  sealing_ = std::make_unique<Sealing>(SealingOptions{.key = key_,
                                                      .own_incarnation = own_incarnation_,
                                                      .peer_incarnation = peer_incarnation_,
                                                      .own_nonce = handshake_.nonce(),
                                                      .peer_nonce = handshake_.peer_nonce(),
                                                      .security = security_,
                                                      .packets_per_key = packets_per_key_});
}

// A process does not change what protects its packets, so even an old hello is right about that.
// False: the peer's is another, and this session has ended.
bool Session::protects_alike(const wire::Hello& hello) {
  const auto security = static_cast<Security>(hello.security);
  if (security != security_) {
    refuse_setting("TACO_HARP_SECURITY", name_of(security_), name_of(security));
  } else if (hello.checksum != checksum_) {
    refuse_setting("TACO_HARP_CHECKSUM", name_of(checksum_), name_of(hello.checksum));
  }
  return !life_.ended();
}

// The peer is to know why nobody answers.
void Session::refuse_setting(const char* name, const std::string& ours, const std::string& theirs) {
  if (!handshake_.has_called()) static_cast<void>(send_hello());
  declare_lost(Status(std::string("its ") + name + " is " + theirs + ", this process's is " + ours +
                          ": set the same for all ranks",
                      PeerLoss{-1, description_, -1}));
}

// Padded to `bytes`, if that is more: where it arrives, datagrams of that size do.
bool Session::offer_hello(const wire::Hello& hello, std::size_t bytes, const AddressPair& pair) {
  const std::size_t least = sizeof(wire::Header) + sizeof hello;
  const std::size_t body = std::max(bytes, least) - sizeof(wire::Header);
  std::byte* const block = host_.buffers().take(body);
  std::memcpy(block, &hello, sizeof hello);
  std::memset(block + sizeof hello, 0, body - sizeof hello);
  wire::Header header = wire::frames_header(wire::Type::kHello, {}, body);
  const bool taken =
      paths_.first().offer(header, {block, body}, pair, /*unfragmented=*/bytes > least);
  host_.buffers().give(block, body);
  return taken;
}

Session::Sent Session::send_hello() {
  if (!handshake_.is_due()) return Sent::kNothing;
  const Handshake::Due due = handshake_.due();
  wire::Hello hello{};
  hello.sender = own_incarnation_;
  hello.target = peer_incarnation_;
  handshake_.fill(hello, due.pair);
  hello.credit_limit = credit_.limit();
  hello.credit_epoch = credit_.epoch();
  hello.max_ack_delay_us = DelayedAck::kLongest / kMicrosecond;
  hello.path = wire::kFirstPath;
  hello.security = static_cast<std::uint8_t>(security_);
  hello.checksum = checksum_;
  prove(hello, key_);
  const std::size_t most = host_.nic().addresses()[due.pair.local].max_datagram;
  if (!offer_hello(hello, std::min(due.bytes, most), due.pair)) {
    full_ = 1u << due.pair.local;
    return Sent::kNicFull;
  }
  handshake_.on_said(due, host_.now());
  return Sent::kYes;
}

// A peer whose packets come is established already, and waits for acknowledgements; and whoever
// leaves has not long to say goodbye.
bool Session::hello_is_awaited() const {
  return awaits_something() || life_.leaving() || last_heard_ != 0 || heard_early_;
}

}  // namespace taco::harp
