#include "harp/self/self_link.h"

#include <algorithm>
#include <utility>

namespace taco::harp {

void SelfLink::eager(SendRequest& request) {
  asked_.push_back({.kind = Ask::Kind::kEager, .request = &request});
}

void SelfLink::want(const Want& want) {
  asked_.push_back({.kind = Ask::Kind::kWant,
                    .key = want.key,
                    .slot = want.slot,
                    .signature = want.signature,
                    .value = want.max_bytes});
}

void SelfLink::offer(const Offer& offer) {
  asked_.push_back({.kind = Ask::Kind::kOffer,
                    .key = offer.key,
                    .signature = offer.signature,
                    .value = offer.bytes});
}

void SelfLink::control(Control kind, const MessageKey& key, SlotId slot, std::uint64_t value) {
  asked_.push_back(
      {.kind = Ask::Kind::kControl, .control = kind, .key = key, .slot = slot, .value = value});
}

void SelfLink::notice(std::span<const std::byte> bytes) {
  asked_.push_back({.kind = Ask::Kind::kNotice, .text = {bytes.begin(), bytes.end()}});
}

void SelfLink::bulk(SendRequest& request, SlotId slot, bool) {
  transfers_.push_back({&request, slot});
}

void SelfLink::withdraw(SendRequest& request) {
  for (std::vector<Ask>* asks : {&asked_, &current_}) {
    for (Ask& ask : *asks) {
      if (ask.request == &request) ask.request = nullptr;
    }
  }
  end_transfer(request);
}

void SelfLink::end_transfer(const SendRequest& request) {
  const auto found =
      std::find_if(transfers_.begin(), transfers_.end(),
                   [&](const Transfer& transfer) { return transfer.request == &request; });
  if (found == transfers_.end()) return;
  const auto index = static_cast<std::size_t>(found - transfers_.begin());
  if (index < next_) --next_;
  transfers_.erase(found);
}

void SelfLink::break_off(const std::string& how) {
  events_.on_lost(Status(how, PeerLoss{-1, "this process itself", 0}));
}

bool SelfLink::progress() {
  if (!busy()) return false;
  std::swap(asked_, current_);
  for (Ask& ask : current_) carry_out(ask);
  current_.clear();
  if (!transfers_.empty()) move_piece();
  return true;
}

void SelfLink::carry_out(Ask& ask) {
  switch (ask.kind) {
    case Ask::Kind::kEager:
      return deliver(ask);
    case Ask::Kind::kWant:
      return events_.on_want({ask.key, ask.signature, ask.value, ask.slot});
    case Ask::Kind::kOffer:
      return events_.on_offer({ask.key, ask.signature, ask.value});
    case Ask::Kind::kControl:
      return events_.on_control(ask.control, ask.key, ask.slot, ask.value);
    case Ask::Kind::kNotice:
      return events_.on_notice(ask.text);
  }
}

// Whoever hears of the message may withdraw its send from inside.
void SelfLink::deliver(Ask& ask) {
  if (ask.request == nullptr) return;
  const SendRequest& request = *ask.request;
  events_.on_eager(request.key, request.signature,
                   {static_cast<const std::byte*>(request.data), request.bytes});
  if (ask.request != nullptr) events_.send_finished(*ask.request, Status());
}

// One piece a turn, of each transfer in turn.
void SelfLink::move_piece() {
  if (next_ >= transfers_.size()) next_ = 0;
  Transfer& transfer = transfers_[next_++];
  SendRequest& request = *transfer.request;
  const SlotId slot = transfer.slot;
  RecvRequest* receive = events_.receive_of(slot);
  if (receive == nullptr) return end_transfer(request);  // the word that it ended ends the send
  if (request.bytes > receive->max_bytes) {
    end_transfer(request);
    return events_.receive_finished(
        slot, Status(Code::kMismatch, "the message is longer than its receive"));
  }
  const std::size_t bytes = std::min(kPieceBytes, request.bytes - transfer.done);
  if (bytes > 0) {
    receive->sink.consume(receive->sink, transfer.done,
                          static_cast<const std::byte*>(request.data) + transfer.done, bytes);
  }
  transfer.done += bytes;
  if (transfer.done < request.bytes) return;
  receive->bytes = request.bytes;
  end_transfer(request);
  events_.receive_finished(slot, Status());
  events_.send_finished(request, Status());
}

}  // namespace taco::harp
