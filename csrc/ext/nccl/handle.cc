#include "ext/nccl/handle.h"

#include <algorithm>
#include <cstring>

namespace harp::nccl {
namespace {

constexpr std::array<char, 8> kMagic = {'H', 'A', 'R', 'P', 'n', 'c', 'c', 'l'};
constexpr std::uint32_t kVersion = 1;

}  // namespace

Handle handle_for(std::string_view ticket) {
  Handle handle{};
  std::copy_n(ticket.begin(), std::min(ticket.size(), handle.ticket.size()), handle.ticket.begin());
  handle.magic = kMagic;
  handle.version = kVersion;
  return handle;
}

Handle read_handle(const void* bytes) {
  Handle handle;
  std::memcpy(&handle, bytes, sizeof handle);
  return handle;
}

void write_handle(const Handle& handle, void* bytes) { std::memcpy(bytes, &handle, sizeof handle); }

Status check(const Handle& handle) {
  if (handle.magic != kMagic) {
    return taco::invalid(
        "the other rank listens by another network than HARP: NCCL_NET=HARP and "
        "NCCL_NET_PLUGIN must be set on every host, where the plugin can be loaded");
  }
  if (handle.version != kVersion) {
    return Status(taco::Code::kVersionMismatch,
                  "the other rank's plugin writes handles of version " +
                      std::to_string(handle.version) + ", this one of version " +
                      std::to_string(kVersion) + ": install the same taco_torch on every host");
  }
  return {};
}

}  // namespace harp::nccl
