#include "support/sim_network.h"

#include <algorithm>
#include <cstring>

namespace taco::harp {
namespace {

constexpr std::size_t kOverhead = 832;  // what the kernel charges a datagram beyond its bytes
constexpr Duration kDmaDelay = 30 * kMicrosecond;

}  // namespace

void SimCounts::add(const SimCounts& other) {
  delivered += other.delivered;
  lost += other.lost;
  duplicated += other.duplicated;
  reordered += other.reordered;
  corrupted += other.corrupted;
  link_dead += other.link_dead;
  refused += other.refused;
  overflowed += other.overflowed;
  too_large += other.too_large;
}

Endpoint SimNetwork::endpoint(std::uint32_t node, std::uint32_t address) {
  Endpoint endpoint;
  std::memcpy(endpoint.bytes.data(), &node, sizeof node);
  std::memcpy(endpoint.bytes.data() + sizeof node, &address, sizeof address);
  endpoint.size = sizeof node + sizeof address;
  return endpoint;
}

std::uint32_t SimNetwork::address_of(const Endpoint& endpoint) {
  std::uint32_t address;
  std::memcpy(&address, endpoint.bytes.data() + sizeof address, sizeof address);
  return address;
}

std::uint32_t SimNetwork::node_of(const Endpoint& endpoint) {
  std::uint32_t node;
  std::memcpy(&node, endpoint.bytes.data(), sizeof node);
  return node;
}

void SimNetwork::attach(SimNic& nic) {
  nic.node_ = static_cast<std::uint32_t>(nics_.size());
  nics_.push_back(&nic);
}

void SimNetwork::kill_link(std::uint32_t from, std::uint32_t to, Time until,
                           std::uint32_t address) {
  dead_.push_back({from, to, address, until});
}

void SimNetwork::set_mtu(std::uint32_t from, std::uint32_t to, std::size_t max_datagram) {
  mtus_[{from, to}] = max_datagram;
}

Time& SimNetwork::last_arrival(std::uint32_t from, std::uint32_t to) {
  last_arrivals_.resize(nics_.size() * nics_.size(), 0);
  return last_arrivals_[from * nics_.size() + to];
}

void SimNetwork::fly(Flying packet) {
  packet.order = ++order_;
  flying_.push(std::move(packet));
}

void SimNetwork::carry(std::uint32_t from, std::uint32_t to, std::uint32_t address,
                       std::vector<std::byte> bytes, Time leaves) {
  if (tap_) tap_(from, to, address, bytes);
  if (const auto mtu = mtus_.find({from, to}); mtu != mtus_.end() && bytes.size() > mtu->second) {
    ++counts_.too_large;
    return;
  }
  for (const DeadLink& link : dead_) {
    const bool meant = link.address == kEveryAddress || link.address == address;
    if (link.from == from && link.to == to && meant && leaves < link.until) {
      ++counts_.link_dead;
      return;
    }
  }
  if (random_.chance(faults_.loss)) {
    ++counts_.lost;
    return;
  }
  if (random_.chance(faults_.corruption)) {
    ++counts_.corrupted;
    const std::size_t bit = random_.below(8 * bytes.size());
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
  }
  auto shared = std::make_shared<std::vector<std::byte>>(std::move(bytes));
  Flying packet{leaves + faults_.latency, 0, from, to, address, shared};
  if (faults_.jitter > 0) packet.at += random_.between(0, faults_.jitter);
  if (random_.chance(faults_.duplication)) {
    ++counts_.duplicated;
    Flying twin = packet;
    twin.bytes = std::make_shared<std::vector<std::byte>>(*shared);
    twin.at += random_.between(0, faults_.reorder_delay);
    fly(std::move(twin));
  }
  if (random_.chance(faults_.reordering)) {
    ++counts_.reordered;
    packet.at += random_.between(1, faults_.reorder_delay);
  } else {
    Time& last = last_arrival(from, to);
    packet.at = last = std::max(last, packet.at);
  }
  fly(std::move(packet));
}

void SimNetwork::advance(Time now) {
  while (!flying_.empty() && flying_.top().at <= now) {
    const Flying packet = flying_.top();
    flying_.pop();
    now_ = std::max(now_, packet.at);
    nics_[packet.to]->arrive(packet.from, packet.address, packet.bytes);
  }
  now_ = std::max(now_, now);
}

SimNic::SimNic(SimNetwork& network) : network_(network) {
  capabilities_.gso_segments = network.faults().gso ? 44 : 1;
  capabilities_.asynchronous_return = network.faults().asynchronous_return;
  capabilities_.receive_buffer = network.faults().receive_buffer;
  capabilities_.packet_overhead = kOverhead;
  network.attach(*this);
  for (std::uint32_t i = 0; i < kAddresses; ++i) {
    addresses_.push_back({SimNetwork::endpoint(node_, i), network.faults().max_datagram});
  }
}

void SimNic::arrive(std::uint32_t from, std::uint32_t address,
                    std::shared_ptr<std::vector<std::byte>> bytes) {
  if (closed_) return;
  const std::size_t charge = bytes->size() + kOverhead;
  if (buffered_ + charge > capabilities_.receive_buffer) {
    ++overflows_;
    ++network_.counts_.overflowed;
    return;
  }
  buffered_ += charge;
  ++network_.counts_.delivered;
  received_.push_back({from, address, std::move(bytes)});
}

std::size_t SimNic::send_st(std::span<const TxPacket> packets) {
  if (closed_) return packets.size();
  std::size_t taken = 0;
  for (const TxPacket& packet : packets) {
    egress_free_ = std::max(egress_free_, network_.now());
    if (egress_free_ - network_.now() > network_.faults().longest_queue) {
      ++network_.counts_.refused;
      break;
    }
    launch(packet);
    ++taken;
  }
  return taken;
}

bool SimNic::is_full_st(std::uint32_t) const {
  return egress_free_ - network_.now() > network_.faults().longest_queue;
}

// Splits a super-packet into datagrams and sends each at its turn on the wire.
void SimNic::launch(const TxPacket& packet) {
  const std::size_t step = packet.alternating ? 2 : packet.slices.size();
  const std::uint32_t to = SimNetwork::node_of(*packet.destination);
  const std::uint32_t address = SimNetwork::address_of(*packet.destination);
  if (address != packet.local_path) return;  // no route
  for (std::size_t i = 0; i < packet.slices.size(); i += step) {
    std::vector<std::byte> bytes;
    std::size_t total = 0;
    for (std::size_t j = i; j < i + step; ++j) total += packet.slices[j].bytes;
    bytes.reserve(total);
    const bool later = packet.reference != nullptr;
    for (std::size_t j = i; j < i + (later ? 1 : step); ++j) {
      const auto* data = static_cast<const std::byte*>(packet.slices[j].data);
      bytes.insert(bytes.end(), data, data + packet.slices[j].bytes);
    }
    egress_free_ += static_cast<Duration>(static_cast<double>(total) * kSecond /
                                          network_.faults().bytes_per_second);
    if (later) {
      ++packet.reference->count;
      pending_.push_back({egress_free_ + kDmaDelay, to, address, std::move(bytes),
                          packet.slices[i + 1], packet.reference});
    } else {
      network_.carry(node_, to, address, std::move(bytes), egress_free_);
    }
  }
}

void SimNic::flush(Pending& pending) {
  const auto* data = static_cast<const std::byte*>(pending.payload.data);
  pending.header.insert(pending.header.end(), data, data + pending.payload.bytes);
  --pending.reference->count;
  network_.carry(node_, pending.to, pending.address, std::move(pending.header),
                 std::max(pending.at, network_.now()));
}

void SimNic::reap_st() {
  while (!pending_.empty() && pending_.front().at <= network_.now()) {
    flush(pending_.front());
    pending_.pop_front();
  }
}

void SimNic::recall_st(TxReference& reference) {
  for (Pending& pending : pending_) {
    if (pending.reference == &reference) flush(pending);
  }
  std::erase_if(pending_, [&](const Pending& p) { return p.reference == &reference; });
}

std::size_t SimNic::receive_st(std::span<RxPacket> packets) {
  views_.clear();
  sources_.clear();
  views_.reserve(packets.size());
  sources_.reserve(packets.size());
  std::size_t count = 0;
  while (count < packets.size() && !received_.empty()) {
    const std::uint32_t from = received_.front().from, address = received_.front().address;
    const std::size_t stride = received_.front().bytes->size();
    std::vector<std::byte>& view = views_.emplace_back();
    std::size_t segments = 0;
    bool whole = true;  // the last segment had the full stride
    while (!received_.empty() && received_.front().from == from &&
           received_.front().address == address && whole &&
           received_.front().bytes->size() <= stride &&
           segments < (network_.faults().gro ? 44u : 1u)) {
      const std::vector<std::byte>& bytes = *received_.front().bytes;
      view.insert(view.end(), bytes.begin(), bytes.end());
      whole = bytes.size() == stride;
      buffered_ -= bytes.size() + kOverhead;
      received_.pop_front();
      ++segments;
    }
    sources_.push_back(SimNetwork::endpoint(from, address));
    packets[count++] = {view, segments > 1 ? stride : 0, &sources_.back(), address};
  }
  return count;
}

Time SimNic::wake_time() const { return pending_.empty() ? kNever : pending_.front().at; }

}  // namespace taco::harp
