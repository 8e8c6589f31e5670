// Keeps the engine's page of statistics (stat/layout.h) up to date for whoever reads it: looks when
// something has happened, 100 ms later, so that an engine that is idle stays asleep and one that is
// busy pays one look in a thousand turns. Where a look takes long, as with thousands of peers, the
// next is so much later that they never take more than a hundredth of the time.
//
// Owned by the engine; every function needs the ownership token.
#pragma once

#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "harp/engine/duty.h"
#include "harp/engine/engine_loop.h"
#include "harp/shm/endpoint.h"
#include "harp/stat/stat_page.h"
#include "harp/transport.h"

namespace taco::harp {

class StatPublisher {
 public:
  static constexpr Duration kPeriod = 100 * kMillisecond;
  static constexpr int kShare = 100;

  // The objects referred to outlive it. `shm` and `duty` may be null, as in virtual time.
  StatPublisher(EngineLoop& loop, const ShmEndpoint* shm, const Duty* duty,
                std::unique_ptr<statistics::Page> page);
  ~StatPublisher();
  StatPublisher(const StatPublisher&) = delete;
  StatPublisher& operator=(const StatPublisher&) = delete;

  // Once a turn.
  void on_turn_st() {
    if (timer_.deadline == kNever && activity_st() != published_) loop_.arm_st(timer_, due_st());
  }

 private:
  static void on_expiry(Timer& timer, Time now);
  std::uint64_t activity_st() const;
  Time due_st() const { return loop_.now() + pause_; }
  void publish_st();

  EngineLoop& loop_;
  const ShmEndpoint* const shm_;
  const Duty* const duty_;
  const std::unique_ptr<statistics::Page> page_;
  statistics::State state_;
  Timer timer_;
  Duration pause_ = kPeriod;
  std::uint64_t published_ = 0;  // the activity up to what stands there
};

}  // namespace taco::harp
