// The link's side of the Matcher: what the peer sent, wants, offers, ends. The observer is called
// last everywhere, since it may post and cancel requests from inside.
#include <algorithm>
#include <variant>

#include "base/assert.h"
#include "harp/matching/matcher.h"

namespace taco::harp {
namespace {

Status found_by_peer() {
  return Status(Code::kMismatch, "the peer found that send and receive differ");
}

}  // namespace

void Matcher::tell_unmatched(const MessageKey& key, std::uint64_t signature, bool is_send) {
  if (host_.observer != nullptr) host_.observer->on_unmatched_st(peer_, key, signature, is_send);
}

void Matcher::on_eager(const MessageKey& key, std::uint64_t signature,
                       std::span<const std::byte> data) {
  if (lost()) return;
  Incoming* in = incoming_.find(key);
  if (in != nullptr && in->receive != nullptr) {
    void_solicitation(*in);
    deliver(*in, signature, data);
    return consumed(key.group, data.size());
  }
  if (in != nullptr && in->has_data) return;  // a key used twice: the first message stands
  if (in == nullptr && host_.over.contains(key.group)) {
    consumed(key.group, data.size());
    return tell_unmatched(key, signature, true);
  }
  if (!may_keep(key.group, data.size())) return;
  if (in == nullptr) in = &insert(incoming_, key);
  void_solicitation(*in);
  in->signature = signature;
  keep_data(*in, data);
  tell_unmatched(key, signature, true);
}

void Matcher::on_want(const Want& want) {
  if (lost()) return;
  Outgoing* early = outgoing_.find(want.key);
  if (early == nullptr) {
    if (host_.over.contains(want.key.group)) {
      return tell_unmatched(want.key, want.signature, false);
    }
    if (!may_keep_unserved()) return;
  }
  Outgoing& out = early != nullptr ? *early : insert(outgoing_, want.key);
  if (out.send != nullptr && out.send->stage.is(SendStage::kBulk)) return;  // a key used twice
  out.wanted = true;
  out.signature = want.signature;
  out.max_bytes = want.max_bytes;
  out.slot = want.slot;
  if (out.send == nullptr) return tell_unmatched(want.key, want.signature, false);
  if (!refuse_want(out)) start_bulk(out);
}

void Matcher::on_offer(const Offer& offer) {
  Incoming* early = incoming_.find(offer.key);
  if (early != nullptr && early->overtaken > 0) {  // offers come in their order
    forget_overtaken(*early, 1);
    if (early->empty()) incoming_.erase(*early);
    return;
  }
  if (lost() || (early != nullptr && (early->has_data || early->offered))) return;
  if (early == nullptr && host_.over.contains(offer.key.group)) {
    return tell_unmatched(offer.key, offer.signature, true);
  }
  // An offer that a receive waits for is taken at once, and one we asked for costs no quota.
  const bool awaited = early != nullptr && early->receive != nullptr;
  const bool counted = early == nullptr;
  if (!awaited && unmatched_ >= kMaxUnmatched && !end_peer("offers and small messages")) return;
  if (counted && !may_keep_offer(offer.key.group)) return;
  Incoming& in = early != nullptr ? *early : insert(incoming_, offer.key);
  in.solicited = false;
  in.offered = true;
  in.counted = counted;
  in.signature = offer.signature;
  in.bytes = offer.bytes;
  if (!awaited) {
    ++unmatched_;
    return tell_unmatched(offer.key, offer.signature, true);
  }
  if (in.signature != in.receive->signature) return mismatch_at_receive(in, in.signature);
  if (in.bytes > in.receive->max_bytes) return too_long_at_receive(in, in.bytes);
  if (!in.wanted) want(in);
}

void Matcher::on_control(const Control& control) {
  if (lost()) return;
  std::visit([this](const auto& it) { hear(it); }, control);
}

void Matcher::hear(const CancelReceive& it) {
  Outgoing* out = outgoing_.find(it.key);
  if (out == nullptr || !out->wanted || !(out->slot == it.slot)) return;
  if (out->send == nullptr) {
    out->wanted = false;
    if (out->empty()) outgoing_.erase(*out);
    return;
  }
  SendRequest& request = *out->send;
  if (request.stage.is(SendStage::kBulk)) link_->withdraw(request);
  finish_send(request, Status(Code::kAborted, "the receiver ended its receive"));
}

void Matcher::hear(const CancelSend& it) {
  if (receive_of(it.slot) == nullptr) return;
  link_->forget(it.slot);
  receive_finished(it.slot, Status(Code::kAborted, "the sender ended its send"));
}

void Matcher::hear(const CancelOffer& it) {
  Incoming* in = incoming_.find(it.key);
  if (in == nullptr || !in->offered) return;
  drop_kept_offer(*in);
  in->offered = false;
  if (in->empty()) incoming_.erase(*in);
}

void Matcher::hear(const VoidWant& it) {
  Outgoing* out = outgoing_.find(it.key);
  if (out == nullptr || !(out->slot == it.slot)) return;
  if (out->send != nullptr && out->send->stage.is(SendStage::kBulk)) {
    // Crossed with our bulk: the receive was satisfied otherwise and takes nothing more.
    link_->withdraw(*out->send);
    return finish_send(*out->send,
                       Status(Code::kAborted, "the receiver took its message otherwise"));
  }
  out->wanted = false;
  if (out->empty()) outgoing_.erase(*out);
}

void Matcher::hear(const Solicit& it) {
  Outgoing* out = outgoing_.find(it.key);
  if (out == nullptr) {
    if (!host_.over.contains(it.key.group) && may_keep_unserved())
      insert(outgoing_, it.key).solicited = true;
  } else if (out->send == nullptr) {
    out->solicited = true;
  } else if (out->send->stage.is(SendStage::kKept) && !out->offered) {
    offer(*out, group_of(it.key.group));
  }
}

void Matcher::hear(const VoidSolicit& it) {
  Outgoing* out = outgoing_.find(it.key);
  if (out == nullptr || !out->solicited) return;
  out->solicited = false;
  if (out->empty()) outgoing_.erase(*out);
}

void Matcher::hear(const EagerConsumed& it) {
  Group* group = groups_.find({it.group, 0});
  if (group == nullptr) return;
  group->unconsumed -= std::min(group->unconsumed, it.messages);
  group->unconsumed_bytes -= std::min(group->unconsumed_bytes, it.bytes);
  if (group->blocked) release_kept(it.group);
}

void Matcher::hear(const Blocked& it) {
  const Group* known = groups_.find({it.group, 0});
  if (it.blocked == (known != nullptr && known->peer_blocked)) return;
  if (it.blocked && host_.over.contains(it.group)) return;  // no receive of it will be wanted
  if (it.blocked && groups_blocked_ >= kMaxUnmatched && !end_peer("groups without room")) return;
  groups_blocked_ += it.blocked ? 1 : -1;
  group_of(it.group).peer_blocked = it.blocked;
  if (!it.blocked) return;
  incoming_.for_each([&](Incoming& in) {
    if (in.key.group == it.group && in.receive != nullptr && !in.wanted) want(in);
  });
}

void Matcher::hear(const MismatchAtReceive& it) {
  const RecvRequest* request = receive_of(it.slot);
  if (request == nullptr) return tell_unmatched(it.key, it.signature, true);
  const std::uint64_t ours = request->signature;
  link_->forget(it.slot);
  receive_finished(it.slot, found_by_peer());
  differed(it.key, ours, it.signature);
}

void Matcher::hear(const MismatchAtSend& it) {
  Outgoing* out = outgoing_.find(it.key);
  if (out == nullptr || out->send == nullptr) return tell_unmatched(it.key, it.signature, false);
  SendRequest& request = *out->send;
  const std::uint64_t ours = request.signature;
  if (request.stage.is(SendStage::kBulk)) link_->withdraw(request);
  finish_send(request, found_by_peer());
  differed(it.key, ours, it.signature);
}

// Tells the observer, unless only the lengths differed.
void Matcher::differed(const MessageKey& key, std::uint64_t ours, std::uint64_t theirs) {
  if (ours != theirs && host_.observer != nullptr) {
    host_.observer->on_mismatch_st(peer_, key, ours, theirs);
  }
}

void Matcher::on_notice(std::span<const std::byte> bytes) {
  if (host_.observer != nullptr) host_.observer->on_notice_st(peer_, bytes);
}

RecvRequest* Matcher::receive_of(SlotId slot) {
  if (slot.index >= slots_.size() || slots_[slot.index].generation != slot.generation) {
    return nullptr;
  }
  return slots_[slot.index].receive;
}

void Matcher::receive_finished(SlotId slot, const Status& status) {
  RecvRequest* request = receive_of(slot);
  if (request == nullptr) return;
  Incoming* in = incoming_.find(request->key);
  if (status.code() == Code::kMismatch) link_->control(CancelReceive{in->key, slot});
  finish_receive(*in, status);
}

void Matcher::on_offered(SlotId slot) {
  const RecvRequest* request = receive_of(slot);
  if (request == nullptr) return;
  Incoming& in = *incoming_.find(request->key);
  if (in.offered) return;
  if (overtaken_ >= kMaxUnmatched && !end_peer("messages whose offers never come")) return;
  ++in.overtaken;
  ++overtaken_;
}

void Matcher::send_finished(SendRequest& request, const Status& status) {
  finish_send(request, status);
}

// Forgets messages that the peer was to send us and will not.
void Matcher::forget_expected() {
  std::vector<MessageKey> keys;
  incoming_.for_each([&](const Incoming& in) {
    if (in.solicited || in.overtaken > 0) keys.push_back(in.key);
  });
  for (const MessageKey& key : keys) {
    Incoming& in = *incoming_.find(key);
    in.solicited = false;
    forget_overtaken(in, in.overtaken);
    if (in.empty()) incoming_.erase(in);
  }
}

void Matcher::on_lost(const Status& why) {
  if (lost()) return;
  lost_ = why;
  while (SendRequest* send = sends_.front()) {
    if (is_with_link(send->stage.state())) link_->withdraw(*send);
    finish_send(*send, why);
  }
  std::vector<RecvRequest*> open;
  forget_expected();
  incoming_.for_each([&](Incoming& in) {
    if (in.receive != nullptr) open.push_back(in.receive);
  });
  for (RecvRequest* request : open) {
    Incoming* in = incoming_.find(request->key);
    if (in->wanted) link_->forget(request->slot);
    finish_receive(*in, why);
  }
  outgoing_.clear();
  sends_listed_ = 0;
  groups_.clear();
  groups_blocked_ = 0;
  check_counts();
  if (!left_) host_.completions.push_peer_end(peer_, why);
}

bool Matcher::is_waiting() const {
  bool asked = false;
  incoming_.for_each([&](const Incoming& in) { asked |= in.solicited; });
  return asked || expecting();
}

// The peer's wants name slots that others may have by now, its offers are of sends that are no
// more, and neither side owes the other any report.
void Matcher::begin_anew(Link& link) {
  TACO_ASSERT(!is_waiting() && sends_listed_ == 0);
  link_ = &link;
  forget_expected();
  std::vector<MessageKey> offered;
  incoming_.for_each([&](const Incoming& in) {
    if (in.offered) offered.push_back(in.key);
  });
  for (const MessageKey& key : offered) drop_unmatched(*incoming_.find(key));
  outgoing_.clear();
  groups_blocked_ = 0;
  groups_.for_each([](Group& group) {
    group = {.key = group.key, .used = true, .kept = group.kept, .kept_bytes = group.kept_bytes};
  });
  check_counts();
}

void Matcher::on_left() {
  if (lost()) return;
  left_ = true;
  host_.completions.push_peer_end(peer_, Status());
  on_lost(Status(
      "it has left (it destroyed its process group or ended) and is still needed here; look in its "
      "log for the reason",
      PeerLoss{.has_left = true}));
}

}  // namespace taco::harp
