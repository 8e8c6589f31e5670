// The channels of a process: how the messages of each are numbered in either direction, and which
// have ended. Endpoints of one process may share a Stack, and a key is used once in a Stack's life:
// so they share this, too, and a channel is known for as long as it has not ended, in whichever
// Endpoint. Of those that have, no more is kept than that their numbers are used up.
//
// Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "harp/transport.h"

namespace harp {

// A channel and the two processes that it joins, by their incarnations.
struct ChannelOfTwo {
  std::uint64_t own = 0, peer = 0;
  std::uint32_t channel = 0;
  bool operator<(const ChannelOfTwo& other) const {
    return std::tie(own, peer, channel) < std::tie(other.own, other.peer, other.channel);
  }
};

// The group of its messages. It is of these two alone, so that what belongs to it can be forgotten
// when it ends.
std::uint64_t group_of(const ChannelOfTwo& which);

class Channels {
 public:
  // The key of the next message. Nothing: the channel is the program's own, and has ended.
  std::optional<taco::harp::MessageKey> next(const ChannelOfTwo& which, bool sends);
  // One side of a given channel is done with it. True: the process has no other side of it, as it
  // has of one to itself.
  bool end_given(const ChannelOfTwo& which);
  // One of the program's own is over; false: it was before.
  bool end_own(const ChannelOfTwo& which);
  // How many channels were given before.
  std::uint32_t given() { return given_.fetch_add(1, std::memory_order_relaxed); }

 private:
  // Numbers, as ranges that do not touch: by the first, the last. Programs that use many channels
  // count them, as a rule.
  using Ranges = std::map<std::uint32_t, std::uint32_t>;

  static bool contains(const Ranges& ranges, std::uint32_t number);
  static void add(Ranges& ranges, std::uint32_t number);
  bool has_ended(const ChannelOfTwo& which) const;
  void forget(const ChannelOfTwo& which);

  std::mutex mutex_;
  std::map<std::pair<ChannelOfTwo, bool>, std::uint64_t> next_;
  std::set<ChannelOfTwo> half_ended_;  // given channels of this process to itself
  std::map<std::pair<std::uint64_t, std::uint64_t>, Ranges> ended_;  // programs' own, by the two
  std::atomic<std::uint32_t> given_{0};
};

// This process's.
Channels& channels();

}  // namespace harp
