// One remote process as this Stack knows it, and the table of all. A peer is made when somebody
// learns its address and stays until the Stack closes, since its sessions belong to the pair of
// processes, not to a group.
//
// What is const is any thread's; the rest of a Peer is the engine's (token holder only). The table
// finds by id without a lock and locks for everything else.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "harp/address.h"
#include "harp/engine/engine_liveness.h"
#include "harp/engine/interfaces.h"
#include "harp/engine/stack.h"
#include "harp/matching/matcher.h"
#include "harp/self/self_link.h"
#include "harp/session/session.h"

namespace taco::harp {

class EngineCore;

// How a peer is reached: it is this very process, shares this host's memory, or is met by packets.
enum class Reach : std::uint8_t { kSelf, kMemory, kNetwork };

struct Peer final : Task {
  Peer(PeerId id, Address address, Reach reach, Route route, MatcherHost& host);

  const PeerId id;
  const Address address;
  const Reach reach;
  const Route route;              // of kNetwork
  const std::string description;  // for messages
  EngineCore* engine = nullptr;

  // The engine's.
  Matcher matcher;
  std::unique_ptr<Session> session;
  ShmLink* shm = nullptr;
  std::unique_ptr<SelfLink> self;
  Link* link = nullptr;  // whichever of the three is in use; null before the first use
  Suspicion suspicion;
  std::uint32_t requests = 0;  // posted so far

  std::uint32_t references = 1;  // guarded by the table's mutex

  bool shares_host() const { return reach != Reach::kNetwork; }

  // Opens the link, so that the peer's first message finds it.
  void run_st(Transport& transport) override;
};

class PeerTable {
 public:
  PeerTable() = default;
  ~PeerTable();
  PeerTable(const PeerTable&) = delete;
  PeerTable& operator=(const PeerTable&) = delete;

  // Null when there is none. Lock-free.
  Peer* find(PeerId id) const {
    if (id >= kMaxPeers) return nullptr;
    const Chunk* chunk = chunks_[id / kChunkPeers].load(std::memory_order_acquire);
    return chunk == nullptr ? nullptr : (*chunk)[id % kChunkPeers].load(std::memory_order_acquire);
  }
  Peer* find_incarnation(std::uint64_t incarnation) const;

  // Adds a reference when it is known. The peer becomes visible to find() when `make` has returned.
  template <class Make>
  Result<Peer*> add(std::uint64_t incarnation, const Make& make) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (const auto known = by_incarnation_.find(incarnation); known != by_incarnation_.end()) {
      ++known->second->references;
      return known->second;
    }
    if (next_ == kMaxPeers) return Status(Code::kResource, "too many peers in one process");
    Result<std::unique_ptr<Peer>> made = make(next_);
    if (!made.ok()) return made.status();
    Peer* peer = made.value().release();
    publish(peer);
    by_incarnation_.emplace(incarnation, peer);
    return peer;
  }
  void release(PeerId id);

  std::size_t size() const;
  std::size_t local_count() const { return locals_.load(std::memory_order_relaxed); }

  template <class Visit>
  void for_each(const Visit& visit) const {
    for (PeerId id = 0; Peer* peer = find(id); ++id) visit(*peer);
  }

 private:
  static constexpr PeerId kChunkPeers = 256;
  static constexpr PeerId kMaxPeers = 256 * kChunkPeers;
  using Chunk = std::array<std::atomic<Peer*>, kChunkPeers>;

  void publish(Peer* peer);

  std::array<std::atomic<Chunk*>, kMaxPeers / kChunkPeers> chunks_{};
  std::atomic<std::size_t> locals_{0};
  mutable std::mutex mutex_;
  std::unordered_map<std::uint64_t, Peer*> by_incarnation_;  // guarded by mutex_
  PeerId next_ = 0;                                          // guarded by mutex_
};

}  // namespace taco::harp
