// Flow control between engines: a receiver hands out credit so that what all senders together have
// in flight to it fits into its real socket buffer, whatever their number. Half of it is shared
// out; as long as there are few peers, each may have two packets under way beyond that, which take
// a quarter at most.
//
// Credit is expressed as a packet number: "you may send up to packet number L". A packet takes its
// number whether it arrives or is lost, so credit cannot leak: what is outstanding is L minus the
// largest number received. The pool counts bytes: every packet is charged the most that one of its
// session can cost the kernel, which a path of jumbo frames makes six times what another costs. A
// limit may also be lowered; the old one counts as outstanding until the peer has
// acknowledged the new one. A peer that is lost or has left gives back all it held, and one that
// falls silent before it ever answered, until it is heard again.
//
// Every session has a small standing allowance; the rest is divided among sessions with open
// wanted receives. A session begins once its peer has been heard, with a part of what is left, and
// with no more than each could have that there is. Where there are more peers than packets, some
// have nothing: they ask, and get theirs in the order in which they asked, from what others have
// used, or give up because they made no use of it for a while.
//
// One CreditPool an engine, one CreditAccount a session; owner thread only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "base/machine.h"

namespace taco::harp {

class CreditAccount;

class CreditPool {
 public:
  // `bytes` that may be in flight to this engine at once, as the kernel counts them.
  explicit CreditPool(std::uint64_t bytes) : capacity_(bytes) {}

  // Once a turn, before anything else.
  void set_now(Time now) { now_ms_ = static_cast<std::uint32_t>(now / kMillisecond); }

  std::uint64_t capacity() const { return capacity_; }
  std::uint64_t outstanding() const { return outstanding_; }
  // More than this is never outstanding.
  std::uint64_t most() const { return capacity_ + capacity_ / 2; }
  std::uint64_t free() const { return outstanding_ < capacity_ ? capacity_ - outstanding_ : 0; }
  std::uint64_t share() const;     // of one active session
  std::uint64_t standing() const;  // of one idle session, at most
  std::uint64_t packet_bytes() const { return packet_bytes_; }
  // Somebody waits for credit, and something has changed since the accounts were last asked to
  // refresh, or enough time has passed: asking them again may help.
  bool starving() const {
    return waiting_ > 0 && (changed_ || (queued_ > 0 && now_ms_ - asked_ms_ >= kUseWithinMs));
  }
  // Some of those have nothing: that is pressing.
  bool owes_turns() const { return queued_ > 0 && starving(); }
  // Every account that is_concerned() is being asked. Those that wait with nothing have had their
  // turns, as far as there is room.
  void ask_everybody();

 private:
  friend class CreditAccount;
  // So long a peer may take to use what it has before it gives way to those that have nothing.
  static constexpr std::uint32_t kUseWithinMs = 20;

  bool is_unused() const {
    return outstanding_ == 0 && active_ == 0 && waiting_ == 0 && packet_bytes_ == 0 && queued_ == 0;
  }
  std::uint64_t least() const;                            // packets of each, whatever others hold
  std::uint64_t first(std::uint64_t packet_bytes) const;  // of one that begins
  std::uint64_t room(std::uint64_t packet_bytes) const;   // for packets
  void append(CreditAccount& account);
  void drop(CreditAccount& account);

  std::uint64_t capacity_;
  std::uint64_t outstanding_ = 0;
  std::uint64_t accounts_ = 0, active_ = 0, waiting_ = 0;
  std::uint64_t packet_bytes_ = 0;                   // one packet of each account
  CreditAccount *head_ = nullptr, *tail_ = nullptr;  // those that wait with nothing, as they asked
  std::uint64_t queued_ = 0;                         // so many
  std::uint64_t to_give_way_ = 0;                    // so many others may yet, of those being asked
  std::uint32_t now_ms_ = 0, asked_ms_ = 0;
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
    if (left() > 0) asked_ = 0;
    return true;
  }
  // The first word, which later ones may have overtaken.
  void begin(std::uint64_t limit, std::uint32_t epoch) {
    if (epoch == 0 && epoch_ == 0) limit_ = limit;
    on_granted(limit, epoch);
  }
  std::uint64_t left() const { return limit_ > used_ ? limit_ - used_ : 0; }
  std::uint64_t limit() const { return limit_; }
  std::uint64_t used() const { return used_; }
  // These have left, lost or not.
  void use(std::uint32_t packets) {
    used_ += packets;
    blocked_ = false;
    if (left() == 0) asked_ = std::max<std::uint8_t>(asked_, 1);
  }
  // Notes that so many of those were lost with a path. The peer counts them until a record tells it
  // so; that record may leave all the same, or it would wait for the very credit that it sets free.
  void write_off(std::uint32_t packets) { written_off_ += packets; }
  bool may_tell() const { return limit_ + written_off_ > used_; }
  void on_told() { written_off_ = 0; }
  // Something waits for credit: until a packet leaves, it is asked for.
  void set_blocked() { blocked_ = true; }
  bool blocked() const { return blocked_; }
  // How often it was asked for since there was some, the last packets that used it up included: the
  // peer remembers, so it is asked ever more rarely.
  std::uint32_t asked() const { return asked_; }
  void on_asked() { asked_ += asked_ < kMaxAsked ? 1 : 0; }
  // The peer cannot know that something waits.
  bool is_to_be_asked_for() const { return blocked_ && left() == 0 && asked_ == 0; }

 private:
  static constexpr std::uint8_t kMaxAsked = 10;

  std::uint64_t limit_ = 0;  // as a sum of packet numbers
  std::uint64_t used_ = 0;
  std::uint64_t written_off_ = 0;
  std::uint32_t epoch_ = 0;
  std::uint8_t asked_ = 0;
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

  // The peer has been heard, and is to be told of its first limit. Whoever has not been heard may
  // never be, and holds nothing.
  void open();
  bool is_open() const { return open_ && !closed_; }
  // The peer never answered, and has been silent for long: what it was promised counts no more,
  // until it is heard again.
  void take_back();
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
  // It holds or waits for something.
  bool is_concerned() const { return waiting_ || counted_ > 0; }
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
  friend class CreditPool;
  bool recompute();
  std::uint64_t target() const;
  std::uint64_t offered() const { return limit_ > largest_ ? limit_ - largest_ : 0; }
  std::uint64_t outstanding() const;
  bool may_take() const;   // nobody who has nothing comes before it
  bool gives_way() const;  // to those
  bool take_turn();        // from those: with one packet. False: there is no room
  void lower(std::uint64_t offered);
  void grant(std::uint64_t more);
  void update_pool();  // brings the pool's sum up to date
  void set_waiting(bool waiting);
  void set_queued(bool queued);

  CreditPool& pool_;
  CreditAccount* next_ = nullptr;  // in the pool's queue
  const std::uint32_t packet_bytes_;
  std::uint32_t counted_ = 0;    // our part of pool_.outstanding_, in packets
  std::uint64_t limit_ = 0;      // what we tell
  std::uint64_t committed_ = 0;  // what the peer may still believe
  std::uint64_t largest_ = 0;    // received
  std::uint32_t epoch_ = 0;
  std::uint32_t lowered_at_ = 0;  // epoch of the lowering under way
  std::uint32_t stirred_ms_ = 0;  // when it was granted some last, or used some
  Machine<Lowering> lowering_;
  bool open_ : 1 = false, closed_ : 1 = false;
  bool active_ : 1 = false, waiting_ : 1 = false, queued_ : 1 = false;
  bool had_turn_ : 1 = false;  // of which the peer has not been told
};

}  // namespace taco::harp
