#include "harp/api/channels.h"

#include <algorithm>
#include <iterator>

#include "base/mixed_bits.h"
#include "base/per_process.h"
#include "harp/service.h"

namespace harp {
namespace {

constinit taco::PerProcess<Channels> process_channels;

}  // namespace

Channels& channels() { return process_channels(); }

std::uint64_t group_of(const ChannelOfTwo& which) {
  const std::uint64_t both =
      taco::mixed_bits(std::min(which.own, which.peer)) ^ std::max(which.own, which.peer);
  return taco::harp::group_id(taco::harp::Service::kMessages,
                              taco::mixed_bits(taco::mixed_bits(both) + which.channel));
}

std::optional<taco::harp::MessageKey> Channels::next(const ChannelOfTwo& which, bool sends) {
  std::lock_guard lock(mutex_);
  if (has_ended(which)) return std::nullopt;
  return taco::harp::MessageKey{group_of(which), next_[{which, sends}]++};
}

void Channels::forget(const ChannelOfTwo& which) {
  next_.erase({which, false});
  next_.erase({which, true});
}

bool Channels::end_given(const ChannelOfTwo& which) {
  std::lock_guard lock(mutex_);
  if (which.own == which.peer && half_ended_.erase(which) == 0) {
    half_ended_.insert(which);
    return false;
  }
  forget(which);
  return true;
}

bool Channels::end_own(const ChannelOfTwo& which) {
  std::lock_guard lock(mutex_);
  Ranges& ended = ended_[{which.own, which.peer}];
  if (contains(ended, which.channel)) return false;
  add(ended, which.channel);
  forget(which);
  return true;
}

bool Channels::has_ended(const ChannelOfTwo& which) const {
  const auto ended = ended_.find({which.own, which.peer});
  return ended != ended_.end() && contains(ended->second, which.channel);
}

bool Channels::contains(const Ranges& ranges, std::uint32_t number) {
  const auto after = ranges.upper_bound(number);
  return after != ranges.begin() && number <= std::prev(after)->second;
}

// Joins it to its neighbours.
void Channels::add(Ranges& ranges, std::uint32_t number) {
  std::uint32_t first = number, last = number;
  const auto after = ranges.upper_bound(number);
  if (after != ranges.begin() && std::prev(after)->second + 1 == number) {
    first = std::prev(after)->first;
  }
  if (after != ranges.end() && after->first == number + 1) {
    last = after->second;
    ranges.erase(after);
  }
  ranges[first] = last;
}

}  // namespace harp
