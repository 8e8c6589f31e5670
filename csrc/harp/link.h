// How one peer is reached: a Link moves what the Matcher has decided to move. Three exist: Session
// (packets, any Nic), ShmLink (rings and pulls inside one host) and SelfLink (within a process).
// All deliver every control record exactly once, in order, or report the peer lost.
//
// Division of work: the Matcher (matcher.h) pairs sends with receives and knows no wire. The Link
// carries keys without interpreting them. Owner thread only; the _st suffix is implied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "harp/control.h"
#include "harp/transport.h"

namespace taco::harp {

// A peer's words about its receive, and about its send.
struct Want {
  MessageKey key;
  std::uint64_t signature = 0;
  std::uint64_t max_bytes = 0;
  SlotId slot;
};

struct Offer {
  MessageKey key;
  std::uint64_t signature = 0;
  std::uint64_t bytes = 0;
};

inline Want want_of(const RecvRequest& request) {
  return {request.key, request.signature, request.max_bytes, request.slot};
}
inline Offer offer_of(const SendRequest& request) {
  return {request.key, request.signature, request.bytes};
}

// A link has found that the message of this length does not fit the receive of its slot: the
// failure to pass to LinkEvents::receive_finished.
inline Status too_long_for_receive() {
  return Status(Code::kMismatch, "the message is longer than its receive");
}

// Matcher -> Link. Nothing here calls back into the Matcher before returning.
class Link {
 public:
  virtual ~Link() = default;

  // Largest message that may travel eagerly on this link.
  virtual std::size_t eager_limit() const = 0;

  // The message is wholly taken or referenced; Matcher::send_finished follows when it may be
  // reused.
  virtual void eager(SendRequest& request) = 0;
  // A matched large message: deliver it to the peer's `slot`, then Matcher::send_finished.
  // `offered`: it was, before it was wanted. A link whose messages may arrive before records that
  // were written earlier tells the peer so (LinkEvents::on_offered).
  virtual void bulk(SendRequest& request, SlotId slot, bool offered) = 0;
  // Ends a send under way. After return the link touches neither request nor memory.
  virtual void withdraw(SendRequest& request) = 0;

  // Asks the peer for the message of this receive, which is open until forget() of its slot or
  // LinkEvents::receive_finished.
  virtual void want(RecvRequest& request) = 0;
  // The receive of this slot has ended or is cancelled: drop what the link keeps for it.
  virtual void forget(SlotId slot) = 0;
  // Lets the peer know of a send that waits for its want.
  virtual void offer(const SendRequest& request) = 0;
  virtual void control(const Control& control) = 0;
  virtual void notice(std::span<const std::byte> bytes) = 0;

  // A request has become open, where there was none: LinkEvents::expecting() is true from now on.
  virtual void on_expecting() {}
  virtual void release(Staging& staging) = 0;
  // True while something is unacknowledged or under way (the engine lingers for it when leaving).
  virtual bool busy() const = 0;
  // The peer broke the rules, `how` says which: nothing more of it is taken. LinkEvents::on_lost
  // follows, before this returns or on a later turn.
  virtual void break_off(const std::string& how) = 0;
  // Says goodbye; busy() turns false when the peer has acknowledged it.
  virtual void leave() = 0;
};

// Link -> Matcher. Implemented by Matcher, one per peer; completions of requests are queued and run
// on the loop's next turn, never inside these calls.
class LinkEvents {
 public:
  virtual ~LinkEvents() = default;

  // An eager message. `data` is valid during the call only.
  virtual void on_eager(const MessageKey& key, std::uint64_t signature,
                        std::span<const std::byte> data) = 0;
  virtual void on_want(const Want& want) = 0;
  virtual void on_offer(const Offer& offer) = 0;
  virtual void on_control(const Control& control) = 0;
  virtual void on_notice(std::span<const std::byte> bytes) = 0;

  // The receive a slot names, or null when it has ended. The link writes through its sink and sets
  // request.bytes; a message longer than max_bytes is refused with receive_finished(kMismatch).
  virtual RecvRequest* receive_of(SlotId slot) = 0;
  virtual void receive_finished(SlotId slot, const Status& status) = 0;
  virtual void send_finished(SendRequest& request, const Status& status) = 0;
  // The message that fills this receive was offered too, and the offer may have been overtaken by
  // it. Just before receive_finished() tells of its success.
  virtual void on_offered(SlotId) {}

  virtual void on_lost(const Status& why) = 0;  // fails every open request with this peer
  virtual void on_left() = 0;                   // the peer said goodbye
  // Is a request open with this peer, so that its silence matters?
  virtual bool expecting() const { return false; }
};

}  // namespace taco::harp
