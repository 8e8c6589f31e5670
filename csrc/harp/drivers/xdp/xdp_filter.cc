#include "harp/drivers/xdp/xdp_filter.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/log.h"
#include "harp/address.h"
#include "harp/drivers/frames/ethernet.h"

namespace taco::harp {

namespace {

// Registers that keep what they hold, and one for everything else.
constexpr int kFrameEnd = BPF_REG_4, kScratch = BPF_REG_5, kXdpContext = BPF_REG_6,
              kFrameStart = BPF_REG_7;
constexpr int kStackEnd = BPF_REG_10;

constexpr std::int16_t kKeyAt = -24;  // on the stack: 16 bytes of address, the port, two of nothing
constexpr std::int16_t kPortAt = kKeyAt + 16;
constexpr std::int32_t kAnyFragment = 0x3fff;  // more of them, or an offset
constexpr auto kIpHeaderAt = static_cast<std::int16_t>(kEthernetHeader);

// Goes to `pass` unless the frame has that many bytes in its first piece.
void require_bytes(BpfProgram& program, std::int32_t bytes, BpfProgram::Label& pass) {
  program.copy(kScratch, kFrameStart);
  program.add(kScratch, bytes);
  program.jump_if_register(BPF_JGT, kScratch, kFrameEnd, pass);
}

void require_byte(BpfProgram& program, std::int16_t at, std::int32_t value,
                  BpfProgram::Label& pass) {
  program.load(BPF_B, kScratch, kFrameStart, at);
  program.jump_if(BPF_JNE, kScratch, value, pass);
}

void take_port(BpfProgram& program, std::int16_t udp) {
  program.load(BPF_H, kScratch, kFrameStart, static_cast<std::int16_t>(udp + 2));
  program.store(BPF_H, kStackEnd, kPortAt, kScratch);
}

// Without options.
void read_ipv4(BpfProgram& program, BpfProgram::Label& pass) {
  require_byte(program, kIpHeaderAt, 0x45, pass);
  require_byte(program, kIpHeaderAt + 9, kUdpProtocol, pass);
  program.load(BPF_H, kScratch, kFrameStart, kIpHeaderAt + 6);
  program.mask(kScratch, htons(kAnyFragment));
  program.jump_if(BPF_JNE, kScratch, 0, pass);
  program.store_number(BPF_W, kStackEnd, kKeyAt, 0);
  program.store_number(BPF_W, kStackEnd, kKeyAt + 4, 0);
  program.store_number(BPF_W, kStackEnd, kKeyAt + 8, static_cast<std::int32_t>(htonl(0xffff)));
  program.load(BPF_W, kScratch, kFrameStart, kIpHeaderAt + 16);
  program.store(BPF_W, kStackEnd, kKeyAt + 12, kScratch);
  take_port(program, kIpHeaderAt + 20);
}

void read_ipv6(BpfProgram& program, BpfProgram::Label& pass) {
  require_bytes(program, static_cast<std::int32_t>(kEthernetHeader + kIpv6Header + kUdpHeaderBytes),
                pass);
  require_byte(program, kIpHeaderAt + 6, kUdpProtocol, pass);
  for (std::int16_t word = 0; word < 16; word = static_cast<std::int16_t>(word + 4)) {
    program.load(BPF_W, kScratch, kFrameStart, static_cast<std::int16_t>(kIpHeaderAt + 24 + word));
    program.store(BPF_W, kStackEnd, static_cast<std::int16_t>(kKeyAt + word), kScratch);
  }
  take_port(program, kIpHeaderAt + 40);
}

}  // namespace

BpfProgram XdpFilter::program(const OwnFd& addresses, const OwnFd& sockets) {
  BpfProgram program;
  BpfProgram::Label pass, ipv4, look_up;
  program.copy(kXdpContext, BPF_REG_1);
  program.load(BPF_W, kFrameStart, kXdpContext, offsetof(xdp_md, data));
  program.load(BPF_W, kFrameEnd, kXdpContext, offsetof(xdp_md, data_end));
  program.store_number(BPF_W, kStackEnd, kPortAt, 0);
  require_bytes(program, static_cast<std::int32_t>(kEthernetHeader + kIpv4Header + kUdpHeaderBytes),
                pass);
  program.load(BPF_H, kScratch, kFrameStart, kIpHeaderAt - 2);
  program.jump_if(BPF_JEQ, kScratch, htons(kEtherTypeIpv4), ipv4);
  program.jump_if(BPF_JNE, kScratch, htons(kEtherTypeIpv6), pass);
  read_ipv6(program, pass);
  program.jump(look_up);
  program.place(ipv4);
  read_ipv4(program, pass);
  program.place(look_up);
  program.load_map(BPF_REG_1, addresses);
  program.copy(BPF_REG_2, kStackEnd);
  program.add(BPF_REG_2, kKeyAt);
  program.call(BPF_FUNC_map_lookup_elem);
  program.jump_if(BPF_JEQ, BPF_REG_0, 0, pass);
  program.load(BPF_W, BPF_REG_2, kXdpContext, offsetof(xdp_md, rx_queue_index));
  program.jump_if(BPF_JGE, BPF_REG_2, kMaxQueues, pass);
  program.load(BPF_W, kScratch, BPF_REG_0, 0);
  program.add_register(BPF_REG_2, kScratch);
  program.load_map(BPF_REG_1, sockets);
  program.set(BPF_REG_3, XDP_PASS);  // by a queue of somebody else's
  program.call(BPF_FUNC_redirect_map);
  program.leave();
  program.place(pass);
  program.set(BPF_REG_0, XDP_PASS);
  program.leave();
  return program;
}

BpfMapShape XdpFilter::shape_of_addresses() {
  static_assert(sizeof(Key) == 20);
  return {BPF_MAP_TYPE_HASH, sizeof(Key), sizeof(std::uint32_t), kMaxAddresses};
}

BpfMapShape XdpFilter::shape_of_sockets() {
  return {BPF_MAP_TYPE_XSKMAP, sizeof(std::uint32_t), sizeof(std::uint32_t),
          kMaxQueues * kMaxQueues};
}

Result<std::unique_ptr<XdpFilter>> XdpFilter::create() {
  std::unique_ptr<XdpFilter> filter(new XdpFilter);
  auto addresses = create_bpf_map(shape_of_addresses());
  if (!addresses.ok()) return addresses.status();
  filter->addresses_ = std::move(addresses).value();
  auto sockets = create_bpf_map(shape_of_sockets());
  if (!sockets.ok()) return sockets.status();
  filter->sockets_ = std::move(sockets).value();
  const BpfProgram written = program(filter->addresses_, filter->sockets_);
  auto loaded = load_xdp_program(written.instructions(), kProgramName);
  if (!loaded.ok()) return loaded.status();
  filter->program_ = std::move(loaded).value();
  return filter;
}

// The maps may live on with other engines; sockets leave theirs as they are closed.
XdpFilter::~XdpFilter() {
  for (const Key& key : keys_) {
    if (owns(key)) erase_from_bpf_map(addresses_, &key);
  }
}

Status XdpFilter::add_socket(std::uint32_t queue, int socket) {
  const std::uint32_t place = first_place_ + queue;
  return put_in_bpf_map(sockets_, &place, &socket);
}

// Another engine may have had the port since.
bool XdpFilter::owns(const Key& key) const {
  std::uint32_t place = 0;
  return look_up_in_bpf_map(addresses_, &key, &place) && place == first_place_;
}

Status XdpFilter::set_addresses(std::span<const Endpoint> addresses) {
  std::vector<Key> wanted;
  for (const Endpoint& each : addresses) {
    wanted.push_back({mapped_address(each), wire_port_of(each)});
  }
  for (const Key& key : keys_) {
    const bool is_wanted = std::ranges::find(wanted, key) != wanted.end();
    if (!is_wanted && owns(key)) erase_from_bpf_map(addresses_, &key);
  }
  keys_.clear();
  for (const Key& key : wanted) {
    TACO_RETURN_IF_ERROR(put_in_bpf_map(addresses_, &key, &first_place_));
    keys_.push_back(key);
  }
  return {};
}

// A program takes a moment to go with its last user.
Result<bool> XdpFilter::attach(std::uint32_t interface, std::uint32_t owner) {
  first_place_ = owner * kMaxQueues;
  TACO_RETURN_IF_ERROR(attach_new(interface));
  if (!link_) TACO_RETURN_IF_ERROR(join(interface));
  if (!link_) return false;
  forget_former_owner();
  return true;
}

// Generic programs see what other hosts' kernels on the same machine hand over as it is, runs of
// datagrams in one piece included, which nobody can cut any more. So natively first. No link:
// another program is there.
Status XdpFilter::attach_new(std::uint32_t interface) {
  mode_ = XdpMode::kNative;
  auto native = attach_xdp_program(program_, interface, XdpMode::kNative);
  if (native.ok()) {
    link_ = std::move(native).value();
    return {};
  }
  mode_ = XdpMode::kGeneric;
  auto generic = attach_xdp_program(program_, interface, XdpMode::kGeneric);
  if (!generic.ok()) return generic.status();
  link_ = std::move(generic).value();
  if (!link_) return {};
  TACO_LOG_WARNING(
      "harp",
      "XDP behind the interface's driver (%s): runs of datagrams that another kernel "
      "on this machine hands over uncut do not arrive; TACO_HARP_DRIVER=udp takes them",
      native.status().message().c_str());
  return {};
}

// A name may be given to any program: those that share one rely on what it does, and with which
// maps. "": it is ours.
std::string XdpFilter::why_not_ours(const AttachedProgram& there) const {
  if (there.name != kProgramName) return "it is not HARP's";
  const auto own = tag_of(program_);
  if (!own || there.tag != *own) {
    return "it does something else than this version's program of that name";
  }
  const auto has = [&](const BpfMapShape& shape) {
    return std::ranges::count(there.maps, shape, &AttachedProgram::Map::shape) == 1;
  };
  const bool good = there.maps.size() == 2 && has(shape_of_addresses()) && has(shape_of_sockets());
  return good ? "" : "its maps are others than those of this version's program of that name";
}

// No link: the program that was there has gone.
Status XdpFilter::join(std::uint32_t interface) {
  auto found = find_attached_program(interface);
  if (!found.ok()) return found.status();
  if (!found.value()) return {};
  AttachedProgram& there = *found.value();
  const std::string why_not = why_not_ours(there);
  if (!why_not.empty()) {
    return Status(Code::kResource, "another XDP program is there already, \"" + there.name +
                                       "\": " + why_not +
                                       " (`ip link` shows it; TACO_IFNAME chooses interfaces)");
  }
  if (!there.link) return {};  // with the maps of ours still our own
  for (AttachedProgram::Map& map : there.maps) {
    OwnFd& ours = map.shape.type == BPF_MAP_TYPE_XSKMAP ? sockets_ : addresses_;
    ours = std::move(map.fd);
  }
  mode_ = there.mode;
  link_ = std::move(there.link);
  return {};
}

// A former owner of our queue may not have lived to take its addresses out.
void XdpFilter::forget_former_owner() {
  std::vector<Key> all;
  for (Key key; next_bpf_key(addresses_, all.empty() ? nullptr : &all.back(), &key);) {
    all.push_back(key);
    if (all.size() > kMaxAddresses) break;
  }
  for (const Key& key : all) {
    if (owns(key)) erase_from_bpf_map(addresses_, &key);
  }
}

}  // namespace taco::harp
