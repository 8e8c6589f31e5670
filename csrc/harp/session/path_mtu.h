// Finds the datagrams that a path carries, in the manner of RFC 8899 (datagram PLPMTUD): nothing
// larger than kBase is relied upon before a datagram of that size has been seen to arrive, and a
// size that stops arriving is given up for the largest that still does. ICMP is not needed.
//
// A search probes all candidate sizes at once, in up to three rounds, with packets that nothing may
// fragment. There are two kinds:
//   growth  is there more than what is confirmed? Asked once the path is open, then now and then.
//   doubt   data of some size are lost while smaller packets are acknowledged: a black hole? Until
//           it ends, nothing larger than kBase should be sent.
//
// A pure state machine of the sender's side of one path: knows no packet, and time is passed in.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "harp/session/wire.h"

namespace taco::harp {

class PathMtu {
 public:
  static constexpr std::uint32_t kBase = wire::kMinDatagram;

  // The path opens. Both ends take datagrams up to `limit`.
  void open(std::size_t limit, Time now);
  // A datagram of this size has arrived at the peer (a padded hello).
  void on_proof(std::size_t bytes, Time now);
  // The peer has left: nothing that matters will be sent.
  void close() { *this = {}; }
  // Doubts what was learnt: the path leads elsewhere now.
  void doubt(Time now);

  // Datagrams up to this size may be relied on.
  std::size_t size() const { return confirmed_; }
  // The size that may leave now: in doubt, kBase at most.
  std::size_t usable() const { return doubting_ ? kBase : confirmed_; }
  bool in_doubt() const { return doubting_; }
  // More than what is confirmed may turn out to arrive, soon.
  bool is_growing() const { return searching_ && !doubting_; }

  // The fate of a run of data packets of `bytes` each that left at `sent`: some acknowledged, or
  // all lost.
  void on_data_acked(std::size_t bytes, Time sent);
  void on_data_lost(std::size_t bytes, Time sent, Time now);

  // Data are about to be sent: looks for growth when that is due, and says so. Idle paths are not
  // probed.
  bool on_traffic(Time now);

  // The size of the probe to send now, 0: none.
  std::size_t next_probe() const;
  // `wait`: how long its acknowledgement may take.
  void on_probe_sent(Time now, Duration wait);
  void on_probe_acked(std::size_t bytes, Time now);
  // When on_timer() wants to be called.
  Time deadline() const { return round_end_; }
  // True: what is usable has changed.
  bool on_timer(Time now);

  static constexpr Duration kFirstGrowth = 10 * kSecond;
  static constexpr Duration kLastGrowth = 600 * kSecond;
  // A round of a search; of one that nothing answers, each takes twice as long as the one before.
  static constexpr Duration kMinRound = 10 * kMillisecond;
  static constexpr Duration kLongestRound = 640 * kMillisecond;

 private:
  static constexpr int kRounds = 3;
  static constexpr std::uint32_t kSuspiciousRuns = 3;
  static constexpr Duration kFirstTrust = 100 * kMillisecond;
  static constexpr Duration kLastTrust = 5 * kSecond;

  void begin(bool doubt);
  void next_round();
  void finish(Time now);
  Duration patience() const { return std::min(kMinRound << silence_, kLongestRound); }
  void note_silence() { silence_ = static_cast<std::uint8_t>(std::min(silence_ + 1, 8)); }
  std::size_t max_wanted() const { return doubting_ ? confirmed_ : limit_; }
  std::uint32_t candidate_below(std::size_t bytes) const;

  std::uint32_t limit_ = kBase;
  std::uint32_t confirmed_ = kBase;

  // The search under way.
  bool searching_ = false, doubting_ = false;
  bool answered_ = false;  // some probe of it was: the path lives
  std::uint8_t round_ = 0;
  std::uint8_t silence_ = 0;       // rounds in a row without an answer, or without room for a probe
  std::uint8_t futile_ = 0;        // searches for growth in a row that found none
  std::uint8_t false_alarms_ = 0;  // in a row
  std::uint32_t best_ = 0;         // the largest acknowledged in it
  std::uint32_t next_ = 0;  // to be probed next in this round, unless what is best is as good
  Time round_end_ = kNever;
  Time growth_at_ = kNever;

  // Evidence of a black hole.
  std::uint32_t lost_runs_ = 0;
  std::uint32_t lost_bytes_ = 0;  // of the smallest of them
  std::uint32_t good_bytes_ = 0;  // of the run that was sent last of those that arrived
  Time first_lost_ = 0;
  Time good_sent_ = 0;
  Time trusted_until_ = 0;  // after a false alarm
};

}  // namespace taco::harp
