#include "harp/engine/peer.h"

#include <utility>

#include "harp/engine/engine_loop.h"

namespace taco::harp {

Peer::Peer(PeerId id, PeerPlan plan, MatcherHost& host)
    : id(id),
      address(std::move(plan.address)),
      reach(plan.reach),
      routes(std::move(plan.routes)),
      description(shares_host() ? "pid " + std::to_string(this->address.pid) + " on this host (" +
                                      this->address.host_name + ")"
                                : describe(this->address, routes.front().remote.endpoint)),
      matcher(id, host) {}

void Peer::run_st(Transport&) {
  opening = false;
  loop->open_link_st(*this);
}

PeerTable::~PeerTable() {
  for (auto& slot : chunks_) {
    Chunk* chunk = slot.load(std::memory_order_relaxed);
    if (chunk == nullptr) break;
    for (auto& peer : *chunk) delete peer.load(std::memory_order_relaxed);
    delete chunk;
  }
}

Peer* PeerTable::refer(std::uint64_t incarnation) {
  std::lock_guard lock(mutex_);
  return refer_locked(incarnation);
}

Peer* PeerTable::refer_locked(std::uint64_t incarnation) {
  const auto known = by_incarnation_.find(incarnation);
  if (known == by_incarnation_.end()) return nullptr;
  ++known->second->references;
  return known->second;
}

Peer* PeerTable::find_incarnation(std::uint64_t incarnation) const {
  std::lock_guard lock(mutex_);
  const auto known = by_incarnation_.find(incarnation);
  return known == by_incarnation_.end() ? nullptr : known->second;
}

PeerId PeerTable::next_id() const {
  const bool again = free_.size() > kRest || next_ == kMaxPeers;
  return again ? free_.front() + kMaxPeers : next_;
}

std::atomic<Peer*>& PeerTable::place_of(PeerId id) {
  auto& slot = chunks_[id % kMaxPeers / kChunkPeers];
  if (slot.load(std::memory_order_relaxed) == nullptr) {
    slot.store(new Chunk{}, std::memory_order_release);
  }
  return (*slot.load(std::memory_order_relaxed))[id % kChunkPeers];
}

void PeerTable::publish(Peer* peer) {
  if (next_ < kMaxPeers && peer->id == next_) {  // ids of places used before go beyond the places
    ++next_;
  } else {
    free_.pop_front();
  }
  place_of(peer->id).store(peer, std::memory_order_release);
  if (peer->reach == Reach::kMemory) locals_.fetch_add(1, std::memory_order_relaxed);
}

bool PeerTable::release(PeerId id) {
  std::lock_guard lock(mutex_);
  Peer* peer = find(id);
  if (peer == nullptr || peer->references == 0 || --peer->references > 0) return false;
  released_.push_back(id);
  return true;
}

std::vector<Peer*> PeerTable::take_released() {
  std::lock_guard lock(mutex_);
  std::vector<Peer*> peers;
  for (const PeerId id : std::exchange(released_, {})) {
    Peer* peer = find(id);
    if (peer != nullptr && peer->references == 0) peers.push_back(peer);
  }
  return peers;
}

bool PeerTable::is_referenced(const Peer& peer) const {
  std::lock_guard lock(mutex_);
  return peer.references > 0;
}

std::unique_ptr<Peer> PeerTable::remove(Peer& peer) {
  std::lock_guard lock(mutex_);
  if (peer.references > 0) return nullptr;
  by_incarnation_.erase(peer.address.incarnation);
  place_of(peer.id).store(nullptr, std::memory_order_release);
  free_.push_back(peer.id);
  if (peer.reach == Reach::kMemory) locals_.fetch_sub(1, std::memory_order_relaxed);
  return std::unique_ptr<Peer>(&peer);
}

std::size_t PeerTable::size() const {
  std::lock_guard lock(mutex_);
  return by_incarnation_.size();
}

}  // namespace taco::harp
