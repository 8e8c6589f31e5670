// A peer that means harm, from the first hello on: it was told of this process and knows the key
// that proves its hellos, so what it fills in there is taken at its word. The input says what it
// sends to a process with the engine's own loop, over the simulated network, and when: hellos whose
// proof is right and whose fields are anything; hellos that were altered after that, or cut off,
// with a right checksum; the process's own hellos, sent back; packets of a session that may or may
// not stand; from its own address or another one. Engines come to have work of their own, and
// interfaces refuse what has left in part. Either side says hello first, and either side leads.
// Nothing crashes, what the process holds stays bounded, an address that has proved nothing is sent
// no more than has come from there, and what the process exchanges with an honest peer meanwhile
// arrives.
#include <cstring>
#include <span>

#include "harp/session/proof.h"
#include "session_game.h"

namespace taco::harp {
namespace {

constexpr std::uint32_t kVictim = 0, kHonest = 1, kHostile = 2, kNobody = 3;

// One of which the hostile peer leads, or the other side.
std::uint64_t seed_of(bool hostile_leads) {
  for (std::uint64_t seed = 1;; ++seed) {
    SimCluster cluster(3, seed, {});
    if ((cluster[kHostile].incarnation() < cluster[kVictim].incarnation()) == hostile_leads) {
      return seed;
    }
  }
}

class Game final : public SessionGame {
 public:
  Game(const std::uint8_t* data, std::size_t size) : Game(Input(data, size)) {}

  void play() {
    for (const auto& message : messages()) {
      const bool is_honest = message->from != kHostile && message->to != kHostile;
      // Or it is the hostile peer that says hello first.
      if (is_honest || (kind_ & 16) == 0) begin(*message);
    }
    judge(take_turns());
  }

 private:
  explicit Game(Input input) : Game(input, input.byte()) {}
  Game(const Input& input, std::uint8_t kind)
      : SessionGame(input, kind, 3, seed(kind), {}),
        key_(pair_key(identity(kVictim), identity(kHostile))) {
    cluster_[kHostile].stall_until(kNever);
    for (const std::uint32_t from : {kVictim, kHonest}) {
      for (const std::size_t bytes : {300u, 20'000u}) add(from, kVictim + kHonest - from, bytes);
    }
    add(kVictim, kHostile, 300);
    add(kHostile, kVictim, 300);
  }
  static std::uint64_t seed(std::uint8_t kind) {
    static const std::uint64_t leads = seed_of(true), follows = seed_of(false);
    return (kind & 1) != 0 ? leads : follows;
  }
  Identity identity(std::uint32_t node) {
    return {cluster_[node].incarnation(), cluster_[node].secret()};
  }

  // Sees what the process says to the hostile peer, and to whom it says how much.
  void see(const SimNetwork::Departure& sent) override {
    if (sent.from.node != kVictim) return;
    if (sent.to.node >= kNobody) to_nobody_ += sent.bytes.size();
    if (sent.to.node != kHostile) return;
    const Datagram bytes(sent.bytes.begin(), sent.bytes.end());
    const bool is_hello = wire::is_hello(bytes) && bytes.size() >= sizeof(wire::Header) + kHello;
    if (is_hello) std::memcpy(&theirs_, bytes.data() + sizeof(wire::Header), kHello);
    seen_.add(bytes);
  }

  void check_bounds() override {
    SessionGame::check_bounds();
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

  void turn() override {
    switch (input_.byte() % 10) {
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
      case 8:
        return slow_down();
      case 9:
        return narrow_cables();
      default:
        return pass_time((1 + input_.byte()) * 20 * kMicrosecond);
    }
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

  // Sends the process what it has said itself, or again what it was told.
  void reflect() {
    if (const Datagram* said = seen_.any(input_.byte())) forge(*said, true);
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
  const PairKey key_;
  wire::Hello theirs_{};  // the process's last one
  Newest<Datagram> seen_{32};
  std::size_t from_nobody_ = 0, to_nobody_ = 0;
  bool nobody_proves_ = false;
};

}  // namespace
}  // namespace taco::harp

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return taco::harp::play<taco::harp::Game>(data, size);
}
