#include "harp/drivers/xdp/xdp.h"

#include <time.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/mixed_bits.h"
#include "harp/address.h"
#include "harp/drivers/frames/take_datagram.h"
#include "harp/drivers/frames/udp_frame.h"
#include "harp/drivers/kernel/kernel_interfaces.h"
#include "harp/drivers/xdp/mac_addresses.h"

namespace taco::harp {

namespace {

// The kernel's sockets are looked at only every so many polls while they bring nothing: a look is a
// system call, and a look at a ring is none.
constexpr std::uint64_t kSocketsEvery = 32;
constexpr std::size_t kSegmentsARun = 64;
// A full ring is looked at again so soon. A wire of 10 Gbit/s needs six times as long for a ring of
// frames.
constexpr Duration kRoomPeriod = 100 * kMicrosecond;
// So long whoever opens a Nic waits for queues.
constexpr Duration kQueueWait = 2 * kSecond;
constexpr Duration kFirstPause = 10 * kMillisecond, kLongestPause = kSecond;
constexpr timespec kQueuePause{0, kFirstPause};

// Walks over a packet's slices, from datagram to datagram.
class SliceReader {
 public:
  explicit SliceReader(std::span<const IoSlice> slices) : slices_(slices) {}

  void copy(std::span<std::byte> to) {
    while (!to.empty()) {
      const IoSlice& from = slices_.front();
      const std::size_t take = std::min(to.size(), from.bytes - within_);
      std::copy_n(static_cast<const std::byte*>(from.data) + within_, take, to.begin());
      to = to.subspan(take);
      within_ += take;
      if (within_ < from.bytes) continue;
      slices_ = slices_.subspan(1);
      within_ = 0;
    }
  }

 private:
  std::span<const IoSlice> slices_;
  std::size_t within_ = 0;
};

void warn(const Status& status) {
  if (status.ok()) return;
  TACO_LOG_WARNING("harp", "%s; the kernel's sockets are used instead", status.message().c_str());
}

std::size_t longest_datagram(const TxPacket& packet) {
  return packet.segment_bytes == 0 ? packet.bytes : std::min(packet.segment_bytes, packet.bytes);
}

}  // namespace

std::size_t XdpNic::EndpointHash::operator()(const Endpoint& endpoint) const {
  std::uint64_t mixed = port_of(endpoint);
  for (const std::byte each : address_bytes(endpoint)) {
    mixed = mixed_bits(mixed ^ std::to_integer<std::uint64_t>(each));
  }
  return mixed;
}

// A program behind the driver would see datagrams that the kernel has put together for a socket
// that asks for it (UDP_GRO), and could not part them.
Result<std::unique_ptr<XdpNic>> XdpNic::create(const NicOptions& options, const QueueShare& share) {
  std::unique_ptr<XdpNic> nic(new XdpNic(share));
  UdpNicOptions sockets{options};
  sockets.allow_gro = false;
  auto kernel = UdpNic::create(sockets);
  if (!kernel.ok()) return kernel.status();
  nic->kernel_ = std::move(kernel).value();
  auto hops = NextHops::open();
  if (!hops.ok()) return hops.status();
  nic->hops_ = std::move(hops).value();
  for (WakeAlarm* const alarm : {&nic->room_alarm_, &nic->try_alarm_}) {
    TACO_RETURN_IF_ERROR(alarm->start());
    nic->descriptors_.push_back({alarm->fd(), NicDescriptor::kNoAddress});
  }
  TACO_RETURN_IF_ERROR(nic->make_interfaces());
  TACO_RETURN_IF_ERROR(nic->await_interfaces());
  if (nic->interfaces_.empty()) {
    TACO_LOG_WARNING("harp",
                     "TACO_HARP_DRIVER=xdp: no interface in use carries Ethernet frames; "
                     "everything goes by the kernel's sockets");
  }
  const NicCapabilities& of_sockets = nic->kernel_->capabilities();
  nic->capabilities_ = of_sockets;
  nic->capabilities_.gso_segments = kSegmentsARun;
  // A small datagram takes a frame as a large one does: what the kernel would charge it at least is
  // what a frame counts for.
  nic->capabilities_.receive_buffer =
      std::min(of_sockets.receive_buffer, XdpSocket::kReceiveFrames * of_sockets.packet_overhead);
  nic->list_descriptors();
  return nic;
}

XdpNic::~XdpNic() { close_st(); }

// Interfaces that have our addresses at the moment and are not there yet.
Status XdpNic::make_interfaces() {
  const auto links = list_kernel_links();
  if (!links.ok()) return links.status();
  const auto all = list_addresses(links.value());
  if (!all.ok()) return all.status();
  networks_.assign(addresses().size(), {});
  std::vector<std::string> tried;
  for (const auto* some : {&interfaces_, &waiting_}) {
    for (const auto& each : *some) tried.push_back(each->name());
  }
  std::vector<std::uint32_t> holders;
  Status first_failure;
  for (std::size_t i = 0; i < networks_.size(); ++i) {
    const Interface* const holder = holder_of(all.value(), addresses()[i].endpoint);
    if (holder == nullptr) continue;
    networks_[i] = holder->network;
    holders.push_back(holder->network.interface);
    const bool is_known = std::ranges::find(tried, holder->name) != tried.end();
    if (holder->loopback || !holder->up || is_known) continue;
    tried.push_back(holder->name);
    const Status made = make_interface(holder->name);
    if (first_failure.ok()) first_failure = made;
  }
  // Each interface takes datagrams to all addresses, so that a frame may bear the MAC address of
  // another one, as those for a macvlan do on the interface below it.
  macs_ = mac_addresses(links.value(), holders);
  return first_failure;
}

Status XdpNic::make_interface(const std::string& name) {
  auto made = XdpInterface::make(name, share_);
  if (!made.ok()) return made.status().code() == Code::kUnsupported ? Status() : made.status();
  waiting_.push_back(std::move(made).value());
  return {};
}

// Those whose queues are free. One that fails is given up until the next change.
Status XdpNic::take_interfaces() {
  Status first_failure;
  for (auto& each : std::exchange(waiting_, {})) {
    const auto taken = each->take();
    if (!taken.ok()) {
      if (first_failure.ok()) first_failure = taken.status();
    } else if (taken.value()) {
      use(std::move(each));
    } else {
      waiting_.push_back(std::move(each));
    }
  }
  const Status set = set_addresses();
  return first_failure.ok() ? set : first_failure;
}

// Before an engine has the Nic there is time to wait.
Status XdpNic::await_interfaces() {
  const Time limit = monotonic_now() + kQueueWait;
  TACO_RETURN_IF_ERROR(take_interfaces());
  while (!waiting_.empty()) {
    if (monotonic_now() > limit) return waiting_.front()->why_not_taken();
    nanosleep(&kQueuePause, nullptr);
    TACO_RETURN_IF_ERROR(take_interfaces());
  }
  return {};
}

void XdpNic::use(std::unique_ptr<XdpInterface> interface) {
  for (const auto& socket : interface->sockets()) {
    descriptors_.push_back({socket->fd(), NicDescriptor::kNoAddress});
  }
  interfaces_.push_back(std::move(interface));
  list_rings();
}

void XdpNic::list_rings() {
  rings_.clear();
  for (const auto& interface : interfaces_) {
    for (const auto& socket : interface->sockets()) rings_.push_back(socket.get());
  }
}

// Each interface takes datagrams to all of them: where two are on one network, a host may answer
// for the address of one by the other.
Status XdpNic::set_addresses() {
  paths_.clear();
  std::vector<Endpoint> all;
  for (std::uint32_t i = 0; i < addresses().size(); ++i) {
    paths_.try_emplace(addresses()[i].endpoint, i);
    all.push_back(addresses()[i].endpoint);
  }
  for (const auto& interface : interfaces_) TACO_RETURN_IF_ERROR(interface->set_addresses(all));
  return {};
}

// Those of the sockets may change and grow in their own list, and all only grow in this one.
void XdpNic::list_descriptors() {
  const std::span<const NicDescriptor> of_sockets = kernel_->descriptors();
  for (std::size_t i = 0; i < of_sockets.size(); ++i) {
    if (i == kernel_places_.size()) {
      kernel_places_.push_back(descriptors_.size());
      descriptors_.emplace_back();
    }
    descriptors_[kernel_places_[i]] = of_sockets[i];
  }
}

void XdpNic::forget_descriptor(int fd) {
  const auto found = std::ranges::find(descriptors_, fd, &NicDescriptor::fd);
  if (found != descriptors_.end()) *found = {-1, NicDescriptor::kNoAddress};
}

void XdpNic::follow_changes() {
  if (looks_ == kernel_->looks()) return try_again();
  looks_ = kernel_->looks();
  list_descriptors();
  drop_former(interfaces_);
  drop_former(waiting_);
  list_rings();
  hops_->forget();
  warn(make_interfaces());
  warn(take_interfaces());
  pause_ = kFirstPause;
  plan_next_try();
}

// Interfaces that have gone, or whose frames have another length now. One that was made again is
// another, of the same name.
void XdpNic::drop_former(std::vector<std::unique_ptr<XdpInterface>>& interfaces) {
  std::erase_if(interfaces, [&](const auto& interface) {
    if (interface->follow()) return false;
    for (const auto& socket : interface->sockets()) forget_descriptor(socket->fd());
    former_dropped_ += interface->dropped();
    return true;
  });
}

// An interface that comes back finds its queues busy for as long as the kernel takes to give up
// those that it had. An engine does not wait for that.
void XdpNic::try_again() {
  if (waiting_.empty() || monotonic_now() < next_try_) return;
  warn(take_interfaces());
  plan_next_try();
}

void XdpNic::plan_next_try() {
  try_alarm_.clear();
  if (waiting_.empty()) return;
  next_try_ = monotonic_now() + pause_;
  try_alarm_.set(pause_);
  if (pause_ == kLongestPause) return;
  pause_ = std::min(2 * pause_, kLongestPause);
  if (pause_ < kLongestPause) return;
  for (const auto& each : waiting_) warn(each->why_not_taken());
}

XdpInterface* XdpNic::interface_at(std::uint32_t index) const {
  for (const auto& each : interfaces_) {
    if (each->index() == index) return each.get();
  }
  return nullptr;
}

std::size_t XdpNic::send_st(std::span<const TxPacket> packets) {
  if (closed_) return packets.size();
  const Time now = monotonic_now();
  std::size_t done = 0;
  while (done < packets.size() && send_packet(packets[done], now)) ++done;
  flush();
  return done;
}

// False: no room.
bool XdpNic::send_packet(const TxPacket& packet, Time now) {
  MacAddress neighbour;
  XdpInterface* const by = way_of(packet, now, neighbour);
  if (by != nullptr) return send_by_ring(packet, neighbour, *by);
  if (kernel_->send_st({&packet, 1}) == 0) return false;
  ++counters_.sent_by_socket;
  return true;
}

// Null: by the kernel's socket. It also cuts what is too long for the interface into fragments.
XdpInterface* XdpNic::way_of(const TxPacket& packet, Time now, MacAddress& neighbour) {
  const Endpoint& source = addresses()[packet.local_path].endpoint;
  // One that has come since the last look at them has no interface here yet.
  if (interfaces_.empty() || packet.local_path >= networks_.size()) return nullptr;
  const NextHops::Hop* const hop =
      hops_->find(source, networks_[packet.local_path], *packet.destination, now);
  XdpInterface* const by = hop == nullptr ? nullptr : interface_at(hop->interface);
  if (by == nullptr) return nullptr;
  const std::size_t headers = udp_headers_bytes(source) - kEthernetHeader;
  if (headers + longest_datagram(packet) > by->mtu()) return nullptr;
  neighbour = hop->mac;
  return by;
}

// An interface that is down takes nothing either, until it has no routes any more, which is soon.
bool XdpNic::send_by_ring(const TxPacket& packet, const MacAddress& neighbour, XdpInterface& by) {
  XdpSocket& to = by.sender();
  const std::size_t longest = longest_datagram(packet);
  const std::size_t count = longest == 0 ? 1 : (packet.bytes + longest - 1) / longest;
  if (to.room() < count) {
    to.flush();
    if (to.room() < count) {
      room_alarm_.set(kRoomPeriod);
      return false;
    }
  }
  const UdpFlow flow{by.mac(), neighbour, addresses()[packet.local_path].endpoint,
                     *packet.destination};
  const std::size_t headers = udp_headers_bytes(flow.destination);
  SliceReader slices(packet.slices);
  std::size_t left = packet.bytes;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t bytes = std::min(left, longest);
    left -= bytes;
    const std::span<std::byte> frame = to.next_frame();
    const std::span<std::byte> payload = frame.subspan(headers, bytes);
    slices.copy(payload);
    const IoSlice slice{payload.data(), payload.size()};
    write_udp_headers(
        flow,
        {{&slice, 1}, bytes, UdpChecksumBy::kSoftware, !packet.unfragmented, identification_++},
        frame);
    to.commit(headers + bytes);
  }
  counters_.sent_by_ring += count;
  return true;
}

void XdpNic::flush() {
  for (const auto& each : interfaces_) {
    if (!each->sender().flush()) room_alarm_.set(kRoomPeriod);
  }
}

std::size_t XdpNic::receive_st(std::span<RxPacket> packets) {
  if (closed_) return 0;
  packets = packets.first(std::min(packets.size(), kReceiveBurst));
  ++polls_;
  follow_changes();  // before anything lies in memory of an interface that has gone
  flush();
  std::size_t filled = 0;
  // Now and then before the rings, which may fill every burst.
  const bool is_their_turn = polls_ % kSocketsEvery == 0;
  if (is_their_turn) filled += receive_by_sockets(packets);
  filled += receive_by_rings(packets.subspan(filled));
  const bool may_bring_some = look_everywhere_ || socket_brought_some_;
  if (!is_their_turn && may_bring_some && filled < packets.size()) {
    filled += receive_by_sockets(packets.subspan(filled));
  }
  return filled;
}

// Behind the ring that filled the last burst, so that none can keep the others from being heard.
std::size_t XdpNic::receive_by_rings(std::span<RxPacket> packets) {
  for (XdpSocket* const ring : rings_) ring->give_back();
  std::size_t filled = 0;
  for (std::size_t i = 0, first = next_ring_; i < rings_.size() && filled < packets.size(); ++i) {
    const std::size_t number = (first + i) % rings_.size();
    while (filled < packets.size()) {
      const auto frame = rings_[number]->receive();
      if (!frame) break;
      if (take_frame(*frame, filled, packets[filled])) ++filled;
    }
    if (filled == packets.size()) next_ring_ = (number + 1) % rings_.size();
  }
  counters_.received_by_ring += filled;
  return filled;
}

// The kernel has verified nothing of it. False: it is not for the protocol.
bool XdpNic::take_frame(std::span<std::byte> frame, std::size_t place, RxPacket& packet) {
  const auto path_at = [&](const Endpoint& destination) -> std::optional<std::uint32_t> {
    const auto path = paths_.find(destination);
    return path == paths_.end() ? std::nullopt : std::optional(path->second);
  };
  const TakenFrame taken = take_datagram({frame, false}, macs_, path_at, packet, sources_[place]);
  if (taken == TakenFrame::kDatagram) return true;
  ++(taken == TakenFrame::kForOthers ? counters_.for_others : counters_.damaged);
  return false;
}

std::size_t XdpNic::receive_by_sockets(std::span<RxPacket> packets) {
  if (look_everywhere_) kernel_->look_everywhere_st();
  const std::size_t filled = kernel_->receive_st(packets);
  socket_brought_some_ = filled > 0;
  if (filled < packets.size()) look_everywhere_ = false;
  counters_.received_by_socket += filled;
  return filled;
}

void XdpNic::close_st() {
  if (std::exchange(closed_, true) || kernel_ == nullptr) return;
  for (const auto& each : interfaces_) {
    for (const auto& socket : each->sockets()) forget_descriptor(socket->fd());
  }
  rings_.clear();
  interfaces_.clear();
  waiting_.clear();
  kernel_->close_st();
  TACO_LOG_DEBUG("harp",
                 "xdp: %llu datagrams sent by rings and %llu by sockets, %llu and %llu received, "
                 "%llu damaged, %llu for others",
                 static_cast<unsigned long long>(counters_.sent_by_ring),
                 static_cast<unsigned long long>(counters_.sent_by_socket),
                 static_cast<unsigned long long>(counters_.received_by_ring),
                 static_cast<unsigned long long>(counters_.received_by_socket),
                 static_cast<unsigned long long>(counters_.damaged),
                 static_cast<unsigned long long>(counters_.for_others));
}

std::uint64_t XdpNic::overflows() const {
  return kernel_->overflows() + overflows_.get(monotonic_now(), [this] {
    std::uint64_t total = former_dropped_;
    for (const auto& each : interfaces_) total += each->dropped();
    return total;
  });
}

}  // namespace taco::harp
