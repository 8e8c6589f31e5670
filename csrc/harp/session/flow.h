// Flow control between engines: a receiver hands out credit so that what all senders together have
// in flight to it never exceeds half of its real socket buffer, but for the few packets that each
// may begin with, and two of each at any time.
//
// Credit is expressed as a packet number: "you may send up to packet number L". A packet takes its
// number whether it arrives or is lost, so credit cannot leak: what is outstanding is L minus the
// largest number received. The pool counts bytes: every packet is charged the most that one of its
// session can cost the kernel, which a path of jumbo frames makes six times what another costs. A
// limit may also be lowered; the old one counts as outstanding until the peer has
// acknowledged the new one. A peer that is lost or has left gives back all it held.
//
// Every session has a small standing allowance; the rest is divided among sessions with open
// wanted receives. One CreditPool an engine, one CreditAccount a session; owner thread only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/machine.h"

namespace taco::harp {

class CreditAccount;

class CreditPool {
 public:
  // `bytes` that may be in flight to this engine at once, as the kernel counts them.
  explicit CreditPool(std::uint64_t bytes) : capacity_(bytes) {}

  std::uint64_t capacity() const { return capacity_; }
  std::uint64_t outstanding() const { return outstanding_; }
  std::uint64_t free() const { return outstanding_ < capacity_ ? capacity_ - outstanding_ : 0; }
  std::uint64_t share() const;     // of one active session
  std::uint64_t standing() const;  // of one idle session, at most
  std::uint64_t packet_bytes() const { return packet_bytes_; }
  // Somebody waits for credit, and something has changed since the accounts were last asked to
  // refresh: asking them again may help.
  bool starving() const { return waiting_ > 0 && changed_; }
  // Every account is being asked.
  void ask_everybody() { changed_ = false; }

 private:
  friend class CreditAccount;
  bool is_unused() const {
    return outstanding_ == 0 && active_ == 0 && waiting_ == 0 && packet_bytes_ == 0;
  }
  std::uint64_t capacity_;
  std::uint64_t outstanding_ = 0;
  std::uint64_t accounts_ = 0, active_ = 0, waiting_ = 0;
  std::uint64_t packet_bytes_ = 0;  // one packet of each account
  bool changed_ = false;
};

// The sender's side of one session: what the peer grants is used up by the packets of all its
// paths.
class SendCredit {
 public:
  // False: that is not news.
  bool on_granted(std::uint64_t limit, std::uint32_t epoch) {
    if (static_cast<std::int32_t>(epoch - epoch_) <= 0) return false;
    epoch_ = epoch;
    limit_ = limit;
    return true;
  }
  std::uint64_t left() const { return limit_ > used_ ? limit_ - used_ : 0; }
  std::uint64_t limit() const { return limit_; }
  std::uint64_t used() const { return used_; }
  // These have left, lost or not.
  void use(std::uint32_t packets) {
    used_ += packets;
    blocked_ = false;
  }
  // Notes that so many of those were lost with a path. The peer counts them until a record tells it
  // so; that record may leave all the same, or it would wait for the very credit that it sets free.
  void write_off(std::uint32_t packets) { written_off_ += packets; }
  bool may_tell() const { return limit_ + written_off_ > used_; }
  void on_told() { written_off_ = 0; }
  // Something waits for credit: until a packet leaves, it is asked for.
  void set_blocked() { blocked_ = true; }
  bool blocked() const { return blocked_; }

  static constexpr std::uint64_t kInitial = 8;  // packets, before anything was granted

 private:
  std::uint64_t limit_ = kInitial;  // as a sum of packet numbers
  std::uint64_t used_ = 0;
  std::uint64_t written_off_ = 0;
  std::uint32_t epoch_ = 0;
  bool blocked_ = false;
};

// The receiver's side of one session.
class CreditAccount {
 public:
  // How much the peer knows of a limit that went down; only its confirmation frees what it held.
  //
  //   state     leads to
  //   kNone     kUntold, when refresh() lowers the limit
  //   kUntold   kTold, when a packet has left that carries the limit and will be acknowledged
  //   kTold     kUntold, when that is lost, or was an older limit
  //
  // and both back to kNone when the peer confirms it, or is gone.
  enum class Lowering : std::uint8_t { kNone, kUntold, kTold };
  friend constexpr bool leads_to(Lowering from, Lowering to) {
    return from != to && (from != Lowering::kNone || to == Lowering::kUntold);
  }

  // `packet_bytes`: the most that one packet of this session costs the pool.
  CreditAccount(CreditPool& pool, std::uint64_t packet_bytes);
  ~CreditAccount();
  CreditAccount(const CreditAccount&) = delete;
  CreditAccount& operator=(const CreditAccount&) = delete;

  // The peer is lost or has left: nothing more comes, and what it might have sent is the others'.
  // The account stays empty and refuses everything from here on.
  void close();

  // Open wanted receives exist: ask for a full share.
  void set_active(bool active);
  // The largest packet number received so far; of several paths, the sum.
  void on_received(std::uint64_t largest);
  std::uint64_t received() const { return largest_; }
  // The highest limit that the peer may still believe.
  std::uint64_t promised() const { return limit_ > committed_ ? limit_ : committed_; }
  bool is_closed() const { return closed_; }
  // Recomputes the limit. True when it changed enough that the peer should be told.
  bool refresh();
  // The limit to tell the peer now. `epoch` moves with every change of the limit.
  std::uint64_t limit() const { return limit_; }
  std::uint32_t epoch() const { return epoch_; }
  Lowering lowering() const { return lowering_.state(); }
  // A packet that the peer will acknowledge has left with limit() and epoch(); what became of it.
  void on_told() {
    if (lowering_.is(Lowering::kUntold)) lowering_.go(Lowering::kTold);
  }
  void on_confirmed(std::uint32_t epoch);
  void on_lost() {
    if (lowering_.is(Lowering::kTold)) lowering_.go(Lowering::kUntold);
  }

 private:
  std::uint64_t target() const;
  std::uint64_t outstanding() const;
  void update_pool();  // brings the pool's sum up to date
  void set_waiting(bool waiting);

  CreditPool& pool_;
  const std::uint64_t packet_bytes_;
  std::uint64_t limit_ = SendCredit::kInitial;      // what we tell
  std::uint64_t committed_ = SendCredit::kInitial;  // what the peer may still believe
  std::uint64_t largest_ = 0;                       // received
  std::uint64_t counted_ = 0;                       // our part of pool_.outstanding_, in packets
  std::uint32_t epoch_ = 0;
  std::uint32_t lowered_at_ = 0;  // epoch of the lowering under way
  Machine<Lowering> lowering_;
  bool active_ = false, waiting_ = false, closed_ = false;
};

}  // namespace taco::harp
