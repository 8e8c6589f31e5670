// The address by which another endpoint connects to one: who its process is, and which of its
// endpoints it is. As confidential as a key, since it holds what proves to others that they speak
// to this process. Values only; decode() trusts nothing it reads.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "edge/rendezvous_record.h"

namespace taco::remote {

struct EndpointAddress {
  edge::Hello process;
  std::uint64_t endpoint = 0;

  std::string encode() const;
  // kInvalidArgument: none, or a damaged one; kVersionMismatch: another version's.
  static Result<EndpointAddress> decode(std::string_view bytes);
};

// Whether these two can exchange anything: kVersionMismatch names what differs.
Status check_alike(const EndpointAddress& ours, const EndpointAddress& theirs);

}  // namespace taco::remote
