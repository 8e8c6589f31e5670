// Congestion control behind a small table of functions, counted in packets. The state is one plain
// struct for all of them, so that a session holds it by value.
//
//   swift  delay-based (Kumar et al., SIGCOMM 2020): keeps the queueing delay near a target, which
//          is lower for larger windows, so that flows on one cable come to equal shares. Random
//          loss does not slow it; loss with delay, or heavy loss, does.
//   cubic  RFC 9438, for networks shared with TCP where delay says little.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/clock.h"

namespace taco::harp {

struct CongestionState {
  double window = 0;  // packets that may be in flight
  double slow_start_threshold = 1e9;
  // One round: from a packet's leaving to its acknowledgement.
  std::uint64_t round_end = 0;
  Duration round_least_rtt = 0;
  std::uint32_t round_acked = 0, round_lost = 0;
  bool round_limited = false;  // the window was what stopped us
  // What an undo restores.
  double window_before_loss = 0, threshold_before_loss = 0;
  std::uint64_t recovery_end = 0;  // losses up to this number belong to one event
  // cubic
  double last_maximum = 0;
  Time epoch_start = 0;
};

struct AckSample {
  Time now = 0;
  std::uint32_t packets = 0;      // newly acknowledged
  std::uint32_t lost = 0;         // declared lost on this occasion
  std::uint64_t largest = 0;      // acknowledged so far
  std::uint64_t next_number = 0;  // to be sent
  Duration rtt = 0;               // 0: no sample
  Duration least_rtt = 0;         // of the path, lately
  Duration smoothed_rtt = 0;
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
};

extern const CongestionOps kSwift;
extern const CongestionOps kCubic;
// Null when the name is unknown.
const CongestionOps* congestion_named(std::string_view name);

inline constexpr double kInitialWindow = 128;
inline constexpr double kLeastWindow = 8;
inline constexpr double kLargestWindow = 32768;

}  // namespace taco::harp
