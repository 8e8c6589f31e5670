// A process's end of every shared-memory link: the listening socket, the doorbell, the arena that
// sends are staged in, and the links themselves. One per engine.
//
// Owner thread (the engine's token holder) only, but for probe() and stats(): any thread.
//
// The engine's duties: call poll() every turn; put doorbell_fd() and events_fd() into its epoll
// set; before it blocks there, call prepare_sleep(), and after it woke, cancel_sleep(). poll()
// looks at the rare events itself about every millisecond, so a busy engine that never sleeps
// misses none.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "harp/secret.h"
#include "harp/shm/link.h"

namespace taco::harp {

using ShmProof = std::array<std::byte, 16>;

// The address that a process publishes so that others on its host can reach it. Plain bytes: copy
// it into the address blob as it is. A process that knows the secret (and the job's key, if there
// is one) may connect, so it travels through the rendezvous store only.
struct ShmAddress {
  std::array<std::byte, 16> name{};  // of the abstract Unix socket
  Secret secret{};
  std::uint64_t incarnation = 0;
  bool operator==(const ShmAddress&) const = default;
};
static_assert(sizeof(ShmAddress) == 40);

// When a receiver reads a large message straight from the sender's memory rather than from the
// arena.
enum class ShmPull : std::uint8_t {
  kNever,
  kWhereFaster,  // see PairLink::prefers_pull
  kAlways,       // where the kernel allows it
};

struct ShmOptions {
  Secret secret{};                                  // random, this process's
  JobKey job_key;                                   // the same on all
  std::uint64_t incarnation = 0;                    // random, this process's
  ShmPull pull = ShmPull::kWhereFaster;             // kNever: TACO_CMA=0
  bool watch_processes = true;                      // false: as on kernels that give no pidfd
  std::size_t arena_bytes = std::size_t{64} << 20;  // most that staged sends may take
};

// Written by the owner thread, read by any.
struct ShmStats {
  std::atomic<std::uint64_t> bytes_sent{0}, bytes_received{0};
  std::atomic<std::uint64_t> messages_sent{0}, messages_received{0};
  std::atomic<std::uint64_t> bytes_staged{0};  // copied into the arena or a ring
  std::atomic<std::uint64_t> bytes_pulled{0};  // read straight from the sender's buffer
  std::atomic<std::uint64_t> doorbells{0};     // rung
  std::atomic<std::uint64_t> sleeps{0};
  std::atomic<std::uint64_t> links{0};  // now connected
};

class ShmEndpoint {
 public:
  static Result<std::unique_ptr<ShmEndpoint>> create(const ShmOptions& options);
  virtual ~ShmEndpoint() = default;

  virtual const ShmAddress& address() const = 0;

  // Is a process of this host, and of a host identity that shares our abstract sockets, listening
  // there? It notices nothing, or a connection at most.
  virtual Status probe(const ShmAddress& peer) const = 0;

  // A link to a peer, not connected yet: its first use connects it, and so does the peer's. Attach
  // its LinkEvents before anything else. At most one link per incarnation. The endpoint owns it.
  // `description` is how messages name the peer; empty: by its pid, once that is known.
  virtual ShmLink* open(const ShmAddress& peer, const std::string& description = {}) = 0;
  // Forgets the link and everything of it, at once and silently; say leave() first to part as
  // friends. Requests still open on it are never completed.
  virtual void close(ShmLink* link) = 0;

  // Releases the staging of a family of sends; its links may be closed by now.
  virtual void release(Staging& staging) = 0;

  // Takes no more connections, for good: whoever calls from now on is refused, those who wait for a
  // link that nobody will open are hung up on, and links that have not said goodbye say it.
  virtual void stop() = 0;

  // An eventfd. Register with EPOLLIN | EPOLLET: it needs no reading, it only wakes, also those of
  // this process that somebody else in it wakes so.
  virtual int doorbell_fd() const = 0;
  // Register with EPOLLIN: connections and deaths. Readable: call on_events().
  virtual int events_fd() const = 0;
  virtual void on_events(Time now) = 0;

  // One turn: takes what arrived, moves at most about 1 MiB of bulk data, rings doorbells. Returns
  // whether anything happened; false means it is worth sleeping.
  virtual bool poll(Time now) = 0;
  // Publishes nothing new, only rings for what has been published; poll() and prepare_sleep() do
  // it too. For an engine that stops polling for a while without sleeping.
  virtual void flush() = 0;

  // When poll() is needed even if nothing comes; kNever: never.
  virtual Time next_deadline() const = 0;
  // True: peers know that this process sleeps, and nothing is waiting; block now. False: there is
  // work, do not block; nothing to cancel.
  virtual bool prepare_sleep() = 0;
  virtual void cancel_sleep() = 0;

  // Tells the peers on which core this process's driver runs; negative: on none.
  virtual void publish_core(int core) = 0;
  // The cores that the connected peers published; valid until the next call.
  virtual std::span<const int> peer_cores() = 0;

  virtual const ShmStats& stats() const = 0;
  // For taco_torch.info: "huge pages by madvise" and the like, of the arena.
  virtual std::string pages() const = 0;
  // For taco_torch.info: why peers' memory is not pulled directly; empty while it is.
  virtual std::string why_no_pull() const = 0;
};

}  // namespace taco::harp
