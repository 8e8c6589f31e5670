// The user's side of the Matcher: sends, receives, cancels. matcher_events.cc hears the link,
// matcher_quota.cc counts what may lie unmatched.
#include "harp/matching/matcher.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace taco::harp {
Matcher::~Matcher() {
  if (is_noted_) std::erase(host_.large, this);
  if (is_counted_) --host_.expecting;
  incoming_.for_each([&](Incoming& in) { drop_data(in); });
}

void Matcher::send(SendRequest& request) {
  request.peer = peer_;
  request.transfer = nullptr;
  request.stage.go(SendStage::kKept);
  sends_.push_back(request);
  on_open_changed();
  if (lost()) return finish_send(request, lost_);

  Outgoing* early = outgoing_.find(request.key);
  if (early == nullptr && request.bytes <= link_->eager_limit()) {
    Group& group = group_of(request.key.group);
    if (!group.blocked && within_quota(group, request.bytes)) return start_eager(request, group);
  }
  Outgoing& out = early != nullptr ? *early : insert(outgoing_, request.key);
  TACO_ASSERT(out.send == nullptr, "two sends under one key");
  ++sends_listed_;
  out.send = &request;
  if (out.wanted) {
    if (!refuse_want(out)) start_bulk(out);
    return;
  }
  keep(request, out, group_of(request.key.group));
}

// No want yet, and not eager: the send stays here and lets the peer know of it.
void Matcher::keep(SendRequest& request, Outgoing& out, Group& group) {
  if (out.solicited) {
    out.solicited = false;
    return offer(out, group);
  }
  if (request.bytes > link_->eager_limit()) {
    // Beyond the quota a large send waits unannounced: its receive wants it anyway.
    if (group.offers < kEagerQuotaMessages) offer(out, group);
  } else if (!group.blocked) {
    group.blocked = true;
    link_->control(Blocked{group.key.group, true});
  }
}

void Matcher::offer(Outgoing& out, Group& group) {
  out.offered = out.announced = true;
  ++group.offers;
  link_->offer(*out.send);
}

void Matcher::drop_offer(Outgoing& out) {
  if (!out.offered) return;
  out.offered = false;
  Group& group = group_of(out.key.group);
  if (group.offers > 0) --group.offers;
}

void Matcher::start_eager(SendRequest& request, Group& group) {
  ++group.unconsumed;
  group.unconsumed_bytes += static_cast<std::uint32_t>(request.bytes);
  request.stage.go(SendStage::kEager);
  link_->eager(request);
}

void Matcher::start_bulk(Outgoing& out) {
  drop_offer(out);
  out.send->stage.go(SendStage::kBulk);
  link_->bulk(*out.send, out.slot, out.announced);
}

// A want that the send cannot satisfy. True when it was refused; `out` is gone then.
bool Matcher::refuse_want(Outgoing& out) {
  SendRequest& request = *out.send;
  const bool differs = out.signature != request.signature;
  if (!differs && request.bytes <= out.max_bytes) return false;
  const MessageKey key = out.key;
  const std::uint64_t theirs = out.signature, longest = out.max_bytes;
  link_->control(MismatchAtReceive{key, out.slot, request.signature});
  const std::uint64_t ours = request.signature;
  std::string text = differs ? "send and receive carry different signatures"
                             : "message of " + std::to_string(request.bytes) +
                                   " bytes is longer than the peer's receive of " +
                                   std::to_string(longest);
  finish_send(request, Status(Code::kMismatch, std::move(text)));
  if (differs && host_.observer != nullptr) {
    host_.observer->on_mismatch_st(peer_, key, ours, theirs);
  }
  return true;
}

// Takes the request out of every list here and queues its completion.
void Matcher::finish_send(SendRequest& request, const Status& status) {
  sends_.erase(request);
  on_open_changed();
  if (Outgoing* out = request.stage.is(SendStage::kEager) ? nullptr : outgoing_.find(request.key);
      out != nullptr && out->send == &request) {
    drop_offer(*out);
    // Its receive may have ended before the offer came, which then waits there for nobody.
    if (out->announced && !status.ok() && !lost()) {
      link_->control(CancelOffer{request.key});
    }
    outgoing_.erase(*out);
    --sends_listed_;
  }
  host_.completions.push(request, status);
}

void Matcher::cancel(SendRequest& request, const Status& why) {
  if (!is_open(request.stage.state())) return;  // its completion is already on its way
  if (request.stage.is(SendStage::kEager)) {
    link_->withdraw(request);
  } else if (Outgoing* out = outgoing_.find(request.key); out != nullptr && out->send == &request) {
    if (request.stage.is(SendStage::kBulk)) {
      link_->withdraw(request);
      link_->control(CancelSend{request.key, out->slot});
    }
  }
  finish_send(request, why);
}

void Matcher::recv(RecvRequest& request) {
  request.peer = peer_;
  request.bytes = 0;
  Incoming* early = incoming_.find(request.key);
  Incoming& in = early != nullptr ? *early : insert(incoming_, request.key);
  drop_kept_offer(in);
  TACO_ASSERT(in.receive == nullptr, "two receives under one key");
  in.receive = &request;
  open_slot(request);
  if (open_receives_ > kMaxReceives) {
    return finish_receive(
        in, Status(Code::kResource, "more than " + std::to_string(kMaxReceives) +
                                        " receives from one process are open at a time"));
  }
  if (in.has_data) {
    std::byte* data = in.data;
    const std::size_t bytes = in.bytes;
    take_data(in);
    host_.bytes_copied += bytes;
    consumed(request.key.group, bytes);
    deliver(in, in.signature, {data, bytes});
    if (data != nullptr) host_.buffers.give(data, bytes);
    return;
  }
  if (lost()) return finish_receive(in, lost_);
  if (in.offered) {
    if (in.signature != request.signature) return mismatch_at_receive(in, in.signature);
    if (in.bytes > request.max_bytes) return too_long_at_receive(in, in.bytes);
    want(in);
  } else if (request.max_bytes > link_->eager_limit() || group_of(request.key.group).peer_blocked) {
    want(in);
  }
}

void Matcher::cancel(RecvRequest& request, const Status& why) {
  Incoming* in = incoming_.find(request.key);
  if (in == nullptr || in->receive != &request) return;
  if (in->wanted) {
    link_->forget(request.slot);
    link_->control(CancelReceive{request.key, request.slot});
  }
  finish_receive(*in, why);
}

bool Matcher::has_unmatched(const MessageKey& key) const {
  const Incoming* in = incoming_.find(key);
  return in != nullptr && in->receive == nullptr && (in->has_data || in->offered);
}

void Matcher::solicit(const MessageKey& key) {
  if (has_unmatched(key) || lost()) return;
  Incoming* const early = incoming_.find(key);
  (early != nullptr ? *early : insert(incoming_, key)).solicited = true;
  link_->control(Solicit{key});
}

// The message came eagerly: it was sent before the peer heard that we ask for it. Nothing else
// would ever end the entry that the peer has made for our question.
void Matcher::void_solicitation(Incoming& in) {
  if (!in.solicited) return;
  in.solicited = false;
  link_->control(VoidSolicit{in.key});
}

void Matcher::open_slot(RecvRequest& request) {
  if (free_slot_ == kNone) {
    free_slot_ = static_cast<std::uint32_t>(slots_.size());
    slots_.emplace_back().generation = first_generation_;
    if (slots_.size() > kFewSlots) note_size();
  }
  Slot& slot = slots_[free_slot_];
  request.slot = {free_slot_, slot.generation};
  TACO_ASSERT(slot.receive == nullptr);
  free_slot_ = slot.next_free;
  slot.receive = &request;
  ++open_receives_;
  on_open_changed();
}

void Matcher::close_slot(RecvRequest& request) {
  TACO_ASSERT(receive_of(request.slot) == &request && open_receives_ > 0);
  Slot& slot = slots_[request.slot.index];
  slot.receive = nullptr;
  ++slot.generation;
  slot.next_free = free_slot_;
  free_slot_ = request.slot.index;
  --open_receives_;
  on_open_changed();
}

// The first request that is open, or the last one, makes a difference to others.
void Matcher::on_open_changed() {
  if (expecting() == is_counted_) return;
  is_counted_ = !is_counted_;
  if (!is_counted_) {
    --host_.expecting;
  } else {
    ++host_.expecting;
    link_->on_expecting();
  }
}

void Matcher::note_size() {
  if (std::exchange(is_noted_, true)) return;
  host_.large.push_back(this);
}

bool Matcher::trim() {
  outgoing_.trim();
  incoming_.trim();
  groups_.trim();
  trim_slots();
  is_noted_ = outgoing_.is_large() || incoming_.is_large() || groups_.is_large() ||
              slots_.size() > kFewSlots;
  return !is_noted_;
}

// The peer may yet name a slot that was given back: one that takes its place is of a generation
// that was never used.
void Matcher::trim_slots() {
  std::size_t used = slots_.size();
  while (used > 0 && slots_[used - 1].receive == nullptr) --used;
  if (slots_.size() <= kFewSlots || 4 * used >= slots_.size()) return;
  for (std::size_t i = used; i < slots_.size(); ++i) {
    first_generation_ = std::max(first_generation_, slots_[i].generation);
  }
  slots_.resize(used);
  slots_.shrink_to_fit();
  free_slot_ = kNone;
  for (std::size_t i = used; i-- > 0;) {
    if (slots_[i].receive != nullptr) continue;
    slots_[i].next_free = std::exchange(free_slot_, static_cast<std::uint32_t>(i));
  }
}

std::size_t Matcher::memory_bytes() const {
  return outgoing_.capacity() * sizeof(Outgoing) + incoming_.capacity() * sizeof(Incoming) +
         groups_.capacity() * sizeof(Group) + slots_.capacity() * sizeof(Slot);
}

void Matcher::want(Incoming& in) {
  in.wanted = true;
  link_->want(*in.receive);
}

// An eager message, or a mismatch, came first: the peer may forget our want.
void Matcher::unwant(Incoming& in) {
  if (!in.wanted) return;
  in.wanted = false;
  const SlotId slot = in.receive->slot;
  link_->forget(slot);
  link_->control(VoidWant{in.key, slot});
}

// Ends the receive; `in` is gone after this unless a message still waits under its key.
void Matcher::finish_receive(Incoming& in, const Status& status) {
  RecvRequest& request = *in.receive;
  close_slot(request);
  in.receive = nullptr;
  in.offered = in.wanted = false;
  if (in.empty()) incoming_.erase(in);
  host_.completions.push(request, status);
}

void Matcher::deliver(Incoming& in, std::uint64_t signature, std::span<const std::byte> data) {
  RecvRequest& request = *in.receive;
  if (signature != request.signature) return mismatch_at_receive(in, signature);
  if (data.size() > request.max_bytes) return too_long_at_receive(in, data.size());
  unwant(in);
  if (!data.empty()) request.sink.consume(request.sink, 0, data.data(), data.size());
  request.bytes = data.size();
  finish_receive(in, Status());
}

void Matcher::drop_data(Incoming& in) {
  if (!in.has_data) return;
  if (in.data != nullptr) host_.buffers.give(in.data, in.bytes);
  in.data = nullptr;
  in.has_data = false;
}

void Matcher::mismatch_at_receive(Incoming& in, std::uint64_t theirs) {
  const MessageKey key = in.key;
  const std::uint64_t ours = in.receive->signature;
  unwant(in);
  link_->control(MismatchAtSend{key, ours});
  finish_receive(in, Status(Code::kMismatch, "send and receive carry different signatures"));
  if (host_.observer != nullptr) host_.observer->on_mismatch_st(peer_, key, ours, theirs);
}

void Matcher::too_long_at_receive(Incoming& in, std::uint64_t bytes) {
  const std::uint64_t ours = in.receive->signature;
  const std::size_t most = in.receive->max_bytes;
  unwant(in);
  link_->control(MismatchAtSend{in.key, ours});
  finish_receive(in, Status(Code::kMismatch, "message of " + std::to_string(bytes) +
                                                 " bytes is longer than the receive of " +
                                                 std::to_string(most)));
}

}  // namespace taco::harp
