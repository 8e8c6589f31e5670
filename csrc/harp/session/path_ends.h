// Between which two addresses a path runs, one of each side.
//
// A packet that arrives by another pair proves little: anybody may send a copy of one from
// anywhere. So it moves nothing; it sets off a challenge by that pair, and only the answer, by that
// very pair, moves the path there: both addresses at once. Two sides that come to use different
// pairs (their hellos crossed) thus end on one: the follower goes where it hears the leader, while
// the leader waits until nothing has come by its own pair for a while. Which of them leads, their
// incarnations say.
//
// Pure state of one path: knows no packet, time is passed in. Owner thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/clock.h"
#include "harp/nic.h"

namespace taco::harp {

struct AddressPair {
  Endpoint remote;
  std::uint32_t local = 0;  // which local address of the Nic
  bool operator==(const AddressPair&) const = default;
  static AddressPair of(const RxPacket& packet) { return {*packet.source, packet.local_path}; }
};
// Whether two pairs differ in ports at most.
bool between_same_hosts(const AddressPair& a, const AddressPair& b,
                        std::span<const NicAddress> addresses);

class PathEnds {
 public:
  // A frame to be sent by `pair`, if it is due.
  struct Token {
    AddressPair pair;
    bool due = false;
    std::uint64_t value = 0;
  };

  PathEnds(const AddressPair& pair, bool leads) : pair_(pair), leads_(leads) {}

  const AddressPair& pair() const { return pair_; }
  bool is_by(const RxPacket& packet) const {
    return packet.local_path == pair_.local && *packet.source == pair_.remote;
  }
  // The handshake, the owner or an answer to a challenge has chosen this pair. True: it is
  // another one than before.
  bool move_to(const AddressPair& pair, Time now);

  // A packet newer than all before came by the path's own pair.
  void on_newest_here(Time now) { heard_ = now; }
  // Or by another one. True: the challenge is due; its value may have to be chosen. `wait`: how
  // long an answer may take.
  bool on_newest_elsewhere(const AddressPair& from, Duration wait, Time now);
  // Such a challenge has left so lately that its answer may be under way.
  bool asks_where_heard(Time now) const {
    return has_tokens() && tokens_->challenge.value != 0 && now < tokens_->challenge_again;
  }
  // A challenge by the path's own pair is due: is the peer at its other end?
  void prove(Time now);
  // One by another pair: would the peer answer there?
  void challenge_at(const AddressPair& pair, Time now);
  // The peer asks us to answer by the pair its challenge came by.
  void on_challenge(const AddressPair& from, std::uint64_t token);
  // Is this the answer to our challenge, by the pair that was challenged?
  bool is_answer(const AddressPair& from, std::uint64_t token);

  // Something may be due to be sent.
  bool has_tokens() const { return tokens_ != nullptr; }
  Token& challenge() { return tokens().challenge; }  // its value is unguessable, never 0
  Token& response() { return tokens().response; }
  // Gives memory back, once nothing is due and no answer to a challenge may come any more.
  void trim(Time now);

  static constexpr Duration kPatience = 200 * kMillisecond;
  // The new pair may be a much longer way than the old one.
  static constexpr Duration kLongestAnswer = 2 * kSecond;

 private:
  struct Tokens {
    Token challenge, response;
    Time challenged = 0, challenge_again = 0;
  };
  Tokens& tokens() {
    if (tokens_ == nullptr) tokens_ = std::make_unique<Tokens>();
    return *tokens_;
  }

  AddressPair pair_;
  bool leads_;
  Time heard_ = 0;                  // by pair_
  std::unique_ptr<Tokens> tokens_;  // rarely needed, and an idle session is to be small
};

}  // namespace taco::harp
