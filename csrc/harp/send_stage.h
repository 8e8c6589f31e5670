// Where a send is between its owner's send_st and the call of its completion. The Matcher moves it
// on and the completion queue ends it; everybody else only looks.
//
//   stage      what it means                                           leads to
//   kIdle      its owner's: never sent, or completed                   kKept, kFinished
//   kKept      in the Matcher, until it is wanted or quota comes back  kEager, kBulk, kFinished
//   kEager     the link has the message, and soon gives it back        kFinished
//   kBulk      the link moves it into the receive that wanted it       kFinished
//   kFinished  its completion is queued                                kIdle
//
// From kIdle straight to kFinished goes a send to a peer that is no more.
#pragma once

#include <cstdint>

#include "base/machine.h"

namespace taco::harp {

enum class SendStage : std::uint8_t { kIdle, kKept, kEager, kBulk, kFinished };

constexpr bool leads_to(SendStage from, SendStage to) {
  switch (from) {
    case SendStage::kIdle:
      return to == SendStage::kKept || to == SendStage::kFinished;
    case SendStage::kKept:
      return to == SendStage::kEager || to == SendStage::kBulk || to == SendStage::kFinished;
    case SendStage::kEager:
    case SendStage::kBulk:
      return to == SendStage::kFinished;
    case SendStage::kFinished:
      return to == SendStage::kIdle;
  }
  return false;
}

// With the Matcher or the link, who may still end it either way.
constexpr bool is_open(SendStage stage) {
  return stage != SendStage::kIdle && stage != SendStage::kFinished;
}
constexpr bool is_with_link(SendStage stage) {
  return stage == SendStage::kEager || stage == SendStage::kBulk;
}

}  // namespace taco::harp
