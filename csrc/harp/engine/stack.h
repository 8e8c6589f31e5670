// The Stack: an engine of HARP with all that it has, its thread, sockets, shared memory, sessions
// and buffers. A process has one, or as many as TACO_HARP_ENGINES says: to others each is a process
// by itself, and they share nothing, so that each can keep a core busy (docs/decisions/0014).
// Groups use a Stack, and cost it nothing; which one a group uses, held_stacks.h says.
//
// Creating a Stack starts its engine's thread; importing the library starts none. A forked child
// finds the Stack disabled: every descriptor closed, every call a clear error (see fork.cc).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "harp/service.h"
#include "harp/transport.h"

namespace taco::harp {

// Work for the engine, submitted from any thread through a lock-free queue. The object stays alive
// and unmoved until run_st has been called; it may be submitted again after that.
class Task {
 public:
  virtual ~Task() = default;
  virtual void run_st(Transport& transport) = 0;

 private:
  friend class SubmitQueue;
  std::atomic<Task*> next_{nullptr};
};

// Something a caller waits for. Set once, on the engine or elsewhere.
class Event {
 public:
  bool is_set() const { return set_.load(std::memory_order_acquire); }
  void set() { set_.store(true, std::memory_order_release); }

 private:
  std::atomic<bool> set_{false};
};

class Engine {
 public:
  virtual ~Engine() = default;

  // Any thread. `caller_will_wait` promises that this thread calls wait() at once, which then
  // drives the engine inline: nobody is woken for it.
  virtual void submit(Task& task, bool caller_will_wait) = 0;

  // Any thread but the engine's own, without the GIL and without any lock that a Task or a
  // completion takes. Drives the engine inline when nobody else does, until `event` is set or
  // `deadline` passes. Returns event.is_set(). Code that sets the event on the engine calls
  // wake_waiters() after, if the waiter may be asleep rather than driving.
  virtual bool wait(const Event& event, Time deadline) = 0;
  virtual void wake_waiters() = 0;

  // Any thread but the engine's own. Drives the engine by one turn, if nobody else does; true when
  // anything happened. Whoever polls again and again, at least once a millisecond, has the engine
  // for itself: no thread is woken by what it submits, or by what arrives. Where it stops, the
  // engine's own thread goes on a millisecond later. Where the engine's thread has a core of its
  // own, that goes on driving, and this does nothing.
  virtual bool poll() = 0;

  virtual Transport& transport() = 0;  // for _st calls from within run_st and completions
  virtual bool in_engine() const = 0;  // does this thread hold the token?
};

struct StackOptions {
  std::vector<std::string>
      interfaces;  // names to use, in order; empty: the route to `master` decides
  std::vector<std::string> excluded_interfaces;
  std::string master;  // host the store lives on; "" on one host
  enum class Force { kAuto, kShm, kUdp } transport = Force::kAuto;
  std::string driver = "auto";  // see network_named()
  std::string host_id;          // overrides the host identity
  Duration peer_timeout = 10 * kSecond;
  int engines = 1;         // how many a process has
  int engine = 0;          // which of them this is to be
  std::vector<int> cores;  // by engine, each for its thread alone; empty: wherever there is room
  static Result<StackOptions> from_env();
};

// Counters since the Stack was made; taco_torch.Stats says what each of them means.
struct StackStats {
  std::uint64_t bytes_sent = 0, bytes_received = 0;
  std::uint64_t packets_sent = 0, packets_received = 0;
  std::uint64_t retransmits = 0, spurious_retransmits = 0;
  std::uint64_t checksum_failures = 0, refused_packets = 0, duplicates = 0;
  std::uint64_t bytes_copied = 0;      // of eager messages that had to wait for their receive
  std::uint64_t socket_overflows = 0;  // SO_RXQ_OVFL
  std::uint64_t shm_bytes = 0, shm_messages = 0;
  std::uint64_t doorbells = 0, sleeps = 0;
  std::uint64_t sessions = 0, shm_links = 0;
  std::uint64_t peers = 0;               // known, needed or not
  std::uint64_t credit_outstanding = 0;  // bytes that all peers together may send unasked
  // At this moment: what peers have sent, offered, asked for or blocked that matches no request
  // here.
  std::uint64_t unmatched = 0;
  // The largest datagram that is known to reach every peer in contact over the network; 0: none is.
  std::uint64_t path_bytes = 0;
  // Over the network: by which peers are reached now, how often one was left because it had fallen
  // silent while others answered, and how often one went to other ports because it was slow.
  std::uint64_t paths = 0, paths_left = 0, paths_moved = 0;

  // The narrower of two path_bytes.
  static std::uint64_t narrower(std::uint64_t a, std::uint64_t b) {
    return a == 0 || b == 0 ? std::max(a, b) : std::min(a, b);
  }
};

// A network interface that messages leave by.
struct UsedInterface {
  std::string name;
  std::uint32_t mbits = 0;             // 0: not known
  std::string pci;                     // its PCI device, a folder of /sys; "": none
  std::uint64_t hardware_address = 0;  // 0: none
};

class Stack {
 public:
  // The process's Stack for options.engine, made on first use and again after close() of the last
  // user.
  static Result<std::shared_ptr<Stack>> acquire(const StackOptions& options);
  virtual ~Stack() = default;

  // Opaque bytes (< 1 KiB) a peer needs to reach this process: incarnation id, host identity, UDP
  // addresses as of now, shared-memory socket, secret. Published through the rendezvous store only.
  virtual std::string address() const = 0;

  // Any thread. The same incarnation gives the same id. Sessions are made on first use, not here.
  // Errors: kVersionMismatch (names both versions), kInvalidArgument (damaged address), kRendezvous
  // (another host reachable only over loopback; the transport forced by TACO_TRANSPORT cannot reach
  // it).
  virtual Result<PeerId> add_peer(std::string_view address) = 0;
  // Balances add_peer. A peer without a user is kept while its process lives; after that its id is
  // unknown here.
  virtual void release_peer(PeerId peer) = 0;
  virtual bool is_local(PeerId peer) const = 0;         // same host identity and shm allowed
  virtual std::string host_of(PeerId peer) const = 0;   // host identity, for topology
  virtual std::string describe(PeerId peer) const = 0;  // "10.0.0.2:41234 (pid 77 on nodeb)"
  virtual std::string host() const = 0;                 // this process's host identity
  virtual std::uint64_t incarnation() const = 0;        // first 8 bytes of this process's id
  virtual std::uint64_t incarnation_of(PeerId peer) const = 0;

  virtual Engine& engine() = 0;
  // Before the service's first add_peer; null to detach.
  virtual void set_observer(Service service, Observer* observer) = 0;
  virtual StackStats stats() const = 0;
  virtual std::string transport_summary() const = 0;  // for the start-up line: "shm+udp(eth0)"
  // As of the start, the best first: peers are reached through that wherever a route allows. None
  // where shared memory is the only way.
  virtual std::vector<UsedInterface> interfaces() const { return {}; }

  // Ok while the Stack can be used; kAborted after close(), and in a forked child of the process
  // that made it. Then waits return at once and submitted tasks never run.
  virtual Status usable() const { return {}; }

  // Goodbye to every peer, linger until acknowledged (1 s at most), join the threads. Idempotent.
  virtual void close() = 0;
};

}  // namespace taco::harp
