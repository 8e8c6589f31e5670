#include "harp/drivers/kernel/udp.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/log.h"
#include "harp/address.h"

namespace taco::harp {

namespace {

// A socket without traffic for this many polls is looked at only every kColdEvery-th: a host has
// more addresses than it uses, and every look is a system call. So is one that was never used: all
// peers may be on this host. The only one in use is always looked at.
constexpr std::uint64_t kColdAfter = 512;
constexpr std::uint64_t kColdEvery = 32;

}  // namespace

Result<std::unique_ptr<UdpNic>> UdpNic::create(const UdpNicOptions& options) {
  std::unique_ptr<UdpNic> nic(new UdpNic(options));
  nic->capabilities_.receive_buffer = SIZE_MAX;
  nic->capabilities_.gso_bytes = 65'000;
  nic->capabilities_.gso_segments = 64;
  for (const NicOptions::Local& local : options.locals) {
    TACO_RETURN_IF_ERROR(nic->open_address(local, nic->sockets_.size()));
    const UdpSocket& socket = *nic->sockets_.back();
    std::size_t& buffer = nic->capabilities_.receive_buffer;
    buffer = std::min(buffer, socket.receive_buffer());
    if (!socket.has_gso()) nic->capabilities_.gso_segments = 1;
  }
  nic->watch_addresses();
  return nic;
}

// Opens the address at that place among the others, or behind them. A sleeper on the descriptors
// looks for new ones at their end.
Status UdpNic::open_address(const NicOptions::Local& local, std::size_t place) {
  auto socket = UdpSocket::open({local.address, options_.receive_buffer, options_.allow_gso,
                                 options_.allow_gro, local.network});
  if (!socket.ok()) return socket.status();
  if (place == sockets_.size()) {
    addresses_.emplace_back();
    sockets_.emplace_back();
  } else {
    const auto former = std::ranges::find(descriptors_, sockets_[place]->fd(), &NicDescriptor::fd);
    *former = {-1, NicDescriptor::kNoAddress};
    former_overflows_ += sockets_[place]->overflows();
  }
  descriptors_.push_back({socket.value()->fd(), static_cast<std::uint32_t>(place)});
  addresses_[place] = {socket.value()->local(), max_datagram(local.address, local.mtu), local.spare,
                       whole_datagram(local.address, local.mtu)};
  sockets_[place] = std::move(socket).value();
  missing_ &= ~(1u << place);
  ++arrivals_;
  return {};
}

// Behind the others; once there is no room any more, where one is that is gone.
std::optional<std::size_t> UdpNic::place_for_more() const {
  if (addresses_.size() < kMaxAddresses) return addresses_.size();
  if (missing_ == 0) return std::nullopt;
  return static_cast<std::size_t>(std::countr_zero(missing_));
}

// Adds addresses that the host has come to have, and learns by which interface each is used now,
// and what that carries at once: one that was made again has another index. An address that cannot
// be opened is not missed by anybody yet, and is tried again after the next change.
void UdpNic::open_more(std::span<const NicOptions::Local> locals) {
  const std::vector<NicAddress> before = addresses_;
  for (const NicOptions::Local& local : locals) {
    bool is_open = false;
    for (std::size_t i = 0; i < before.size(); ++i) {
      if (!same_host_address(before[i].endpoint, local.address)) continue;
      sockets_[i]->set_network(local.network);
      addresses_[i].max_datagram = max_datagram(local.address, local.mtu);
      addresses_[i].whole_datagram = whole_datagram(local.address, local.mtu);
      is_open = true;
    }
    if (is_open) continue;
    const auto place = place_for_more();
    const Status opened =
        place ? open_address(local, *place)
              : Status(Code::kResource, to_string(local.address) + " is not used: there are " +
                                            std::to_string(kMaxAddresses) +
                                            " sockets already (TACO_IFNAME, TACO_PATHS)");
    if (!opened.ok()) TACO_LOG_WARNING("harp", "a new address: %s", opened.message().c_str());
  }
}

// Without it a path by an address that has gone is found out as any silent one.
void UdpNic::watch_addresses() {
  auto watch = AddressWatch::open(options_.find_more);
  if (!watch.ok()) {
    TACO_LOG_WARNING("harp", "addresses that come or go will be noticed later: %s",
                     watch.status().message().c_str());
    return;
  }
  watch_ = std::move(watch).value();
  descriptors_.push_back({watch_->descriptor(), NicDescriptor::kNoAddress});
}

std::size_t UdpNic::send_st(std::span<const TxPacket> packets) {
  std::size_t done = 0;
  while (done < packets.size()) {
    const std::uint32_t path = packets[done].local_path;
    std::size_t end = done + 1;
    while (end < packets.size() && packets[end].local_path == path) ++end;
    UdpSocket& socket = *sockets_[path];
    socket.last_used = polls_;
    const std::size_t sent = socket.send(packets.subspan(done, end - done), refusals_);
    done += sent;
    if (done < end) break;
  }
  return done;
}

std::size_t UdpNic::receive_st(std::span<RxPacket> packets) {
  ++polls_;
  const bool look = look_everywhere_ || polls_ % kColdEvery == 0;
  if (look && watch_ != nullptr) {
    if (const auto host = watch_->take()) {
      ++looks_;
      missing_ = missing_of(addresses_, host->held);
      open_more(host->may_be_used);
    }
  }
  const std::size_t most = std::min(packets.size(), UdpReceiveRing::kPackets);
  std::size_t filled = 0;
  // Behind the socket that filled the last burst: none can keep the others from being heard.
  const auto count = static_cast<std::uint32_t>(sockets_.size());
  const std::uint32_t first = next_receive_;
  for (std::uint32_t i = 0; i < count && filled < most; ++i) {
    const std::uint32_t path = (first + i) % count;
    UdpSocket& socket = *sockets_[path];
    const bool cold =
        socket.last_used == 0 || (polls_ - socket.last_used > kColdAfter && sockets_.size() > 1);
    if (cold && !look) continue;
    const std::size_t got = socket.receive(ring_, filled, most - filled, refusals_);
    if (got > 0) socket.last_used = polls_;
    for (std::size_t entry = filled; entry < filled + got; ++entry) {
      ring_.entries[entry].source.size = ring_.headers[entry].msg_hdr.msg_namelen;
      packets[entry] = {{static_cast<std::byte*>(ring_.entries[entry].slice.iov_base),
                         ring_.headers[entry].msg_len},
                        socket.segment_bytes_of(ring_, entry),
                        &ring_.entries[entry].source,
                        path};
    }
    ring_.reset(filled, got);
    filled += got;
    if (filled == most) next_receive_ = (path + 1) % count;
  }
  if (filled < most) look_everywhere_ = false;
  return filled;
}

void UdpNic::close_st() {
  for (const auto& socket : sockets_) socket->close();
}

std::uint64_t UdpNic::overflows() const {
  std::uint64_t total = former_overflows_;
  for (const auto& socket : sockets_) total += socket->overflows();
  return total;
}

}  // namespace taco::harp
