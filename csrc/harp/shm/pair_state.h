// The states of a PairLink: how far the connection is, whether and how the peer has ended, the two
// goodbyes, and where each large send is. Small machines beside each other, since each may move
// while the others stand.
//
//   PairConnection what it means                                       leads to
//   kIdle          nobody has used the link                            kConnecting, kLost
//   kConnecting    the peer's socket has not taken our greeting yet    kGreeted, kUp, kLost
//   kGreeted       our greeting is on its way                          kUp, kLost
//   kUp            we map the peer's memory                            kLost
//   kLost          over, and the Matcher knows                         -
//
//   PairVerdict    why the link will be lost, once all has been read   leads to
//   kNone          it will not                                         any other
//   kMissed        the peer was gone before we were connected          kBroken
//   kEnded         its process is gone, or we cannot speak with it     kBroken
//   kBroken        it broke the rules: nothing more of it is read      -
//
//   OwnGoodbye     kUnsaid -> kSaid -> kSeen (the peer has read it)
//   PeerGoodbye    kUnsaid -> kRead -> kTold (to the Matcher, after all that was said before it)
//
//   PairSendStage  what it means                                       leads to
//   kFree          not in use                                          kQueued, kPulled
//   kQueued        some of it is still to be staged                    kCopied, kFree
//   kPulled        the peer may read it from the caller's memory       kQueued, kFree
//   kCopied        the caller has it back; blocks are still being read kFree
#pragma once

#include <cstdint>

#include "base/machine.h"

namespace taco::harp {

enum class PairConnection : std::uint8_t { kIdle, kConnecting, kGreeted, kUp, kLost };
enum class PairVerdict : std::uint8_t { kNone, kMissed, kEnded, kBroken };
enum class OwnGoodbye : std::uint8_t { kUnsaid, kSaid, kSeen };
enum class PeerGoodbye : std::uint8_t { kUnsaid, kRead, kTold };
enum class PairSendStage : std::uint8_t { kFree, kQueued, kPulled, kCopied };

constexpr bool leads_to(PairConnection from, PairConnection to) {
  if (from == PairConnection::kIdle)
    return to == PairConnection::kConnecting || to == PairConnection::kLost;
  return to > from;
}
constexpr bool leads_to(PairVerdict from, PairVerdict to) {
  return from != to && (from == PairVerdict::kNone || to == PairVerdict::kBroken);
}
constexpr bool leads_to(OwnGoodbye from, OwnGoodbye to) {
  return static_cast<int>(to) == static_cast<int>(from) + 1;
}
constexpr bool leads_to(PeerGoodbye from, PeerGoodbye to) {
  return static_cast<int>(to) == static_cast<int>(from) + 1;
}
constexpr bool leads_to(PairSendStage from, PairSendStage to) {
  switch (from) {
    case PairSendStage::kFree:
      return to == PairSendStage::kQueued || to == PairSendStage::kPulled;
    case PairSendStage::kQueued:
      return to == PairSendStage::kCopied || to == PairSendStage::kFree;
    case PairSendStage::kPulled:
      return to == PairSendStage::kQueued || to == PairSendStage::kFree;
    case PairSendStage::kCopied:
      return to == PairSendStage::kFree;
  }
  return false;
}

}  // namespace taco::harp
