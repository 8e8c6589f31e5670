#include "support/sim_network.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "harp/session/wire.h"

namespace taco::harp {
namespace {

constexpr std::uint32_t kFirstPort = 4000;
constexpr std::size_t kQuoted = 548;  // of a datagram that was refused
constexpr std::uint64_t kFar = 1000;  // packets

bool is_trusted_payload(std::span<const std::byte> packet) {
  return packet.size() >= sizeof(wire::Header) &&
         (packet[offsetof(wire::Header, flags)] & std::byte{wire::kTrusted}) != std::byte{0};
}

}  // namespace

void SimCounts::add(const SimCounts& other) {
  sent += other.sent;
  bursts += other.bursts;
  burst_lost += other.burst_lost;
  far_reordered += other.far_reordered;
  forged += other.forged;
  trusted += other.trusted;
  delivered += other.delivered;
  lost += other.lost;
  duplicated += other.duplicated;
  reordered += other.reordered;
  corrupted += other.corrupted;
  link_dead += other.link_dead;
  refused += other.refused;
  port_full += other.port_full;
  uplink_full += other.uplink_full;
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

void SimNetwork::attach(SimNic& nic, std::uint32_t node) {
  nic.node_ = node;
  if (node < nics_.size()) {
    nics_[node] = &nic;
    return;
  }
  nic.node_ = static_cast<std::uint32_t>(nics_.size());
  nics_.push_back(&nic);
  cords_.resize(nics_.size() * nics_.size() * kRails);
}

void SimNetwork::detach(const SimNic& nic) {
  if (nics_[nic.node_] == &nic) nics_[nic.node_] = nullptr;
}

SimNetwork::Cord& SimNetwork::cord(const SimPlace& from, const SimPlace& to) {
  const std::size_t nodes = nics_.size();
  return cords_[(from.node * nodes + to.node) * kRails + rail_of(to.address)];
}

void SimNetwork::kill_link(std::uint32_t from, std::uint32_t to, Time until, std::uint32_t address,
                           std::uint32_t port) {
  std::erase_if(dead_, [&](const DeadLink& dead) { return dead.until <= now_; });
  dead_.push_back({from, to, address, port, until});
}

void SimNetwork::set_mtu(std::uint32_t from, std::uint32_t to, std::size_t max_datagram,
                         std::uint32_t address) {
  mtus_[link(from, to, address)] = max_datagram;
}

double SimNetwork::rate_of(const SimPlace& from) const {
  const auto rate = rates_.find({from.node, rail_of(from.address)});
  return rate == rates_.end() ? faults_.bytes_per_second : rate->second;
}

void SimNetwork::fly(Flying packet) {
  packet.order = ++order_;
  flying_.push(std::move(packet));
}

bool SimNetwork::is_dead(const SimPlace& from, const SimPlace& to, Time leaves) const {
  return std::any_of(dead_.begin(), dead_.end(), [&](const DeadLink& dead) {
    const bool meant = (dead.address == kEvery || dead.address == rail_of(to.address)) &&
                       (dead.port == kEvery || dead.port == from.port);
    return dead.from == from.node && dead.to == to.node && meant && leaves < dead.until;
  });
}

bool SimNetwork::is_in_burst(const SimPlace& from, const SimPlace& to) {
  if (faults_.burst == 0) return false;
  Cord& link = cord(from, to);
  if (link.burst_left == 0 && random_.chance(faults_.burst)) {
    ++counts_.bursts;
    link.burst_left = 1 + static_cast<std::uint32_t>(random_.below(faults_.longest_burst));
  }
  if (link.burst_left == 0) return false;
  --link.burst_left;
  return true;
}

const char* SimNetwork::vanishes(const SimPlace& from, const SimPlace& to, std::size_t bytes,
                                 Time leaves) {
  if (to.node >= nics_.size()) return "no such host";
  for (const std::uint32_t address : {kEvery, to.address}) {
    const auto mtu = mtus_.find(link(from.node, to.node, address));
    if (mtu == mtus_.end() || bytes <= mtu->second) continue;
    ++counts_.too_large;
    return "too large for its link";
  }
  if (is_dead(from, to, leaves)) {
    ++counts_.link_dead;
    return "its link is dead";
  }
  if (is_in_burst(from, to)) {
    ++counts_.burst_lost;
    return "lost in a burst";
  }
  if (!random_.chance(faults_.loss)) return nullptr;
  ++counts_.lost;
  return "lost";
}

void SimNetwork::tell(const SimPlace& from, const SimPlace& to, Time leaves, const Bytes& bytes,
                      const std::string& fate) const {
  if (tap_) tap_({from, to, leaves, *bytes, fate});
}

void SimNetwork::carry(const SimPlace& from, const SimPlace& to, std::vector<std::byte> bytes,
                       Time leaves) {
  ++counts_.sent;
  const std::size_t size = bytes.size();
  auto shared = std::make_shared<std::vector<std::byte>>(std::move(bytes));
  if (const char* const why = vanishes(from, to, size, leaves)) {
    return tell(from, to, leaves, shared, why);
  }
  std::string fate;
  const Bytes whole = shared;
  if (random_.chance(faults_.corruption)) {
    ++counts_.corrupted;
    fate += " corrupted";
    shared = std::make_shared<std::vector<std::byte>>(*whole);
    const bool is_trusted = faults_.udp_checksums && is_trusted_payload(*whole);
    counts_.trusted += is_trusted ? 1 : 0;
    const std::size_t bit = random_.below(8 * (is_trusted ? sizeof(wire::Header) : size));
    (*shared)[bit / 8] ^= std::byte{1} << (bit % 8);
  }
  const Stage stage = first_stage(from, to);
  Cord& link = cord(from, to);
  Flying packet{leaves + faults_.latency, 0, stage, from, to, shared, ++link.departed};
  if (faults_.jitter > 0) packet.at += random_.between(0, faults_.jitter);
  if (random_.chance(faults_.duplication)) {
    ++counts_.duplicated;
    fate += " duplicated";
    Flying twin = packet;
    twin.bytes = std::make_shared<std::vector<std::byte>>(*shared);
    twin.at += random_.between(0, faults_.reorder_delay);
    twin.departure = 0;
    fly(std::move(twin));
  }
  if (random_.chance(faults_.reordering)) {
    ++counts_.reordered;
    fate += " reordered";
    packet.at += random_.between(1, faults_.reorder_delay);
  } else {
    packet.at = link.last_arrival = std::max(link.last_arrival, packet.at);
  }
  tell(from, to, leaves, whole, fate.empty() ? fate : fate.substr(1));
  fly(std::move(packet));
}

void SimNetwork::forge(const SimPlace& from, const SimPlace& to, std::vector<std::byte> bytes) {
  if (to.node >= nics_.size()) return;
  ++counts_.forged;
  auto shared = std::make_shared<std::vector<std::byte>>(std::move(bytes));
  tell(from, to, now_, shared, "forged");
  fly({now_ + faults_.latency, 0, Stage::kToHost, from, to, std::move(shared)});
}

// How many that left later have arrived earlier; those that were lost on the way count too.
void SimNetwork::note_order(const Flying& packet) {
  if (packet.departure == 0) return;
  Cord& link = cord(packet.from, packet.to);
  if (link.newest_arrived >= packet.departure + kFar) ++counts_.far_reordered;
  link.newest_arrived = std::max(link.newest_arrived, packet.departure);
}

Time SimNetwork::next_arrival() const {
  Time next = flying_.empty() ? kNever : flying_.top().at;
  for (const SimNic* nic : nics_) {
    if (nic != nullptr) next = std::min(next, nic->next_read());
  }
  return next;
}

void SimNetwork::advance(Time now) {
  for (Time next = next_arrival(); next <= now; next = next_arrival()) {
    now_ = std::max(now_, next);
    for (SimNic* nic : nics_) {
      if (nic != nullptr) nic->read_due(now_);
    }
    if (flying_.empty() || flying_.top().at > now_) continue;
    Flying packet = flying_.top();
    flying_.pop();
    land(std::move(packet));
  }
  now_ = std::max(now_, now);
}

void SimNetwork::land(Flying packet) {
  switch (packet.stage) {
    case Stage::kToUplink:
    case Stage::kFromUplink:
      return cross_uplink(std::move(packet));
    case Stage::kToSwitch:
      return leave_switch(std::move(packet));
    case Stage::kToHost:
      note_order(packet);
      if (nics_[packet.to.node] == nullptr) return refuse(packet);
      if (!nics_[packet.to.node]->has(packet.to)) return refuse(packet);
      if (refusing_.contains({packet.to.node, rail_of(packet.to.address)})) return refuse(packet);
      return nics_[packet.to.node]->arrive(packet.from, packet.to, std::move(packet.bytes));
    case Stage::kRefused:
      if (packet.from.node >= nics_.size() || nics_[packet.from.node] == nullptr) return;
      packet.bytes->resize(std::min(packet.bytes->size(), kQuoted));
      nics_[packet.from.node]->refusals_.push_back(
          {endpoint(packet.to.node, packet.to.address, packet.to.port), *packet.bytes});
  }
}

SimNetwork::Stage SimNetwork::first_stage(const SimPlace& from, const SimPlace& to) const {
  const std::uint32_t hosts = faults_.hosts_a_switch;
  if (hosts > 0 && from.node / hosts != to.node / hosts) return Stage::kToUplink;
  return faults_.port_bytes_per_second > 0 ? Stage::kToSwitch : Stage::kToHost;
}

// As switches do: the same for all packets of a conversation, and the same every time.
std::uint32_t SimNetwork::uplink_of(const SimPlace& from, const SimPlace& to) const {
  std::uint64_t hash = hash_seed_;
  for (const std::uint32_t field :
       {from.node, from.address, from.port, to.node, to.address, to.port}) {
    hash = SimRandom(hash ^ field).next();
  }
  return static_cast<std::uint32_t>(hash % faults_.uplinks);
}

// A queue, first in, first out, that is empty at `free`. False: there is no room for the packet;
// else it leaves the queue at packet.at.
bool SimNetwork::queue_up(Time& free, Flying& packet, double bytes_per_second, std::size_t room) {
  const Duration wait = std::max<Duration>(free - packet.at, 0);
  const double waiting = static_cast<double>(wait) / kSecond * bytes_per_second;
  const std::size_t bytes = packet.bytes->size();
  if (waiting + static_cast<double>(bytes) > static_cast<double>(room)) return false;
  packet.at = free = packet.at + wait + time_for(bytes, bytes_per_second);
  return true;
}

// One queue for each cable to a host.
void SimNetwork::leave_switch(Flying packet) {
  Time& free = ports_free_[{packet.to.node, packet.to.address}];
  if (!queue_up(free, packet, faults_.port_bytes_per_second, faults_.port_queue)) {
    ++counts_.port_full;
    return;
  }
  packet.stage = Stage::kToHost;
  fly(std::move(packet));
}

// Up from the sender's switch to the spine, or down from there to the receiver's.
void SimNetwork::cross_uplink(Flying packet) {
  const bool up = packet.stage == Stage::kToUplink;
  const std::uint32_t uplink = uplink_of(packet.from, packet.to);
  const std::uint32_t host = up ? packet.from.node : packet.to.node;
  Time& free = (up ? uplinks_free_ : downlinks_free_)[{host / faults_.hosts_a_switch, uplink}];
  if (!queue_up(free, packet, faults_.uplink_bytes_per_second, faults_.uplink_queue)) {
    ++counts_.uplink_full;
    return;
  }
  const Stage last = faults_.port_bytes_per_second > 0 ? Stage::kToSwitch : Stage::kToHost;
  packet.stage = up ? Stage::kFromUplink : last;
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
