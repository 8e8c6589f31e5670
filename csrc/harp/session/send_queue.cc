#include "harp/session/send_queue.h"

#include <utility>

#include "base/assert.h"

namespace taco::harp {

BulkSend::Turn SendQueue::turn_of(const BulkSend& send) const {
  if (send.is_split() && in_pieces_ != nullptr && in_pieces_ != &send)
    return BulkSend::Turn::kHalted;
  return send.lost.empty() ? BulkSend::Turn::kInGroup : BulkSend::Turn::kRepair;
}

void SendQueue::add(BulkSend& send) {
  const std::size_t left = send.units - send.next;
  unsent_ += left - (send.turn_is == BulkSend::Turn::kNone ? 0 : send.counted);
  send.counted = static_cast<std::uint32_t>(left);
  const BulkSend::Turn turn = turn_of(send);
  if (turn == send.turn_is) return;
  if (send.turn_is == BulkSend::Turn::kNone) {
    ++size_;
  } else {
    leave_list(send);
  }
  send.turn_is = turn;
  switch (turn) {
    case BulkSend::Turn::kRepair:
      return enter_repairs(send);
    case BulkSend::Turn::kHalted:
      return halted_.push_back(send);
    default:
      return enter_group(send);
  }
}

// A new message is the newest of its group; one that comes back from its losses is most often the
// oldest, and has but few before it.
void SendQueue::enter_group(BulkSend& send) {
  const std::uint64_t id = send.group;
  auto group = place_of(id);
  if (group == groups_.end() || group->id != id) {
    group = groups_.emplace(group);
    group->id = id;
  }
  Messages& messages = group->messages;
  BulkSend* before = messages.back();
  if (before != nullptr && is_older(send, *before)) {
    before = nullptr;
    for (BulkSend* each = messages.front(); is_older(*each, send); each = messages.next(*each)) {
      before = each;
      ++passed_by_;
    }
  }
  messages.insert_after(before, send);
}

// Messages lose something in the order in which they leave, most often.
void SendQueue::enter_repairs(BulkSend& send) {
  BulkSend* before = repairs_.back();
  while (before != nullptr && is_older(send, *before)) {
    before = repairs_.previous(*before);
    ++passed_by_;
  }
  repairs_.insert_after(before, send);
}

void SendQueue::leave_list(BulkSend& send) {
  switch (std::exchange(send.turn_is, BulkSend::Turn::kNone)) {
    case BulkSend::Turn::kNone:
      return;
    case BulkSend::Turn::kRepair:
      return repairs_.erase(send);
    case BulkSend::Turn::kHalted:
      return halted_.erase(send);
    case BulkSend::Turn::kInGroup:
      break;
  }
  const auto group = place_of(send.group);
  TACO_ASSERT(group != groups_.end() && group->id == send.group);
  group->messages.erase(send);
  if (group->messages.empty()) groups_.erase(group);
}

void SendQueue::remove(BulkSend& send) {
  if (send.turn_is == BulkSend::Turn::kNone) return;
  leave_list(send);
  TACO_ASSERT(size_ > 0 && unsent_ >= send.counted);
  --size_;
  unsent_ -= send.counted;
}

bool SendQueue::retire(BulkSend& send) {
  remove(send);
  if (in_pieces_ != &send) return false;
  in_pieces_ = halted_.front();
  if (in_pieces_ == nullptr) return false;
  add(*in_pieces_);
  return true;
}

BulkSend* SendQueue::next() const {
  if (!repairs_.empty()) return repairs_.front();
  if (groups_.empty()) return nullptr;
  const auto after = std::ranges::upper_bound(groups_, last_group_, {}, &Group::id);
  return (after != groups_.end() ? *after : groups_.front()).messages.front();
}

bool SendQueue::may_leave_in_pieces(BulkSend& send) {
  if (in_pieces_ == nullptr) in_pieces_ = &send;
  return in_pieces_ == &send;
}

}  // namespace taco::harp
