#include "support/sim_network.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

namespace taco::harp {
namespace {

constexpr std::uint32_t kFirstPort = 4000;
constexpr std::size_t kQuoted = 548;  // of a datagram that was refused

}  // namespace

void SimCounts::add(const SimCounts& other) {
  delivered += other.delivered;
  lost += other.lost;
  duplicated += other.duplicated;
  reordered += other.reordered;
  corrupted += other.corrupted;
  link_dead += other.link_dead;
  refused += other.refused;
  port_full += other.port_full;
  overflowed += other.overflowed;
  too_large += other.too_large;
  unreachable += other.unreachable;
}

Endpoint SimNetwork::endpoint(std::uint32_t node, std::uint32_t address, std::uint32_t port) {
  sockaddr_in place{};
  place.sin_family = AF_INET;
  place.sin_addr.s_addr = htonl(10u << 24 | address << 16 | node);
  place.sin_port = htons(static_cast<std::uint16_t>(kFirstPort + port));
  Endpoint endpoint;
  endpoint.size = sizeof place;
  std::memcpy(endpoint.bytes.data(), &place, sizeof place);
  return endpoint;
}

SimPlace SimNetwork::place_of(const Endpoint& endpoint) {
  sockaddr_in place;
  std::memcpy(&place, endpoint.bytes.data(), sizeof place);
  const std::uint32_t address = ntohl(place.sin_addr.s_addr);
  return {address & 0xffff, address >> 16 & 0xff, ntohs(place.sin_port) - kFirstPort};
}

void SimNetwork::attach(SimNic& nic) {
  nic.node_ = static_cast<std::uint32_t>(nics_.size());
  nics_.push_back(&nic);
  last_arrivals_.resize(nics_.size() * nics_.size() * kMostAddresses, 0);
}

Time& SimNetwork::last_arrival(const SimPlace& from, const SimPlace& to) {
  const std::size_t nodes = nics_.size();
  return last_arrivals_[(from.node * nodes + to.node) * kMostAddresses + to.address];
}

void SimNetwork::kill_link(std::uint32_t from, std::uint32_t to, Time until, std::uint32_t address,
                           std::uint32_t port) {
  dead_.push_back({from, to, address, port, until});
}

void SimNetwork::set_mtu(std::uint32_t from, std::uint32_t to, std::size_t max_datagram,
                         std::uint32_t address) {
  mtus_[link(from, to, address)] = max_datagram;
}

double SimNetwork::rate_of(const SimPlace& from) const {
  const auto rate = rates_.find({from.node, from.address});
  return rate == rates_.end() ? faults_.bytes_per_second : rate->second;
}

void SimNetwork::fly(Flying packet) {
  packet.order = ++order_;
  flying_.push(std::move(packet));
}

bool SimNetwork::vanishes(const SimPlace& from, const SimPlace& to, std::size_t bytes,
                          Time leaves) {
  if (to.node >= nics_.size() || to.address >= kMostAddresses) return true;  // no such host
  for (const std::uint32_t address : {kEvery, to.address}) {
    const auto mtu = mtus_.find(link(from.node, to.node, address));
    if (mtu == mtus_.end() || bytes <= mtu->second) continue;
    ++counts_.too_large;
    return true;
  }
  for (const DeadLink& dead : dead_) {
    const bool meant = (dead.address == kEvery || dead.address == to.address) &&
                       (dead.port == kEvery || dead.port == from.port);
    if (dead.from != from.node || dead.to != to.node || !meant || leaves >= dead.until) continue;
    ++counts_.link_dead;
    return true;
  }
  if (!random_.chance(faults_.loss)) return false;
  ++counts_.lost;
  return true;
}

void SimNetwork::carry(const SimPlace& from, const SimPlace& to, std::vector<std::byte> bytes,
                       Time leaves) {
  if (tap_) tap_(from.node, to.node, to.address, bytes);
  if (vanishes(from, to, bytes.size(), leaves)) return;
  if (random_.chance(faults_.corruption)) {
    ++counts_.corrupted;
    const std::size_t bit = random_.below(8 * bytes.size());
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
  }
  const Stage stage = faults_.port_bytes_per_second > 0 ? Stage::kToSwitch : Stage::kToHost;
  auto shared = std::make_shared<std::vector<std::byte>>(std::move(bytes));
  Flying packet{leaves + faults_.latency, 0, stage, from, to, shared};
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

Time SimNetwork::next_arrival() const {
  Time next = flying_.empty() ? kNever : flying_.top().at;
  for (const SimNic* nic : nics_) next = std::min(next, nic->next_read());
  return next;
}

void SimNetwork::advance(Time now) {
  for (Time next = next_arrival(); next <= now; next = next_arrival()) {
    now_ = std::max(now_, next);
    for (SimNic* nic : nics_) nic->read_due(now_);
    if (flying_.empty() || flying_.top().at > now_) continue;
    Flying packet = flying_.top();
    flying_.pop();
    land(std::move(packet));
  }
  now_ = std::max(now_, now);
}

void SimNetwork::land(Flying packet) {
  switch (packet.stage) {
    case Stage::kToSwitch:
      return leave_switch(std::move(packet));
    case Stage::kToHost:
      if (!nics_[packet.to.node]->has(packet.to)) return refuse(packet);
      return nics_[packet.to.node]->arrive(packet.from, packet.to, std::move(packet.bytes));
    case Stage::kRefused:
      packet.bytes->resize(std::min(packet.bytes->size(), kQuoted));
      nics_[packet.from.node]->refusals_.push_back(
          {endpoint(packet.to.node, packet.to.address, packet.to.port), *packet.bytes});
  }
}

// One queue for each cable to a host, first in, first out.
void SimNetwork::leave_switch(Flying packet) {
  Time& free = ports_free_[{packet.to.node, packet.to.address}];
  const Duration wait = std::max<Duration>(free - packet.at, 0);
  const double waiting = static_cast<double>(wait) / kSecond * faults_.port_bytes_per_second;
  const std::size_t bytes = packet.bytes->size();
  if (waiting + static_cast<double>(bytes) > static_cast<double>(faults_.port_queue)) {
    ++counts_.port_full;
    return;
  }
  free = packet.at + wait + time_for(bytes, faults_.port_bytes_per_second);
  packet.at = free;
  packet.stage = Stage::kToHost;
  fly(std::move(packet));
}

void SimNetwork::refuse(const Flying& packet) {
  ++counts_.unreachable;
  Flying answer = packet;
  answer.stage = Stage::kRefused;
  answer.at = now_ + faults_.latency;
  fly(std::move(answer));
}

}  // namespace taco::harp
