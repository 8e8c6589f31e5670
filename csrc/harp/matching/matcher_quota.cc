// How much small data may lie unmatched at a receiver: a quota per peer and group, counted by the
// sender, reported lazily by the receiver (half a quota at a time). A sender out of quota says so
// and keeps its sends; the receiver then wants each posted receive of that group by name.
#include "harp/matching/matcher.h"

namespace taco::harp {
namespace {

// More groups than this at one peer: forget those that say nothing.
constexpr std::size_t kSweepAt = 64;

}  // namespace

Matcher::Group& Matcher::group_of(std::uint64_t id) {
  if (Group* known = groups_.find({id, 0})) return *known;
  if (groups_.size() >= kSweepAt && (groups_.size() & (groups_.size() - 1)) == 0) sweep_groups();
  Group& group = groups_.insert({id, 0});
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

// An eager message of this group has met its receive.
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
  link_->control(Control::kEagerConsumed, {group.key.group, group.unreported}, {},
                 group.unreported_bytes);
  group.unreported = group.unreported_bytes = 0;
}

// Quota has come back: what fits goes eagerly, oldest first. Once nothing of the group is kept, the
// peer may stop wanting everything.
void Matcher::release_kept(std::uint64_t id) {
  bool kept = false;
  for (SendRequest* request = sends_; request != nullptr;) {
    SendRequest* next = request->next;
    if (request->key.group == id && request->slot == kKept) {
      Outgoing* out = outgoing_.find(request->key);
      Group& group = group_of(id);
      if (request->bytes > link_->eager_limit()) {
        if (!out->offered && group.offers < kEagerQuotaMessages) offer(*out, group);
      } else if (within_quota(group, request->bytes)) {
        drop_offer(*out);
        outgoing_.erase(*out);
        start_eager(*request, group);
      } else {
        kept = true;
      }
    }
    request = next;
  }
  if (kept) return;
  group_of(id).blocked = false;
  link_->control(Control::kBlocked, {id, 0}, {}, 0);
}

}  // namespace taco::harp
