#include "harp/engine/stat_publisher.h"

#include <algorithm>
#include <utility>

namespace taco::harp {
namespace {

using statistics::Counter;

struct ShmCount {
  Counter counter;
  std::atomic<std::uint64_t> ShmStats::*from;
};
constexpr ShmCount kShmCounts[] = {
    {Counter::kShmBytesSent, &ShmStats::bytes_sent},
    {Counter::kShmBytesReceived, &ShmStats::bytes_received},
    {Counter::kShmMessagesSent, &ShmStats::messages_sent},
    {Counter::kShmMessagesReceived, &ShmStats::messages_received},
    {Counter::kDoorbells, &ShmStats::doorbells},
    {Counter::kShmLinks, &ShmStats::links},
};

}  // namespace

StatPublisher::StatPublisher(EngineLoop& loop, const ShmEndpoint* shm, const Duty* duty,
                             std::unique_ptr<statistics::Page> page)
    : loop_(loop), shm_(shm), duty_(duty), page_(std::move(page)) {
  timer_.on_expiry = on_expiry;
  timer_.context = this;
}

StatPublisher::~StatPublisher() {
  if (timer_.deadline != kNever) loop_.disarm_st(timer_);
}

void StatPublisher::on_expiry(Timer& timer, Time) {
  auto& self = *static_cast<StatPublisher*>(timer.context);
  const Time began = monotonic_now();
  self.publish_st();
  self.pause_ = std::max(kPeriod, kShare * (monotonic_now() - began));
}

// A number that changes with everything that readers would want to see.
std::uint64_t StatPublisher::activity_st() const {
  std::uint64_t sum = loop_.activity_st();
  if (shm_ == nullptr) return sum;
  for (const ShmCount& each : kShmCounts) {
    sum += (shm_->stats().*each.from).load(std::memory_order_relaxed);
  }
  return sum;
}

void StatPublisher::publish_st() {
  published_ = activity_st();
  state_.totals = {};
  state_.totals.time = static_cast<std::uint64_t>(loop_.now());
  loop_.describe_st(state_);
  if (duty_ != nullptr) state_.totals[Counter::kSleeps] = duty_->sleeps();
  if (shm_ != nullptr) {
    for (const ShmCount& each : kShmCounts) {
      state_.totals[each.counter] = (shm_->stats().*each.from).load(std::memory_order_relaxed);
    }
  }
  page_->publish(state_);
}

}  // namespace taco::harp
