// The messages of one session that have something to transmit, and whose turn it is: found without
// a walk over those that wait, of which there may be thousands.
//
// A message with losses goes first, the oldest before others: it has waited longest, and its
// receiver holds everything else of it. Otherwise groups take turns, so that none waits for
// another's large messages. Within a group the oldest message goes first: messages that took turns
// would all end late and together, and with them the receives whose end lets the receiver ask for
// more. Split messages wait for the one that is in pieces: together they would fill the receiver
// with incomplete segments.
//
// Owned by its session, as the messages are; owner thread only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/list.h"
#include "harp/session/message.h"

namespace taco::harp {

class SendQueue {
 public:
  // It has something to transmit. Of one that is here already, the place is looked at again: it has
  // lost something, say, or a part of it has left.
  void add(BulkSend& send);
  void remove(BulkSend& send);
  // Nothing of it leaves any more. True: a split message may begin that has waited for its end.
  bool retire(BulkSend& send);

  // Null: none.
  BulkSend* next() const;
  // Something of it has left that had not left before.
  void on_served(const BulkSend& send) { last_group_ = send.group; }
  // May pieces of it leave, or those of another one?
  bool may_leave_in_pieces(BulkSend& send);

  bool empty() const { return size_ == 0; }
  bool has_one() const { return size_ == 1; }
  std::size_t unsent() const { return unsent_; }  // units of all that are here
  std::size_t memory_bytes() const {
    return sizeof *this + groups_.capacity() * sizeof(groups_.front());
  }
  // Messages that were passed by in search of a place, since it was made.
  std::uint64_t passed_by() const { return passed_by_; }

 private:
  using Messages = List<BulkSend, &BulkSend::turn>;
  struct Group {
    std::uint64_t id = 0;
    Messages messages;  // oldest first, and never none
  };
  static bool is_older(const BulkSend& send, const BulkSend& than) {
    return static_cast<std::int32_t>(send.generation - than.generation) < 0;
  }
  BulkSend::Turn turn_of(const BulkSend& send) const;
  auto place_of(std::uint64_t group) {
    return std::ranges::lower_bound(groups_, group, {}, &Group::id);
  }
  void enter_group(BulkSend& send);
  void enter_repairs(BulkSend& send);
  void leave_list(BulkSend& send);

  std::vector<Group> groups_;      // by id
  Messages repairs_;               // those with losses, oldest first
  Messages halted_;                // split ones that wait for another's end, oldest first
  BulkSend* in_pieces_ = nullptr;  // that one
  std::uint64_t last_group_ = 0;   // whose message was served last
  std::size_t size_ = 0, unsent_ = 0;
  std::uint64_t passed_by_ = 0;
};

}  // namespace taco::harp
