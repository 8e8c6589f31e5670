// One remote process as this Stack knows it, and the table of all peers. A peer is made when its
// address becomes known. Its link belongs to the pair of processes, not to a group: when the last
// group has released the peer, it stays for the next one, until its process ends (engine_peers.cc).
//
// Const members may be read by any thread that holds a reference; all others belong to the engine
// (token holder only). Only the engine removes peers, so it looks them up by id without a lock;
// other threads look them up under the lock of the table.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/cache_line.h"
#include "harp/address.h"
#include "harp/engine/engine_liveness.h"
#include "harp/engine/routes.h"
#include "harp/engine/stack.h"
#include "harp/matching/matcher.h"
#include "harp/self/self_link.h"
#include "harp/session/session.h"

namespace taco::harp {

class EngineLoop;

// How a peer is reached: it is this very process, shares this host's memory, or is reached by
// packets.
enum class Reach : std::uint8_t { kSelf, kMemory, kNetwork };

// The facts from which a peer is made.
struct PeerPlan {
  Address address;
  Reach reach = Reach::kNetwork;
  std::vector<Route> routes;  // of kNetwork: at least one, the best first
};

struct alignas(kCacheLine) Peer final : Task {
  Peer(PeerId id, PeerPlan plan, MatcherHost& host);

  const PeerId id;
  const Address address;
  const Reach reach;
  const std::vector<Route> routes;  // of kNetwork
  const std::string description;    // for messages
  EngineLoop* loop = nullptr;

  // The engine's.
  Matcher matcher;
  std::unique_ptr<Session> session;
  ShmLink* shm = nullptr;
  std::unique_ptr<SelfLink> self;
  Link* link = nullptr;  // whichever of the three is in use; null before the first use
  Suspicion suspicion;
  std::uint32_t requests = 0;  // posted so far
  bool watched = false;        // by Liveness
  bool opening = false;        // submitted as a task, which has not run yet
  Time idle_since = 0;         // nobody has a reference; 0: somebody may have

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

  // The engine. Null when there is none, or none any more. Lock-free.
  Peer* find(PeerId id) const {
    const PeerId place = id % kMaxPeers;
    const Chunk* chunk = chunks_[place / kChunkPeers].load(std::memory_order_acquire);
    if (chunk == nullptr) return nullptr;
    Peer* peer = (*chunk)[place % kChunkPeers].load(std::memory_order_acquire);
    return peer != nullptr && peer->id == id ? peer : nullptr;
  }
  // The engine.
  Peer* find_incarnation(std::uint64_t incarnation) const;
  // Any thread: what `ask` says of the peer, which cannot go meanwhile; `unknown` when there is
  // none.
  template <class Answer, class Ask>
  Answer ask(PeerId id, Answer unknown, const Ask& ask) const {
    std::lock_guard lock(mutex_);
    const Peer* peer = find(id);
    return peer != nullptr ? ask(*peer) : std::move(unknown);
  }

  // Adds a reference when it is known. Otherwise `prepare`, without the lock, finds out what it
  // takes to know the peer, which may take system calls and their time: nobody waits for that,
  // least of all the engine. `make`, under the lock, turns that into a Peer, which then becomes
  // visible to find(). When two threads add the same peer, one of them has prepared in vain.
  template <class Prepare, class Make>
  Result<Peer*> add(std::uint64_t incarnation, const Prepare& prepare, const Make& make) {
    if (Peer* known = refer(incarnation)) return known;
    auto prepared = prepare();
    if (!prepared.ok()) return prepared.status();
    std::lock_guard lock(mutex_);
    if (Peer* known = refer_locked(incarnation)) return known;
    if (by_incarnation_.size() == kMaxPeers) {
      return Status(Code::kResource, "too many peers in one process");
    }
    Peer* peer = make(next_id(), std::move(prepared).value()).release();
    publish(peer);
    by_incarnation_.emplace(incarnation, peer);
    return peer;
  }
  // True when that was the last reference: the engine should look at it.
  bool release(PeerId id);
  // The engine: those whose last reference was given back since the last call.
  std::vector<Peer*> take_released();
  bool is_referenced(const Peer& peer) const;
  // The engine: takes the peer out, unless somebody has taken a reference again (null).
  std::unique_ptr<Peer> remove(Peer& peer);

  std::size_t size() const;
  std::size_t local_count() const { return locals_.load(std::memory_order_relaxed); }

 private:
  static constexpr PeerId kChunkPeers = 256;
  static constexpr PeerId kMaxPeers = 256 * kChunkPeers;
  // An id is a place in the table and how often the place was used before, modulo 2^16. Places are
  // used again in the order in which they became free, and only when there are some: an id that
  // somebody kept too long finds nobody, for millions of peers to come.
  static constexpr std::size_t kRest = 64;
  using Chunk = std::array<std::atomic<Peer*>, kChunkPeers>;

  Peer* refer(std::uint64_t incarnation);  // null: not known
  Peer* refer_locked(std::uint64_t incarnation);
  PeerId next_id() const;
  std::atomic<Peer*>& place_of(PeerId id);
  void publish(Peer* peer);

  std::array<std::atomic<Chunk*>, kMaxPeers / kChunkPeers> chunks_{};
  std::atomic<std::size_t> locals_{0};
  mutable std::mutex mutex_;
  std::unordered_map<std::uint64_t, Peer*> by_incarnation_;  // guarded by mutex_
  std::vector<PeerId> released_;                             // guarded by mutex_
  std::deque<PeerId> free_;                                  // the last users' ids; by mutex_
  PeerId next_ = 0;                                          // place never used; by mutex_
};

}  // namespace taco::harp
