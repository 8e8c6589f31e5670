// How much small data may lie unmatched at a receiver: a quota per peer and group, counted by the
// sender, reported lazily by the receiver (half a quota at a time). A sender out of quota says so
// and keeps its sends; the receiver then wants each posted receive of that group by name. The
// receiver counts as well: a peer that goes beyond a quota is no honest one, and is lost.
#include <cstring>

#include "base/assert.h"
#include "harp/matching/matcher.h"

namespace taco::harp {
namespace {

// More groups than this at one peer: forget those that say nothing.
constexpr std::size_t kSweepAt = 64;

}  // namespace

Matcher::Group& Matcher::group_of(std::uint64_t id) {
  if (Group* known = groups_.find({id, 0})) return *known;
  if (groups_.size() >= kSweepAt && (groups_.size() & (groups_.size() - 1)) == 0) sweep_groups();
  Group& group = insert(groups_, {id, 0});
  group.used = true;
  return group;
}

// Reports what is due, so that the peer can forget too, and drops groups with nothing to remember.
void Matcher::sweep_groups() {
  std::vector<MessageKey> silent;
  groups_.for_each([&](Group& group) {
    if (group.unreported > 0) report(group);
    if (group.says_nothing()) silent.push_back(group.key);
  });
  for (const MessageKey& key : silent) groups_.erase(*groups_.find(key));
}

bool Matcher::within_quota(const Group& group, std::size_t bytes) const {
  return group.unconsumed < kEagerQuotaMessages &&
         group.unconsumed_bytes + bytes <= kEagerQuotaBytes;
}

// An eager message of this group has matched a receive.
void Matcher::consumed(std::uint64_t id, std::size_t bytes) {
  if (lost()) return;
  Group& group = group_of(id);
  ++group.unreported;
  group.unreported_bytes += static_cast<std::uint32_t>(bytes);
  if (group.peer_blocked || group.unreported >= kEagerQuotaMessages / 2 ||
      group.unreported_bytes >= kEagerQuotaBytes / 2) {
    report(group);
  }
}

void Matcher::report(Group& group) {
  link_->control(EagerConsumed{group.key.group, group.unreported, group.unreported_bytes});
  group.unreported = group.unreported_bytes = 0;
}

// Quota has come back: what fits goes eagerly, oldest first. Once nothing of the group is kept, the
// peer may stop wanting everything.
void Matcher::release_kept(std::uint64_t id) {
  bool kept = false;
  for (SendRequest& request : sends_) {
    if (request.key.group == id && request.stage.is(SendStage::kKept)) {
      Outgoing* out = outgoing_.find(request.key);
      Group& group = group_of(id);
      if (out->offered) {
        // Its want will come. Sent eagerly it could overtake its offer, which nobody would miss.
      } else if (request.bytes > link_->eager_limit()) {
        if (group.offers < kEagerQuotaMessages) offer(*out, group);
      } else if (within_quota(group, request.bytes)) {
        outgoing_.erase(*out);
        --sends_listed_;
        start_eager(request, group);
      } else {
        kept = true;
      }
    }
  }
  if (kept) return;
  group_of(id).blocked = false;
  link_->control(Blocked{id, false});
}

// May one more eager message wait here? Exact: the sender counts all that it has not been told of.
bool Matcher::may_keep(std::uint64_t id, std::size_t bytes) {
  const Group& group = group_of(id);
  if (group.kept + group.unreported >= kEagerQuotaMessages ||
      group.kept_bytes + group.unreported_bytes + bytes > kEagerQuotaBytes) {
    return end_peer("small messages of one group");
  }
  if (unmatched_ >= kMaxUnmatched || unmatched_bytes_ + bytes > kMaxUnmatchedBytes) {
    return end_peer("offers and small messages");
  }
  return true;
}

void Matcher::keep_data(Incoming& in, std::span<const std::byte> data) {
  drop_kept_offer(in);
  in.offered = false;
  in.has_data = true;
  in.bytes = data.size();
  in.data = nullptr;
  if (!data.empty()) {
    in.data = host_.buffers.take(data.size());
    std::memcpy(in.data, data.data(), data.size());
  }
  ++unmatched_;
  unmatched_bytes_ += data.size();
  Group& group = group_of(in.key.group);
  ++group.kept;
  group.kept_bytes += static_cast<std::uint32_t>(data.size());
}

// The receive has come; the data are the caller's now.
void Matcher::take_data(Incoming& in) {
  TACO_ASSERT(in.has_data && unmatched_ > 0 && unmatched_bytes_ >= in.bytes);
  --unmatched_;
  unmatched_bytes_ -= in.bytes;
  if (Group* group = groups_.find({in.key.group, 0})) {  // none after a loss
    TACO_ASSERT(group->kept > 0 && group->kept_bytes >= in.bytes);
    --group->kept;
    group->kept_bytes -= static_cast<std::uint32_t>(in.bytes);
  }
  in.has_data = false;
  in.data = nullptr;
}

bool Matcher::may_keep_offer(std::uint64_t id) {
  Group& group = group_of(id);
  if (group.kept_offers >= kEagerQuotaMessages) return end_peer("offers of one group");
  ++group.kept_offers;
  return true;
}

// The offer waits here no longer: its receive has come, or it was taken back.
void Matcher::drop_kept_offer(Incoming& in) {
  if (!in.offered || in.receive != nullptr) return;
  TACO_ASSERT(unmatched_ > 0);
  --unmatched_;
  if (!in.counted) return;
  in.counted = false;
  if (Group* group = groups_.find({in.key.group, 0})) {
    TACO_ASSERT(group->kept_offers > 0);
    --group->kept_offers;
  }
}

void Matcher::forget_overtaken(Incoming& in, std::uint32_t count) {
  TACO_ASSERT(in.overtaken >= count && overtaken_ >= count);
  in.overtaken -= count;
  overtaken_ -= count;
}

// Nobody will ever receive it.
void Matcher::drop_unmatched(Incoming& in) {
  forget_overtaken(in, in.overtaken);
  void_solicitation(in);
  drop_kept_offer(in);
  if (in.has_data) {
    std::byte* data = in.data;
    const std::size_t bytes = in.bytes;
    take_data(in);
    if (data != nullptr) host_.buffers.give(data, bytes);
    consumed(in.key.group, bytes);
  }
  incoming_.erase(in);
}

// The peer may be in the group still, so it gets its quota back; requests that are open after all
// stay as they are.
void Matcher::forget_group(std::uint64_t id) {
  std::vector<MessageKey> keys;
  if (incoming_.size() > open_receives_) {
    incoming_.for_each([&](const Incoming& in) {
      if (in.key.group == id && in.receive == nullptr) keys.push_back(in.key);
    });
  }
  for (const MessageKey& key : keys) drop_unmatched(*incoming_.find(key));
  keys.clear();
  if (unserved() > 0) {
    outgoing_.for_each([&](const Outgoing& out) {
      if (out.key.group == id && out.send == nullptr) keys.push_back(out.key);
    });
  }
  for (const MessageKey& key : keys) outgoing_.erase(*outgoing_.find(key));
  Group* group = groups_.find({id, 0});
  if (group == nullptr) return;
  if (group->unreported > 0) report(*group);
  if (group->peer_blocked) --groups_blocked_;
  groups_.erase(*group);
  check_counts();
}

// Every count again from what it counts. Only where a walk over everything is not felt.
void Matcher::check_counts() const {
  if constexpr (kAssertions) {
    std::size_t sends = 0, receives = 0, unmatched = 0, bytes = 0, overtaken = 0, blocked = 0;
    outgoing_.for_each([&](const Outgoing& out) { sends += out.send != nullptr; });
    incoming_.for_each([&](const Incoming& in) {
      receives += in.receive != nullptr;
      unmatched += in.has_data || (in.offered && in.receive == nullptr);
      bytes += in.has_data ? in.bytes : 0;
      overtaken += in.overtaken;
    });
    groups_.for_each([&](const Group& group) { blocked += group.peer_blocked; });
    TACO_ASSERT(sends == sends_listed_ && sends <= sends_.size());
    TACO_ASSERT(receives == open_receives_);
    TACO_ASSERT(unmatched == unmatched_ && bytes == unmatched_bytes_);
    TACO_ASSERT(overtaken == overtaken_ && blocked == groups_blocked_);
  }
}

// May one more want or solicitation wait for its send?
bool Matcher::may_keep_unserved() {
  return unserved() < kMaxReceives + kMaxUnmatched || end_peer("wants");
}

bool Matcher::end_peer(const std::string& excess) {
  link_->break_off("it goes beyond the quotas that every peer keeps to (" + excess +
                   "); its memory is damaged, or it is not what it says");
  return false;
}

}  // namespace taco::harp
