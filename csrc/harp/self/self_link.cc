#include "harp/self/self_link.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace taco::harp {

void SelfLink::eager(SendRequest& request) { asked_.push_back(Eager{&request}); }

void SelfLink::want(RecvRequest& request) { asked_.push_back(want_of(request)); }

void SelfLink::offer(const SendRequest& request) { asked_.push_back(offer_of(request)); }

void SelfLink::control(const Control& control) { asked_.push_back(control); }

void SelfLink::notice(std::span<const std::byte> bytes) {
  asked_.push_back(Notice{{bytes.begin(), bytes.end()}});
}

void SelfLink::bulk(SendRequest& request, SlotId slot, bool) {
  transfers_.push_back({&request, slot});
}

void SelfLink::withdraw(SendRequest& request) {
  for (std::vector<Ask>* asks : {&asked_, &current_}) {
    for (Ask& ask : *asks) {
      if (auto* eager = std::get_if<Eager>(&ask); eager != nullptr && eager->request == &request)
        eager->request = nullptr;
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
  TACO_ASSERT(next_ < transfers_.size());
  transfers_.erase(found);
}

void SelfLink::break_off(const std::string& how) {
  events_.on_lost(Status(how, PeerLoss{-1, "this process itself", 0}));
}

bool SelfLink::progress() {
  if (!busy()) return false;
  std::swap(asked_, current_);
  for (const Ask& ask : current_) std::visit([this](const auto& it) { carry_out(it); }, ask);
  current_.clear();
  if (!transfers_.empty()) move_piece();
  return true;
}

// The callee that hears of the message may withdraw its send from inside.
void SelfLink::carry_out(const Eager& eager) {
  if (eager.request == nullptr) return;
  const SendRequest& request = *eager.request;
  events_.on_eager(request.key, request.signature,
                   {static_cast<const std::byte*>(request.data), request.bytes});
  if (eager.request != nullptr) events_.send_finished(*eager.request, Status());
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
    return events_.receive_finished(slot, too_long_for_receive());
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
