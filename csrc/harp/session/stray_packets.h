// Packets that belong to no session: hellos, which begin one; resets, which cast doubt on one;
// packets of other versions; and packets for a connection that nobody here knows. These last are
// answered by a reset, so that a process learns that its peer has ended although somebody else has
// the peer's port by now.
//
// Anybody can send any of these, so nothing is allocated before a hello has proved itself, what
// costs a search is rationed, a reset is believed only if it quotes what was really sent and comes
// from where that went, and a packet of another version ends nothing.
//
// One per engine; owner thread only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "harp/nic.h"
#include "harp/session/proof.h"
#include "harp/session/session_host.h"
#include "harp/session/wire.h"

namespace taco::harp {

class StrayPackets {
 public:
  // The processes that this one was told of.
  class Peers {
   public:
    virtual ~Peers() = default;
    // The key that proves the hellos of that process; none: not told of it (yet), or it takes no
    // packets.
    virtual std::optional<PairKey> key_with(std::uint64_t incarnation) = 0;
    // The session with it, made on first use. Only of those that have a key.
    virtual Session& session_with(std::uint64_t incarnation) = 0;
    // The process has a new session, and has proved that: what this process has with it must end.
    // Returns the session that takes its place; null: somebody loses something by that, is told,
    // and the process stays lost to those who knew it.
    virtual Session* begin_anew(std::uint64_t incarnation) = 0;
    // The process that has the peer's address now does not know this session. No proof that the
    // peer has ended: somebody who can read our packets can forge that.
    virtual void on_reset(Session& session) = 0;
  };

  StrayPackets(SessionHost& host, std::uint64_t own_incarnation, Peers& peers)
      : host_(host), own_incarnation_(own_incarnation), peers_(peers) {}

  // One datagram whose connection is not that of a session here.
  void take(const RxPacket& packet);

  static constexpr std::uint32_t kResetsPerSecond = 100;
  static constexpr std::uint32_t kSearchesPerSecond = 1000;

 private:
  // Lets `per_second` pass, after a pause as many at once.
  class Ration {
   public:
    explicit Ration(std::uint32_t per_second) : step_(kSecond / per_second) {}
    bool take(Time now) {
      empty_until_ = std::max(empty_until_, now - kSecond);
      if (empty_until_ + step_ > now) return false;
      empty_until_ += step_;
      return true;
    }

   private:
    const Duration step_;
    Time empty_until_ = -kSecond;  // all up to then is used up
  };

  void on_hello(const wire::Packet& parsed, const RxPacket& packet);
  void on_reset(const wire::Packet& parsed, const RxPacket& packet);
  void on_other_version(const RxPacket& packet);
  void answer(const RxPacket& packet);

  SessionHost& host_;
  const std::uint64_t own_incarnation_;
  Peers& peers_;
  Ration resets_{kResetsPerSecond};
  Ration searches_{kSearchesPerSecond};
};

}  // namespace taco::harp
