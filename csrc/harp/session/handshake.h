// The handshake of one session: who is there, what it can receive, and that no replay
// speaks (docs/wire.md).
//
//   state         its own hello                   of the peer is known    leads to
//   kCalling      leaves now                      nothing for sure        kWaiting, kEstablished
//   kWaiting      has left; next at next_call()   nothing for sure        kCalling, kEstablished
//   kEstablished  none any more                   connection and nonce
//
// A hello that sends our nonce back establishes the session; that is for good: a peer that begins
// anew gets a new session. In every state a hello of the peer's may have to be answered.
//
// Some of several ways to the peer may be dead from the start. So hellos take all of them in turn,
// the best first, and the session begins by whichever is answered first.
//
// Pure state: knows no packet and no key, time is passed in. Owner thread only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/clock.h"
#include "base/machine.h"
#include "harp/session/path_ends.h"
#include "harp/session/wire.h"

namespace taco::harp {

class Handshake {
 public:
  enum class State : std::uint8_t { kCalling, kWaiting, kEstablished };
  friend constexpr bool leads_to(State from, State to) {
    return from != to && from != State::kEstablished;
  }

  // `connection` and `nonce` are random. `max_datagram`: that this side takes. `ways`: at least
  // one, the best first.
  Handshake(std::uint64_t connection, const wire::Nonce& nonce, std::size_t max_datagram,
            std::vector<AddressPair> ways, Time now)
      : connection_(connection),
        nonce_(nonce),
        max_datagram_(max_datagram),
        ways_(std::move(ways)),
        first_ways_(static_cast<std::uint8_t>(ways_.size())),
        called_(now) {
    TACO_ASSERT(!ways_.empty() && ways_.size() <= kMaxWays);
  }

  State state() const { return state_.state(); }
  bool established() const { return state_.is(State::kEstablished); }
  std::uint64_t connection() const { return connection_; }
  std::uint64_t peer_connection() const { return peer_connection_; }  // 0: not known yet
  std::size_t max_datagram() const { return max_datagram_; }          // that both ends take
  const wire::Nonce& nonce() const { return nonce_; }
  const wire::Nonce& peer_nonce() const { return peer_nonce_; }  // once established
  bool has_called() const { return calls_ > 0 || been_ != 0; }   // the peer may have heard of us
  bool has_heard() const { return echo_ != wire::Nonce{}; }      // of the peer

  // The meaning of a hello with a valid proof for this session.
  enum class Meaning : std::uint8_t {
    kStale,        // nothing: what it is about has ended
    kHello,        // somebody is there: answer, and remember the nonce
    kEstablishes,  // the same, and ours has come back
    kBegunAnew,    // ours has come back from another session of the peer's than this one's
  };
  Meaning meaning_of(const wire::Hello& hello) const;
  // One of kEstablishes, before note().
  void establish(const wire::Hello& hello);
  // One of kHello or kEstablishes, a datagram of `bytes`.
  void note(const wire::Hello& hello, const AddressPair& from, std::size_t bytes);
  // Our nonce has come back by `from`: the pair by which it has made the round trip. It is another
  // one than `from` if it has never left by that.
  AddressPair proved_by(const AddressPair& from) const;
  // Until it is established: how the peer may be reached; thereafter none.
  std::span<const AddressPair> ways() const { return ways_; }
  // Those of them that were there from the beginning.
  std::span<const AddressPair> first_ways() const { return ways().first(first_ways_); }
  // They have been taken in vain for a while. Then there may be others, once.
  bool wants_more_ways() const { return !has_more_ways_ && rounds() >= kRoundsOfFirst; }
  void add_ways(std::span<const AddressPair> more);
  // The i-th begins at another address of ours from now on.
  void move_way(std::size_t i, std::uint32_t local) {
    ways_[i].local = local;
    been_ &= ~(std::uint64_t{1} << i);
  }
  // Once it is established: the first ones but `used`, which took the place of one of them, unless
  // it was added.
  std::vector<AddressPair> take_other_ways(const AddressPair& used);
  std::size_t memory_bytes() const { return ways_.capacity() * sizeof(AddressPair); }

  // A hello that is due: by which pair, and at least how long.
  struct Due {
    AddressPair pair;
    std::size_t bytes = 0;
    bool answer = false;
  };
  bool is_due() const { return state_.is(State::kCalling) || answer_.due; }
  Due due() const;
  // Fills in what is the handshake's.
  void fill(wire::Hello& hello, const AddressPair& by) const;
  void on_said(const Due& said, Time now);

  // When to say hello again. `awaited`: somebody waits, on either side.
  Time next_call(bool awaited) const;
  // That will be then: others have their turn first.
  void put_off(Time until) {
    called_ = until;
    is_put_off_ = true;
  }
  bool is_put_off() const { return is_put_off_; }
  // True: a hello is due.
  bool on_timer(bool awaited, Time now);

  // Packets of another version have come from the peer's address. Anybody can send those in its
  // name, so nothing follows from them but what people are told.
  void on_other_version(std::uint8_t version) { other_version_ = version; }
  std::uint8_t other_version() const { return other_version_; }  // the last one's; 0: none has come

  static constexpr std::size_t kMaxWays = 64;
  // Between two hellos: doubled with every round up to the second of these, a quarter longer with
  // every further one, up to the third; to the last, while nobody waits.
  static constexpr Duration kFirstInterval = 5 * kMillisecond;
  static constexpr Duration kQuickInterval = 100 * kMillisecond;
  static constexpr Duration kLongestInterval = kSecond;
  static constexpr Duration kIdleInterval = 60 * kSecond;
  static constexpr std::size_t kRoundsOfFirst = 6;  // before others have their turn too

 private:
  // It sends back our nonce: no hello of another session's.
  bool is_fresh(const wire::Hello& hello) const { return hello.target_nonce == nonce_; }
  bool is_peers(const wire::Hello& hello) const {
    return hello.sender_nonce == peer_nonce_ && hello.sender_connection == peer_connection_;
  }
  std::size_t rounds() const { return calls_ / ways_.size(); }
  const AddressPair& next_way() const { return ways_[calls_ % ways_.size()]; }

  std::uint64_t connection_;
  wire::Nonce nonce_;
  std::uint64_t peer_connection_ = 0;
  wire::Nonce peer_nonce_{};  // once established
  wire::Nonce echo_{};        // the peer's, as last heard: hellos send it back
  std::size_t max_datagram_;
  std::vector<AddressPair> ways_;
  std::uint64_t been_ = 0;           // bit i: a hello has left by the i-th
  AddressPair heard_by_;             // the pair by which a hello came last, and
  std::uint32_t largest_hello_ = 0;  // bytes of the largest datagram with one since others did
  struct Answer {
    AddressPair pair;  // by which the hello came that is or was answered last
    std::uint32_t bytes = 0;
    bool due = false;
    bool to_fresh = false;  // that one sent back our nonce
  } answer_;
  std::uint32_t calls_ = 0;
  bool postponed_ = false;   // the next one
  bool is_put_off_ = false;  // to called_
  bool has_more_ways_ = false;
  std::uint8_t first_ways_;  // of ways_; the others were added
  Machine<State> state_;
  std::uint8_t other_version_ = 0;
  Time called_;
};

}  // namespace taco::harp
