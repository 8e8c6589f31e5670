#include "harp/drivers/xdp/attached_program.h"

#include <errno.h>
#include <linux/if_link.h>
#include <string.h>

#include <algorithm>
#include <array>
#include <utility>

#include "harp/drivers/kernel/netlink.h"

namespace taco::harp {
namespace {

constexpr std::size_t kMaxMaps = 8;

struct AttachedId {
  std::uint32_t program = 0;  // 0: none
  XdpMode mode = XdpMode::kNative;
};

Result<AttachedId> id_at(std::uint32_t interface) {
  const auto socket = open_netlink(0);
  if (!socket.ok()) return socket.status();
  ifinfomsg header{};
  header.ifi_index = static_cast<int>(interface);
  NetlinkAnswer answer;
  const nlmsghdr* const link =
      ask_kernel(socket.value().get(), NetlinkRequest(RTM_GETLINK, 1, header), RTM_NEWLINK, answer);
  AttachedId found;
  if (link == nullptr) return found;
  for_attributes(body_of(*link), sizeof header, [&](int type, std::span<const std::byte> value) {
    if (type != IFLA_XDP) return;
    for_attributes(value, 0, [&](int inner, std::span<const std::byte> one) {
      if (inner == IFLA_XDP_PROG_ID && one.size() == sizeof found.program) {
        memcpy(&found.program, one.data(), one.size());
      }
      if (inner == IFLA_XDP_ATTACHED && one.size() == 1) {
        const bool is_generic = one[0] == std::byte{XDP_ATTACHED_SKB};
        found.mode = is_generic ? XdpMode::kGeneric : XdpMode::kNative;
      }
    });
  });
  return found;
}

// The link by which the program hangs there. An empty descriptor: there is none by now.
Result<OwnFd> open_link_of(std::uint32_t program) {
  for (std::uint32_t id = 0;;) {
    const auto next = next_bpf_link(id);
    if (!next.ok()) return next.status();
    if (next.value() == 0) return OwnFd();
    id = next.value();
    auto link = open_bpf_object(BpfKind::kLink, id);
    if (!link.ok()) return link;
    bpf_link_info about;
    memset(&about, 0, sizeof about);
    if (!link.value() || !describe_bpf_object(link.value(), &about, sizeof about)) continue;
    if (about.type == BPF_LINK_TYPE_XDP && about.prog_id == program) return link;
  }
}

}  // namespace

Result<std::optional<AttachedProgram>> find_attached_program(std::uint32_t interface) {
  const auto id = id_at(interface);
  if (!id.ok()) return id.status();
  std::optional<AttachedProgram> none;
  if (id.value().program == 0) return none;
  auto link = open_link_of(id.value().program);
  if (!link.ok()) return link.status();
  const auto program = open_bpf_object(BpfKind::kProgram, id.value().program);
  if (!program.ok()) return program.status();
  std::uint32_t maps[kMaxMaps] = {};
  bpf_prog_info about;
  memset(&about, 0, sizeof about);
  about.nr_map_ids = kMaxMaps;
  about.map_ids = reinterpret_cast<std::uint64_t>(maps);
  if (!program.value() || !describe_bpf_object(program.value(), &about, sizeof about)) return none;
  AttachedProgram found;
  found.name = std::string(about.name, strnlen(about.name, sizeof about.name));
  found.tag = std::to_array(about.tag);
  found.mode = id.value().mode;
  found.link = std::move(link).value();
  for (std::size_t i = 0; i < std::min<std::size_t>(about.nr_map_ids, kMaxMaps); ++i) {
    auto map = open_bpf_object(BpfKind::kMap, maps[i]);
    if (!map.ok()) return map.status();
    bpf_map_info shape;
    memset(&shape, 0, sizeof shape);
    if (!map.value() || !describe_bpf_object(map.value(), &shape, sizeof shape)) return none;
    found.maps.push_back({{static_cast<bpf_map_type>(shape.type), shape.key_size, shape.value_size,
                           shape.max_entries},
                          std::move(map).value()});
  }
  return std::optional(std::move(found));
}

}  // namespace taco::harp
