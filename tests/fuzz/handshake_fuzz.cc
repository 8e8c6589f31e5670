// A peer that means harm, from the first hello on: it was told of this process and knows the key
// that proves its hellos, so what it fills in there is taken at its word. The input says what it
// sends to a process with the engine's own loop, over the simulated network, and when: hellos whose
// proof is right and whose fields are anything; hellos that were altered after that, or cut off,
// with a right checksum; the process's own hellos, sent back; packets of a session that may or may
// not stand; from its own address or another one. Either side says hello first, and either side
// leads. Nothing crashes, what the process holds stays bounded, an address that has proved nothing
// is sent no more than has come from there, and what the process exchanges with an honest peer
// meanwhile arrives.
#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "base/log.h"
#include "harp/session/proof.h"
#include "session_game.h"

namespace taco::harp {
namespace {

constexpr std::uint32_t kVictim = 0, kHonest = 1, kHostile = 2, kNobody = 3;
constexpr std::size_t kMostSessionBytes = 1 << 20;
constexpr std::size_t kRemembered = 32;
constexpr Time kLimit = 60 * kSecond;  // virtual

// One of which the hostile peer leads, or the other side.
std::uint64_t seed_of(bool hostile_leads) {
  for (std::uint64_t seed = 1;; ++seed) {
    SimCluster cluster(3, seed, {});
    if ((cluster[kHostile].incarnation() < cluster[kVictim].incarnation()) == hostile_leads) {
      return seed;
    }
  }
}

class Game {
 public:
  Game(const std::uint8_t* data, std::size_t size)
      : input_(data, size),
        kind_(input_.byte()),
        cluster_(3, seed(), {}),
        key_(pair_key(identity(kVictim), identity(kHostile))) {
    cluster_[kHostile].stall_until(kNever);
    cluster_.network().set_tap([this](const SimNetwork::Departure& sent) { see(sent); });
    constexpr Security kLevels[] = {Security::kNone, Security::kAuth, Security::kEncrypt,
                                    Security::kNone};
    for (const std::uint32_t node : {kVictim, kHonest}) {
      cluster_[node].set_security(kLevels[kind_ >> 1 & 3]);
      if ((kind_ & 8) != 0) cluster_[node].set_paths(2);
    }
    for (const std::uint32_t from : {kVictim, kHonest}) {
      for (const std::size_t bytes : {300u, 20'000u}) add(from, kVictim + kHonest - from, bytes);
    }
    honest_ = messages_.size();
    add(kVictim, kHostile, 300);
    add(kHostile, kVictim, 300);
  }
  ~Game() {
    cluster_.network().set_tap(nullptr);
    cluster_.end();
  }
  Game(const Game&) = delete;
  Game& operator=(const Game&) = delete;

  void play() {
    for (std::size_t i = 0; i < messages_.size(); ++i) {
      Message& message = *messages_[i];
      const bool is_honest = i < honest_;
      // Or it is the hostile peer that says hello first.
      if (!is_honest && (kind_ & 16) != 0) continue;
      if (message.from != kHostile) cluster_[message.from].send(message.to, message.send);
      if (message.to != kHostile) cluster_[message.to].recv(message.from, message.recv);
    }
    while (!input_.is_empty()) turn();
    const bool done = cluster_.run(
        kLimit, [&] { return is_finished() || is_lost(); }, [&] { check_bounds(); });
    if (is_lost()) fail("the honest peer was lost");
    if (!done) fail("messages of the honest peer were kept from arriving");
    for (std::size_t i = 0; i < honest_; ++i) {
      if (!messages_[i]->ok) fail("a receive from the honest peer has failed");
      if (messages_[i]->target != messages_[i]->source) fail("a message has been changed");
    }
  }

 private:
  std::uint64_t seed() const {
    static const std::uint64_t leads = seed_of(true), follows = seed_of(false);
    return (kind_ & 1) != 0 ? leads : follows;
  }
  Identity identity(std::uint32_t node) {
    return {cluster_[node].incarnation(), cluster_[node].secret()};
  }
  void add(std::uint32_t from, std::uint32_t to, std::size_t bytes) {
    messages_.push_back(std::make_unique<Message>(messages_.size() + 1, from, to, bytes));
  }

  // What the process says to the hostile peer; and to whom it says how much.
  void see(const SimNetwork::Departure& sent) {
    if (sent.fate == "forged" || sent.from.node != kVictim) return;
    if (sent.to.node >= kNobody) to_nobody_ += sent.bytes.size();
    if (sent.to.node != kHostile) return;
    const Datagram bytes(sent.bytes.begin(), sent.bytes.end());
    const bool is_hello = wire::is_hello(bytes) && bytes.size() >= sizeof(wire::Header) + kHello;
    if (is_hello) std::memcpy(&theirs_, bytes.data() + sizeof(wire::Header), kHello);
    remember(bytes);
  }
  void remember(const Datagram& bytes) {
    if (seen_.size() < kRemembered) return seen_.push_back(bytes);
    seen_[oldest_++ % kRemembered] = bytes;
  }

  bool is_finished() const {
    return std::all_of(messages_.begin(), messages_.begin() + static_cast<std::ptrdiff_t>(honest_),
                       [](const auto& each) { return each->sent > 0 && each->received > 0; });
  }
  bool is_lost() {
    return cluster_[kVictim].peer(kHonest).matcher.lost() ||
           cluster_[kHonest].peer(kVictim).matcher.lost();
  }
  void check_bounds() {
    const Session* const session = cluster_[kVictim].session(kHostile);
    if (session != nullptr && session->memory_bytes() > kMostSessionBytes) {
      fail("a session has grown");
    }
    const CreditPool& pool = cluster_[kVictim].credit();
    if (pool.outstanding() > pool.capacity() + 2 * pool.packet_bytes() * SendCredit::kInitial) {
      fail("more credit is granted than there is");
    }
    if (!nobody_proves_ && to_nobody_ > from_nobody_) fail("a stranger got more than it sent");
  }

  void forge(const Datagram& bytes, bool proves) {
    const std::uint8_t value = input_.byte();
    const SimPlace from{kHostile + (value & 1u), value >> 1u & 3u, 0};
    if (from.node >= kNobody) {
      from_nobody_ += bytes.size();
      nobody_proves_ |= proves;
    }
    cluster_.network().forge(from, {kVictim, from.address, 0}, bytes);
  }

  void turn() {
    switch (input_.byte() % 8) {
      case 0:
        return forge(packet_of(hello()), true);
      case 1: {  // of which the proof is wrong, unless nothing has changed
        wire::Hello altered = hello();
        alter(std::as_writable_bytes(std::span(&altered, 1)));
        return forge(packet_of(altered), true);
      }
      case 2:
        return reflect();
      case 3: {  // cut off, or longer
        Datagram body = packet_of(hello());
        body.erase(body.begin(), body.begin() + sizeof(wire::Header));
        body.resize(input_.word() % 1600);
        return forge(datagram_of(wire::frames_header(wire::Type::kHello, {}, body.size()), body),
                     true);
      }
      case 4:
        return speak();
      case 5: {
        Datagram altered = packet_of(hello());
        alter(std::span(altered).first(sizeof(wire::Header)));
        const std::span<const std::byte> body = std::span(altered).subspan(sizeof(wire::Header));
        return forge(datagram_of(header_of(altered), body), true);
      }
      default:
        return pass_time((1 + input_.byte()) * 20 * kMicrosecond);
    }
  }

  void pass_time(Duration time) {
    const Time until = cluster_.now() + time;
    cluster_.wake_at(until);
    cluster_.run(
        until, [&] { return cluster_.now() >= until; }, [&] { check_bounds(); });
  }

  void alter(std::span<std::byte> bytes) {
    for (int i = input_.byte() % 4; i >= 0; --i) {
      const std::uint32_t where = input_.word();
      bytes[where % bytes.size()] ^= static_cast<std::byte>(input_.byte());
    }
  }

  // As an honest peer would say it, but for what the input has changed, by one of several sessions.
  wire::Hello hello() {
    const std::uint8_t how = input_.byte(), session = input_.byte();
    wire::Hello hello{};
    hello.sender = cluster_[kHostile].incarnation();
    hello.target = cluster_[kVictim].incarnation();
    hello.sender_connection = 1 + (session & 3u);
    hello.sender_nonce.fill(static_cast<std::byte>(session >> 2 & 3));
    if ((how & 1) != 0) hello.target_nonce = theirs_.sender_nonce;
    if ((how & 2) != 0) hello.target_connection = theirs_.sender_connection;
    hello.max_datagram = 1472;
    hello.largest_received = (how & 4) != 0 ? 1472 : 0;
    hello.credit_limit = 64;
    hello.max_ack_delay_us = 1000;
    hello.flags = how >> 4 & 3;
    hello.security = theirs_.security;
    hello.checksum = theirs_.checksum;
    if ((how & 8) != 0) alter(std::as_writable_bytes(std::span(&hello, 1)));
    if ((how & 64) == 0) prove(hello, key_);
    return hello;
  }
  Datagram packet_of(const wire::Hello& hello) {
    Datagram body(kHello + input_.word() % 1400);
    std::memcpy(body.data(), &hello, kHello);
    return datagram_of(wire::frames_header(wire::Type::kHello, {}, body.size()), body);
  }

  // What the process has said comes back to it, or what it was told comes again.
  void reflect() {
    const std::size_t which = input_.byte();
    if (!seen_.empty()) forge(seen_[which % seen_.size()], true);
  }

  // A packet of the session that its hellos have shown, of any kind.
  void speak() {
    const std::uint8_t kind = input_.byte();
    const auto path = static_cast<wire::PathId>(input_.byte() & 31);
    const wire::PacketId id{theirs_.sender_connection, 1u + input_.byte(), path};
    const Datagram body = input_.bytes(input_.byte());
    wire::Header header =
        wire::frames_header(wire::Type{static_cast<std::uint8_t>(1 + kind % 6)}, id, body.size());
    if ((kind & 64) != 0) header.flags = input_.byte();
    if ((kind & 128) != 0) header.extent = input_.word();
    forge(datagram_of(header, body), false);
  }

  static constexpr std::size_t kHello = sizeof(wire::Hello);
  Input input_;
  const std::uint8_t kind_;
  SimCluster cluster_;
  const PairKey key_;
  wire::Hello theirs_{};  // the process's last one
  std::vector<Datagram> seen_;
  std::size_t oldest_ = 0;
  std::size_t from_nobody_ = 0, to_nobody_ = 0;
  bool nobody_proves_ = false;
  std::vector<std::unique_ptr<Message>> messages_;
  std::size_t honest_ = 0;  // so many of them are with the honest peer
};

}  // namespace
}  // namespace taco::harp

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  taco::set_log_level(taco::LogLevel::kOff);
  taco::harp::Game(data, size).play();
  return 0;
}
