// The 128 bytes that NCCL carries from the process that listens to the one that connects, and hands
// to connect() again and again: a ticket of HARP's, what these bytes are, and how far connect() is.
//
// Pure functions; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "ext/nccl/abi.h"
#include "harp/harp.h"

namespace harp::nccl {

struct Handle {
  std::array<char, Listener::kTicketBytes> ticket;
  std::array<char, 8> magic;
  std::uint32_t version;
  std::uint32_t zero;
  // The number of the dialer that is on its way: 0 is none yet. A number, since these bytes have
  // come from another process, which must not choose where this one looks.
  std::uint64_t dialer;
  std::array<char, 40> unused;
};
static_assert(sizeof(Handle) == abi::kHandleBytes);

Handle handle_for(std::string_view ticket);

// NCCL's bytes, at any address.
Handle read_handle(const void* bytes);
void write_handle(const Handle& handle, void* bytes);

// kInvalidArgument: another network's handle. kVersionMismatch: of another version of the plugin.
Status check(const Handle& handle);

}  // namespace harp::nccl
