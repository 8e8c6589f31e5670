// A host's end of the simulated network.
#include <algorithm>
#include <utility>

#include "support/sim_network.h"

namespace taco::harp {
namespace {

constexpr std::size_t kAddresses = 8;
constexpr std::size_t kOverhead = 832;  // what the kernel charges a datagram beyond its bytes
constexpr Duration kDmaDelay = 30 * kMicrosecond;
constexpr std::size_t kMaxMerged = 44;  // datagrams in one super-packet

}  // namespace

SimNic::SimNic(SimNetwork& network, const SimNicOptions& options)
    : network_(network),
      ports_(options.ports),
      spare_ports_(options.spare_ports),
      whole_datagram_(options.whole_datagram) {
  const SimFaults& faults = network.faults();
  capabilities_.gso_segments = faults.gso ? kMaxMerged : 1;
  capabilities_.asynchronous_return = faults.asynchronous_return;
  capabilities_.receive_buffer = faults.receive_buffer;
  capabilities_.packet_overhead = kOverhead;
  network.attach(*this, options.node);
  auto datagrams = options.max_datagrams;
  if (datagrams.empty()) datagrams.assign(kAddresses, faults.max_datagram);
  for (std::uint32_t i = 0; i < datagrams.size(); ++i) add_numbered(i, datagrams[i]);
}

void SimNic::add_numbered(std::uint32_t number, std::size_t max_datagram) {
  for (std::uint32_t port = 0; port < ports_; ++port) {
    const bool spare = port + spare_ports_ >= ports_;
    addresses_.push_back(
        {SimNetwork::endpoint(node_, number, port), max_datagram, spare, whole_datagram_});
  }
  numbers_.push_back(number);
  cables_.emplace_back();
  buffered_.resize(addresses_.size(), 0);
}

std::vector<Endpoint> SimNic::routes_to(const Endpoint& remote) const {
  const bool rails = network_.faults().rails;
  const std::uint32_t rail = SimNetwork::rail_of(SimNetwork::place_of(remote).address);
  std::vector<Endpoint> routes;
  for (std::uint32_t i = 0; i < numbers_.size(); ++i) {
    const bool leads_there = !rails || SimNetwork::rail_of(numbers_[i]) == rail;
    const bool is_there = (missing_ >> (i * ports_) & 1) == 0;
    if (!leads_there || !is_there) continue;
    routes.push_back(addresses_[i * ports_].endpoint);
    if (rails) break;
  }
  return routes;
}

std::uint32_t SimNic::now_at(std::uint32_t local_path) const {
  const std::uint32_t rail = SimNetwork::rail_of(numbers_[local_path / ports_]);
  if ((missing_ >> local_path & 1) == 0) return local_path;
  for (std::uint32_t i = 0; i < numbers_.size(); ++i) {
    const bool is_there = (missing_ >> (i * ports_) & 1) == 0;
    if (is_there && SimNetwork::rail_of(numbers_[i]) == rail) {
      return i * ports_ + local_path % ports_;
    }
  }
  return local_path;
}

void SimNic::add_address(std::size_t max_datagram) {
  std::uint32_t next = 0;
  for (const std::uint32_t number : numbers_) {
    next = std::max(next, SimNetwork::rail_of(number) + 1);
  }
  add_numbered(next, max_datagram);
  has_news_ = true;
}

void SimNic::renumber(std::uint32_t i) {
  const std::uint32_t rail = SimNetwork::rail_of(numbers_[i]);
  std::uint32_t next = 0;
  for (const std::uint32_t number : numbers_) {
    if (SimNetwork::rail_of(number) == rail) next = std::max(next, number + SimNetwork::kRails);
  }
  const std::size_t max_datagram = addresses_[i * ports_].max_datagram;
  add_numbered(next, max_datagram);
  set_missing(missing_ | ((std::uint32_t{1} << ports_) - 1) << (i * ports_));
}

std::uint32_t SimNic::index_of(std::uint32_t number) const {
  return static_cast<std::uint32_t>(std::ranges::find(numbers_, number) - numbers_.begin());
}

bool SimNic::has(const SimPlace& place) const {
  return !closed_ && index_of(place.address) < cables_.size() && place.port < ports_;
}

void SimNic::arrive(const SimPlace& from, const SimPlace& to, SimNetwork::Bytes bytes) {
  const std::size_t charge = bytes->size() + kOverhead;
  const std::uint32_t local_path = index_of(to.address) * ports_ + to.port;
  if ((missing_ >> local_path & 1) != 0) return;
  if (buffered_[local_path] + charge > capabilities_.receive_buffer) {
    ++overflows_;
    ++network_.counts_.overflowed;
    return;
  }
  buffered_[local_path] += charge;
  ++network_.counts_.delivered;
  received_.push_back({from, local_path, std::move(bytes)});
}

std::size_t SimNic::send_st(std::span<const TxPacket> packets) {
  if (closed_) return packets.size();
  std::size_t taken = 0;
  for (const TxPacket& packet : packets) {
    Cable& cable = cable_of(packet.local_path);
    cable.free = std::max(cable.free, network_.now());
    cable.full = cable.free - network_.now() > network_.faults().longest_queue;
    if (cable.full) {
      ++network_.counts_.refused;
      leak(packet);
      break;
    }
    launch(packet, cable);
    ++taken;
  }
  return taken;
}

// As when IP has handed on the first fragment of what then found no room: an observer sees it, and
// nobody can put it together.
void SimNic::leak(const TxPacket& packet) {
  if (!network_.tap_) return;
  const std::size_t whole = packet.segment_bytes != 0 ? packet.segment_bytes : packet.bytes;
  auto part = std::make_shared<std::vector<std::byte>>();
  for (const IoSlice& slice : packet.slices) {
    const auto* data = static_cast<const std::byte*>(slice.data);
    const std::size_t more = std::min(slice.bytes, whole / 2 - std::min(whole / 2, part->size()));
    part->insert(part->end(), data, data + more);
  }
  network_.tell(SimNetwork::place_of(addresses_[packet.local_path].endpoint),
                SimNetwork::place_of(*packet.destination), network_.now(), part, "in part");
}

// Splits a super-packet into datagrams and sends each at its turn on the wire.
void SimNic::launch(const TxPacket& packet, Cable& cable) {
  const std::size_t step = packet.alternating ? 2 : packet.slices.size();
  const NicAddress& address = addresses_[packet.local_path];
  if ((missing_ >> packet.local_path & 1) != 0) return;
  const SimPlace from = SimNetwork::place_of(address.endpoint);
  const SimPlace to = SimNetwork::place_of(*packet.destination);
  if (network_.faults().rails &&
      SimNetwork::rail_of(to.address) != SimNetwork::rail_of(from.address)) {
    return;  // no route
  }
  for (std::size_t i = 0; i < packet.slices.size(); i += step) {
    std::vector<std::byte> bytes;
    std::size_t total = 0;
    for (std::size_t j = i; j < i + step; ++j) total += packet.slices[j].bytes;
    if (total > address.max_datagram) {
      ++network_.counts_.too_large;
      continue;
    }
    bytes.reserve(total);
    const bool later = packet.reference != nullptr;
    for (std::size_t j = i; j < i + (later ? 1 : step); ++j) {
      const auto* data = static_cast<const std::byte*>(packet.slices[j].data);
      bytes.insert(bytes.end(), data, data + packet.slices[j].bytes);
    }
    cable.free += SimNetwork::time_for(total, network_.rate_of(from));
    if (later) {
      ++packet.reference->count;
      ++unread_;
      cable.pending.push_back({cable.free + kDmaDelay, from, to, std::move(bytes),
                               packet.slices[i + 1], packet.reference});
    } else {
      network_.carry(from, to, std::move(bytes), cable.free);
    }
  }
}

Time SimNic::next_read() const {
  Time next = kNever;
  if (unread_ == 0) return next;
  for (const Cable& cable : cables_) {
    if (!cable.pending.empty()) next = std::min(next, cable.pending.front().at);
  }
  return next;
}

void SimNic::read_due(Time now) {
  if (unread_ == 0) return;
  for (Cable& cable : cables_) {
    for (; !cable.pending.empty() && cable.pending.front().at <= now; cable.pending.pop_front()) {
      read(cable.pending.front());
      read_.push_back(cable.pending.front().reference);
    }
  }
}

void SimNic::read(Pending& pending) {
  const auto* data = static_cast<const std::byte*>(pending.payload.data);
  pending.header.insert(pending.header.end(), data, data + pending.payload.bytes);
  --unread_;
  network_.carry(pending.from, pending.to, std::move(pending.header),
                 std::max(pending.at, network_.now()));
}

void SimNic::reap_st() {
  for (TxReference* reference : std::exchange(read_, {})) --reference->count;
}

void SimNic::recall_st(TxReference& reference) {
  const auto meant = [&](const Pending& pending) { return pending.reference == &reference; };
  for (Cable& cable : cables_) {
    for (Pending& pending : cable.pending) {
      if (meant(pending)) read(pending);
    }
    std::erase_if(cable.pending, meant);
  }
  std::erase(read_, &reference);
  reference.count = 0;
}

std::size_t SimNic::receive_st(std::span<RxPacket> packets) {
  has_news_ = false;
  views_.clear();
  sources_.clear();
  views_.reserve(packets.size());
  sources_.reserve(packets.size());
  std::size_t count = 0;
  while (count < packets.size() && !received_.empty()) {
    const SimPlace from = received_.front().from;
    const std::uint32_t local_path = received_.front().local_path;
    const std::size_t stride = received_.front().bytes->size();
    std::vector<std::byte>& view = views_.emplace_back();
    std::size_t segments = 0;
    bool whole = true;  // the last segment had the full stride
    while (!received_.empty() && received_.front().from == from &&
           received_.front().local_path == local_path && whole &&
           received_.front().bytes->size() <= stride &&
           segments < (network_.faults().gro ? kMaxMerged : 1)) {
      const std::vector<std::byte>& bytes = *received_.front().bytes;
      view.insert(view.end(), bytes.begin(), bytes.end());
      whole = bytes.size() == stride;
      buffered_[local_path] -= bytes.size() + kOverhead;
      received_.pop_front();
      ++segments;
    }
    sources_.push_back(SimNetwork::endpoint(from.node, from.address, from.port));
    packets[count++] = {view, segments > 1 ? stride : 0, &sources_.back(), local_path};
  }
  return count;
}

// A cable that has had room for a while, and by which nobody has sent since, is no news.
Time SimNic::room_at() const {
  Time next = kNever, before = kNever;
  for (const Cable& cable : cables_) {
    if (!cable.full) continue;
    const Time room = cable.free - network_.faults().longest_queue;
    Time& earliest = room > network_.now() ? next : before;
    earliest = std::min(earliest, room);
  }
  return next != kNever ? next : before;
}

}  // namespace taco::harp
