#include "harp/control.h"

namespace taco::harp {
namespace {

using Fields = ControlFields;

struct Flatten {
  Fields operator()(const CancelReceive& it) const {
    return {.key = it.key, .slot = it.slot, .kind = Fields::kCancelReceive};
  }
  Fields operator()(const CancelSend& it) const {
    return {.key = it.key, .slot = it.slot, .kind = Fields::kCancelSend};
  }
  Fields operator()(const CancelOffer& it) const {
    return {.key = it.key, .slot = Fields::kNoSlot, .kind = Fields::kCancelSend};
  }
  Fields operator()(const VoidWant& it) const {
    return {.key = it.key, .slot = it.slot, .kind = Fields::kVoidWant};
  }
  Fields operator()(const Solicit& it) const { return {.key = it.key, .kind = Fields::kSolicit}; }
  Fields operator()(const VoidSolicit& it) const {
    return {.key = it.key, .value = 1, .kind = Fields::kSolicit};
  }
  Fields operator()(const EagerConsumed& it) const {
    return {.key = {it.group, it.messages}, .value = it.bytes, .kind = Fields::kEagerConsumed};
  }
  Fields operator()(const Blocked& it) const {
    return {.key = {it.group, it.blocked ? 1u : 0u}, .kind = Fields::kBlocked};
  }
  Fields operator()(const MismatchAtReceive& it) const {
    return {.key = it.key, .slot = it.slot, .value = it.signature, .kind = Fields::kMismatch};
  }
  Fields operator()(const MismatchAtSend& it) const {
    return {
        .key = it.key, .slot = Fields::kNoSlot, .value = it.signature, .kind = Fields::kMismatch};
  }
};

}  // namespace

ControlFields fields_of(const Control& control) { return std::visit(Flatten(), control); }

std::optional<Control> control_of(const ControlFields& fields) {
  const MessageKey& key = fields.key;
  const bool has_slot = fields.slot.index != Fields::kNoSlot.index;
  switch (fields.kind) {
    case Fields::kCancelReceive:
      return CancelReceive{key, fields.slot};
    case Fields::kCancelSend:
      if (has_slot) return CancelSend{key, fields.slot};
      return CancelOffer{key};
    case Fields::kVoidWant:
      return VoidWant{key, fields.slot};
    case Fields::kSolicit:
      if (fields.value == 0) return Solicit{key};
      return VoidSolicit{key};
    case Fields::kEagerConsumed:
      return EagerConsumed{key.group, static_cast<std::uint32_t>(key.tag),
                           static_cast<std::uint32_t>(fields.value)};
    case Fields::kBlocked:
      return Blocked{key.group, key.tag != 0};
    case Fields::kMismatch:
      if (has_slot) return MismatchAtReceive{key, fields.slot, fields.value};
      return MismatchAtSend{key, fields.value};
  }
  return std::nullopt;
}

}  // namespace taco::harp
