// Congestion control behind a small table of functions, counted in packets. The state is one plain
// struct for all of them, so that a path holds it by value.
//
//   swift  delay-based (after Kumar et al., SIGCOMM 2020): keeps the queueing delay near a target,
//          which is lower for larger windows, so that flows on one cable come to equal shares. Loss
//          slows it where giving way makes the loss go away; beside senders that fill whatever
//          queue there is (TCP), it does as they do.
//   paced_swift  the same, and what the window allows leaves evenly spread over a round trip: for
//          senders much faster than a switch behind them whose queues hold little.
//   cubic  RFC 9438, for networks shared with TCP where delay says little.
//
// Paths of one session between the same addresses are coupled: what the others may have under way
// counts when a path asks for more, so that they take little more of their cable than one would.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"

namespace taco::harp {

// The queue where a packet has brought no sample.
inline constexpr Duration kNoQueue = -1;

// One round: from a packet's leaving to its acknowledgement.
struct CongestionRound {
  std::uint64_t end = 0;  // the packet number that ends it
  Duration min_queue = kNoQueue, max_queue = 0;
  std::uint32_t acked = 0, lost = 0;
  std::uint32_t lost_runs = 0;  // of packets that had left together
  bool limited = false;         // the window was what stopped us
};

// State of swift alone.
struct SwiftState {
  CongestionRound round;
  std::uint16_t careful = 0;  // rounds of growth since the last loss
  bool was_empty = false;
  bool has_lost = false;  // packets, for lack of room
  // Packets lost while there is no queue, of so many.
  float empty_lost = 0, empty_all = 0;
  // Packets taken to be lost for lack of room, of so many.
  float blamed_lost = 0, blamed_all = 0;
  std::uint32_t spell_end_ms = 0;  // when it competed last; 0: never
  Time competes_until = 0;         // with senders that do not give way; 0: it does not
  Duration longest_queue = 0;      // lately
  // Giving way to a queue, for so many rounds now, and what it was like at first.
  Duration yielded_delay = 0;
  float yielded_from = 0;
  std::uint8_t yielded = 0;
  std::uint8_t half_life = 0;  // of the memory of long queues: the number of the present one
};

// State of cubic alone.
struct CubicState {
  double last_maximum = 0;
  double reno = 0;  // the window that Reno would have by now
  Time epoch_start = 0;
};

inline constexpr double kNoThreshold = 1e9;

struct CongestionState {
  double window = 0;  // packets that may be in flight
  // Below it, the window may double in a round.
  double slow_start_threshold = kNoThreshold;
  // The values that an undo restores; 0: nothing.
  float window_before_loss = 0, threshold_before_loss = 0;
  std::uint64_t recovery_end = 0;  // losses up to this number belong to one event
  SwiftState swift;
  CubicState cubic;
};

struct AckSample {
  Time now = 0;
  std::uint32_t packets = 0;      // newly acknowledged
  std::uint32_t lost = 0;         // declared lost on this occasion
  std::uint32_t lost_runs = 0;    // that they belong to
  std::uint64_t largest = 0;      // acknowledged so far
  std::uint64_t next_number = 0;  // to be sent
  Duration queue = kNoQueue;      // that the newest of them has found on its way there
  Duration smoothed_rtt = 0;
  double rate = 0;  // packets a nanosecond that the path delivers; 0: not known
  // The number of the session's paths that share a link with this one, and their windows together.
  std::uint32_t others = 0;
  double others_window = 0;
  bool limited = false;
};

struct CongestionOps {
  const char* name;
  void (*start)(CongestionState& state);
  void (*on_ack)(CongestionState& state, const AckSample& sample);
  void (*on_loss)(CongestionState& state, const AckSample& sample);
  // Two probes in a row went unanswered.
  void (*on_silence)(CongestionState& state);
  // The last loss turned out to be spurious.
  void (*undo)(CongestionState& state);
  // How many windows may leave in a round trip, evenly; 0: as fast as the window opens.
  double (*pace)(const CongestionState& state);
};

inline double unpaced(const CongestionState& /*state*/) { return 0; }

extern const CongestionOps kSwift;
extern const CongestionOps kPacedSwift;
extern const CongestionOps kCubic;
// kInvalidArgument when the name is unknown.
Result<const CongestionOps*> congestion_named(std::string_view name);

inline constexpr double kInitialWindow = 128;
// Many senders into one short queue: each must be able to make do with little.
inline constexpr double kMinWindow = 4;
inline constexpr double kLargestWindow = 32768;

}  // namespace taco::harp
