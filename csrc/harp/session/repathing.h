// Takes paths off links that chance has made them share. Switches that spread conversations over
// equal links (ECMP) choose by a hash of addresses and ports. So one of several paths between the
// same two addresses may cross a crowded link while another one idles, and from other ports it may
// cross that. Nobody says which link a path crosses: it is tried, as in PLB (Qureshi et al.,
// "PLB: congestion signals are simple and effective for network load balancing", SIGCOMM 2022).
//
//   stage       what is going on                                      leads to
//   kMeasuring  what do the paths carry, while they all have more     kMoving
//               to send than their windows let out?
//   kMoving     the slowest is being moved                            kJudging, kMeasuring
//   kJudging    what do they carry now?                               kReturning, kMeasuring
//   kReturning  less: it is being moved back                          kMeasuring
//
// Where all paths share one narrow link, no move brings anything: so after each in vain the next
// one waits twice as long, and after kMaxInVain there is none, until the paths come to carry much
// less than by then. Time in which any of them could send more if there were more to send does not
// count: a path that is slow because little is sent by it is not known to be slow.
//
// Decides for the paths of a session between one pair of addresses, at least two. Pure state: moves
// nothing, time and chance are passed in. Owner thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/machine.h"
#include "harp/session/wire.h"

namespace taco::harp {

class Repathing {
 public:
  enum class Stage : std::uint8_t { kMeasuring, kMoving, kJudging, kReturning };
  friend constexpr bool leads_to(Stage from, Stage to) {
    if (to == Stage::kMeasuring) return from != Stage::kMeasuring;
    return static_cast<int>(to) == static_cast<int>(from) + 1;
  }

  // A live path: packets of it that were acknowledged so far; and whether its window is what keeps
  // more from leaving.
  struct Reading {
    wire::PathId path = wire::kFirstPath;
    std::uint64_t acked = 0;
    bool limited = false;
  };
  // Whenever acknowledgements have come. What is to be moved now; none: nothing is.
  std::optional<wire::PathMove> look(std::span<const Reading> paths, std::uint64_t random,
                                     Time now);
  // One of them has come to other ports, on this side's wish or the peer's.
  void on_moved(Time now);
  // The peer, which does not lead, wishes one to be moved. False: not so soon after the last.
  bool may_oblige(Time now);

  bool gave_up() const { return in_vain_ >= kMaxInVain; }
  std::size_t memory_bytes() const { return kept_.capacity() * sizeof(Kept); }

  // How much time that counts passes between looks, up to twice as much: hosts that look at once
  // would move at once.
  static constexpr Duration kLook = 50 * kMillisecond;
  // Packets that were under way before a move tell nothing about those after it.
  static constexpr Duration kHoldDown = 20 * kMillisecond;
  // A gap of silence does not count.
  static constexpr Duration kPause = 20 * kMillisecond;
  static constexpr Duration kLongestMove = 200 * kMillisecond;
  static constexpr Duration kFirstWait = 50 * kMillisecond;
  static constexpr std::uint32_t kMaxInVain = 6;
  static constexpr double kBetter = 1.05;  // that much more is carried: worth the move
  static constexpr double kWorse = 0.98;   // that much less: back
  static constexpr double kFallen = 0.8;   // since it gave up: try again

 private:
  struct Kept {
    wire::PathId path;
    std::uint64_t last, acked;  // as of the last look; since the measurement began
  };
  bool is_same(std::span<const Reading> paths) const;
  void begin(std::span<const Reading> paths, std::uint64_t random, Time not_before);
  bool note(std::span<const Reading> paths, Time now);
  std::optional<wire::PathMove> choose(double rate, Time now);
  std::optional<wire::PathMove> judge(double rate, Time now);
  bool is_moving() const { return stage_.is(Stage::kMoving) || stage_.is(Stage::kReturning); }
  void fail(Time now);

  Machine<Stage> stage_;
  std::vector<Kept> kept_;
  Time looked_ = 0;                    // the last time
  Time counts_from_ = 0;               // what comes before it does not count
  Duration counted_ = 0, wanted_ = 0;  // of this measurement
  double rate_ = 0;                    // packets a nanosecond, before the last move
  wire::PathId moved_ = wire::kFirstPath;
  Time moving_ = 0, not_before_ = 0;
  Time obliged_ = 0;
  std::uint32_t in_vain_ = 0;
};

}  // namespace taco::harp
