#include "harp/engine/peer.h"

#include "harp/engine/engine_core.h"

namespace taco::harp {

Peer::Peer(PeerId id, Address address, Reach reach, Route route, MatcherHost& host)
    : id(id),
      address(std::move(address)),
      reach(reach),
      route(route),
      description(shares_host() ? "pid " + std::to_string(this->address.pid) + " on this host (" +
                                      this->address.host_name + ")"
                                : describe(this->address, route.remote.endpoint)),
      matcher(id, host) {}

void Peer::run_st(Transport&) { engine->open_link_st(*this); }

PeerTable::~PeerTable() {
  for (auto& slot : chunks_) {
    Chunk* chunk = slot.load(std::memory_order_relaxed);
    if (chunk == nullptr) break;
    for (auto& peer : *chunk) delete peer.load(std::memory_order_relaxed);
    delete chunk;
  }
}

Peer* PeerTable::find_incarnation(std::uint64_t incarnation) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto known = by_incarnation_.find(incarnation);
  return known == by_incarnation_.end() ? nullptr : known->second;
}

void PeerTable::publish(Peer* peer) {
  auto& slot = chunks_[next_ / kChunkPeers];
  if (slot.load(std::memory_order_relaxed) == nullptr) {
    slot.store(new Chunk{}, std::memory_order_release);
  }
  (*slot.load(std::memory_order_relaxed))[next_ % kChunkPeers].store(peer,
                                                                     std::memory_order_release);
  if (peer->reach == Reach::kMemory) locals_.fetch_add(1, std::memory_order_relaxed);
  ++next_;
}

void PeerTable::release(PeerId id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Peer* peer = find(id);
  // The session stays: the next group with this process finds it warm, and an idle one is small.
  if (peer != nullptr && peer->references > 0) --peer->references;
}

std::size_t PeerTable::size() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return next_;
}

}  // namespace taco::harp
