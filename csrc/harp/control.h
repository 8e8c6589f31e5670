// Messages by which the Matchers of two peers tell each other about single requests and groups,
// besides wants and offers: each has a type of its own. Links carry them without interpreting them,
// as the same four fields whatever the kind (docs/wire.md).
#pragma once

#include <cstdint>
#include <optional>
#include <variant>

#include "harp/transport.h"

namespace taco::harp {

// The receive has ended: stop sending.
struct CancelReceive {
  MessageKey key;
  SlotId slot;
};
// The send that was matched with this receive has ended; the receive fails with kAborted.
struct CancelSend {
  MessageKey key;
  SlotId slot;
};
// The send that was offered under this key has ended before it was wanted.
struct CancelOffer {
  MessageKey key;
};
// An eager message matched this receive first, or a mismatch ended it: forget the want.
struct VoidWant {
  MessageKey key;
  SlotId slot;
};
// Offer the message of this key, now or when it is sent.
struct Solicit {
  MessageKey key;
};
// Says that the message had been sent already when it was solicited.
struct VoidSolicit {
  MessageKey key;
};
// Reports how many eager messages, and bytes, of the group have matched receives since the last
// report.
struct EagerConsumed {
  std::uint64_t group = 0;
  std::uint32_t messages = 0;
  std::uint32_t bytes = 0;
};
// Out of eager quota: want every receive of the group (true), or no longer.
struct Blocked {
  std::uint64_t group = 0;
  bool blocked = false;
};
// The send and the receive of this key differ. `signature` is the reporter's; what fails at the
// addressee is its receive, or its send.
struct MismatchAtReceive {
  MessageKey key;
  SlotId slot;
  std::uint64_t signature = 0;
};
struct MismatchAtSend {
  MessageKey key;
  std::uint64_t signature = 0;
};

using Control = std::variant<CancelReceive, CancelSend, CancelOffer, VoidWant, Solicit, VoidSolicit,
                             EagerConsumed, Blocked, MismatchAtReceive, MismatchAtSend>;

// A Control on its way.
struct ControlFields {
  enum Kind : std::uint8_t {
    kCancelReceive,  // key, slot
    kCancelSend,     // key, slot; kNoSlot: of an offer
    kVoidWant,       // key, slot
    kSolicit,        // key; value 1: no longer
    kEagerConsumed,  // the key's group; its tag is the messages, value the bytes
    kBlocked,        // the key's group; its tag 0: no longer
    kMismatch,       // key, slot, the signature in value; kNoSlot: at the send
  };
  static constexpr SlotId kNoSlot{UINT32_MAX, 0};

  MessageKey key;
  SlotId slot;
  std::uint64_t value = 0;
  Kind kind = kCancelReceive;

  bool operator==(const ControlFields&) const = default;
};

ControlFields fields_of(const Control& control);
// Nothing for an unknown kind.
std::optional<Control> control_of(const ControlFields& fields);

}  // namespace taco::harp
