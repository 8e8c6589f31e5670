// Measures one link between two processes, for TACO_TUNE: one end leads, the other follows its
// orders. A round is an order (how many messages, how long), the messages, and an answer when all
// have arrived. Short messages show latency and the cost of a message, long ones the bandwidth. The
// probe uses the Transport directly, as schedules do, so it measures what a step costs.
//
// Any thread but an engine's; both ends at the same time. Nothing else should use the link.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "harp/engine/stack.h"

namespace taco::pg {

struct LinkMeasurement {
  double round_trip = 0;        // seconds of an order and its answer, at best
  double message_seconds = 0;   // of one short message among many
  double bytes_per_second = 0;  // of long messages
  double busy = 0;              // share of that time the busier of both processes computed
};

class LinkProbe {
 public:
  // `group` names the messages: fresh, and the same at both ends.
  LinkProbe(harp::Engine& engine, harp::PeerId peer, std::uint64_t group, Time deadline);
  ~LinkProbe();

  Result<LinkMeasurement> lead();
  Status follow();

 private:
  struct Round;
  struct Timing {
    double seconds = 0;
    double busy = 0;
  };
  Result<Timing> order(std::uint32_t messages, std::uint32_t bytes);
  Status carry_out(const std::shared_ptr<Round>& round);
  std::shared_ptr<Round> new_round();
  std::uint64_t tag(std::uint32_t index) const { return (number_ << 16) | index; }

  harp::Engine& engine_;
  const harp::PeerId peer_;
  const std::uint64_t group_;
  const Time deadline_;
  std::uint64_t number_ = 0;  // of the round
  std::shared_ptr<std::byte[]> memory_;
};

}  // namespace taco::pg
