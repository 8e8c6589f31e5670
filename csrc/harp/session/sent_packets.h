// The packets that one path has sent and not yet heard about, as runs: up to 64 consecutive packet
// numbers that left together and carry consecutive segments of one message (or one small packet).
// An acknowledgement walks runs and bit masks, never single packets, and of the runs only those it
// says something new about: what it costs does not depend on how much is in flight.
//
// The ring holds what is in flight. Packets declared lost leave it for a small list, where they are
// remembered a while, so that a late acknowledgement shows the loss to have been spurious; so one
// loss does not keep everything that left after it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "harp/session/wire.h"

namespace taco::harp {

struct SentRun {
  enum class Kind : std::uint8_t { kBulk, kPieces, kEager, kRecords, kProbe, kMtuProbe };

  std::uint64_t first = 0;    // packet number
  std::uint64_t pending = 0;  // bit i: first + i is in flight (in the list of lost ones: is lost)
  Time sent = 0;
  Time overtaken = 0;       // when the last of its holes was seen: something later is acknowledged
  std::uint32_t owner = 0;  // kBulk, kPieces: index of the message; else serial number
  std::uint32_t owner_generation = 0;
  std::uint32_t first_segment = 0;  // kBulk; kPieces: first piece; kMtuProbe: its size
  std::uint32_t credit_epoch = 0;   // of the credit frame aboard, when has_credit
  std::uint8_t count = 1;
  Kind kind = Kind::kProbe;
  bool has_credit = false;
  std::uint32_t under_way = 0;  // packets in flight when they had left, these among them

  std::uint64_t last() const { return first + count - 1; }
};

class SentPackets {
 public:
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void on_run_acked(const SentRun& run, std::uint64_t mask) = 0;
    virtual void on_run_lost(const SentRun& run, std::uint64_t mask) = 0;
  };
  struct AckOutcome {
    std::uint32_t newly_acked = 0;
    std::uint32_t spurious = 0;          // had been declared lost
    Time newest_sent = 0;                // when the largest newly acknowledged packet left; 0: none
    std::uint64_t newest = 0;            // its number
    std::uint32_t newest_under_way = 0;  // SentRun::under_way of it
  };
  struct Losses {
    std::uint32_t packets = 0, runs = 0;
  };

  // Numbers never go back; they may skip (packets that need no acknowledgement are not recorded).
  void add(const SentRun& run);
  // Cuts off what the ranges say of numbers never used. False: that is all they say.
  bool on_ack(const wire::Ack& ack, std::uint64_t next_number, Time now, Listener& listener,
              AckOutcome& outcome);
  // Declares lost what was overtaken `window` ago, but nothing before `not_before`. next_loss()
  // says when to call again.
  Losses detect_lost(Time now, Duration window, Time not_before, Listener& listener);
  Time next_loss(Duration window, Time not_before) const;
  // Declares lost all that is in flight.
  void lose_all(Listener& listener);
  // Forgets lost packets sent before `when`.
  void forget_lost(Time when);
  void clear();

  std::uint32_t in_flight() const { return in_flight_; }
  bool empty() const { return size_ == 0 && lost_.empty(); }
  std::size_t runs() const { return size_ + lost_.size(); }  // remembered
  std::uint64_t largest_acked() const { return largest_acked_; }
  void trim();  // gives memory back when empty
  std::size_t memory_bytes() const {
    return (ring_.capacity() + lost_.capacity()) * sizeof(SentRun);
  }

  static constexpr std::size_t kMaxLost = 256;  // runs

 private:
  SentRun& at(std::size_t index) { return ring_[(head_ + index) & (ring_.size() - 1)]; }
  const SentRun& at(std::size_t index) const { return ring_[(head_ + index) & (ring_.size() - 1)]; }
  std::uint64_t overtaken_mask(const SentRun& run) const;
  void ack_range(const wire::AckRange& range, Listener& listener, AckOutcome& outcome);
  void ack_lost(const wire::Ack& ack, Listener& listener, AckOutcome& outcome);
  void note_newest(const SentRun& run, std::uint64_t mask, AckOutcome& outcome) const;
  void note_overtaken(std::uint64_t previous, Time now);
  void remember_lost(const SentRun& run, std::uint64_t mask);
  void pop_finished();

  std::vector<SentRun> ring_;  // size a power of two, or 0
  std::size_t head_ = 0, size_ = 0;
  std::size_t overtaken_ = 0;    // runs at the front that are overtaken as a whole
  std::vector<SentRun> lost_;    // by number
  std::uint32_t in_flight_ = 0;  // packets pending
  std::uint64_t largest_acked_ = 0;
};

}  // namespace taco::harp
