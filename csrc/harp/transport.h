// HARP's interface to its users (the process group, and harp-perf, which measures it): messages
// between processes, under keys. Nothing here knows torch, sockets or shared memory.
//
// A message is sent under a key and received by a receive posted under the same key; the order in
// which keys are posted does not matter on either side, so operations of different groups never
// block each other. A message that fits one segment travels eagerly, within a small quota; a larger
// one waits at its sender until the receiver asks for it. So a receiver's memory is bounded by what
// it posted and by the quotas (quotas.h).
//
// Functions that end in _st may be called only with the engine's ownership token (engine/token.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/list.h"
#include "base/status.h"
#include "harp/send_stage.h"

namespace taco::harp {

// A remote process incarnation, as one Stack numbers it. Dense, never reused while in use.
using PeerId = std::uint32_t;

// `group` is the group's random id; `tag` is the user's (the process group packs an operation's
// sequence number and a transfer's channel into it; pg/planning/schedule.h). At most one send and
// one receive may be open per (peer, key), and a key is used once in the life of a session: tags
// carry sequence numbers.
struct MessageKey {
  std::uint64_t group = 0;
  std::uint64_t tag = 0;
  bool operator==(const MessageKey&) const = default;
};

// Names one posted receive to its sender: index and generation, so that late data for a receive
// that has ended matches nothing.
struct SlotId {
  std::uint32_t index = 0;
  std::uint32_t generation = 0;
  bool operator==(const SlotId&) const = default;
};

// A message's bytes from a multiple of this to the next.
inline constexpr std::size_t kLineBytes = 128;

// Where the bytes of a receive go, straight from the packet buffer. `offset` and `bytes` are
// multiples of 16, except at the message's end; every byte of a message is consumed exactly once.
struct Sink {
  using Consume = void (*)(const Sink& sink, std::size_t offset, const void* data,
                           std::size_t bytes);
  Consume consume = nullptr;  // place(), or one that reduces or converts
  std::byte* destination = nullptr;
  const std::byte* operand =
      nullptr;  // reduce: destination = operand (op) data; may be destination
  void (*reduce)(void* out, const void* a, const void* b, std::size_t count) = nullptr;
  std::uint32_t element_bytes = 1;
  // True when consume() is a plain copy to destination + offset: a driver that can write there
  // directly may do so instead of calling consume().
  bool contiguous = false;
  // True when somebody reads the destination while the message comes, and takes a line's last word
  // of 8 bytes for the sign that all of the line is there: that word is consumed after the rest, if
  // need be in a call of its own.
  bool by_line = false;

  static Sink place(void* destination);
  // The same by line; words of 8 bytes, if the destination is a multiple of 8, appear whole.
  static Sink place_by_line(void* destination);
  static Sink reduce_into(void* destination, const void* operand,
                          void (*reduce)(void*, const void*, const void*, std::size_t),
                          std::uint32_t element_bytes);
  static Sink discard();
};

// A send of one slice to several peers of this host shares one staged copy: every request of the
// family points to the same Staging, whose fields belong to the shared-memory link. The owner must
// call Transport::release_st when the last request of the family has completed.
struct Staging {
  void* block = nullptr;
  std::uint32_t references = 0;
};

struct SendRequest;
struct RecvRequest;

// Requests are owned by the caller, who keeps them and their memory alive and unmoved until the
// completion has been called, which happens exactly once, on the engine, never inside send_st,
// recv_st or cancel_st themselves. Fields under "transport's own" are HARP's while the request is
// open.
//
// A completed send means the slice may be written again: acknowledged, and every reference
// returned.
struct SendRequest {
  MessageKey key;
  std::uint64_t signature =
      0;  // of the operation; compared with the receive's before any byte moves
  const void* data = nullptr;
  std::size_t bytes = 0;  // at most kMaxMessageBytes; 0 is a message too
  Staging* staging = nullptr;
  void (*on_done)(SendRequest& request, const Status& status) = nullptr;
  void* context = nullptr;

  // transport's own
  Links<SendRequest> links;         // of its Matcher, then of the completion queue
  void* transfer = nullptr;         // the link's, in stage kBulk
  const Status* failure = nullptr;  // the completion queue's, in stage kFinished; null: success
  PeerId peer = 0;
  Machine<SendStage> stage;
};

struct RecvRequest {
  MessageKey key;
  std::uint64_t signature = 0;
  Sink sink;
  // A longer message fails the receive with kMismatch, and nothing is written. A shorter one is
  // taken: who expects just so many bytes compares `bytes`.
  std::size_t max_bytes = 0;
  void (*on_done)(RecvRequest& request, const Status& status) = nullptr;
  void* context = nullptr;
  std::size_t bytes = 0;  // the message's true length, valid at completion

  // transport's own
  Links<RecvRequest> links;         // of the completion queue
  const Status* failure = nullptr;  // the completion queue's; null: success
  PeerId peer = 0;
  SlotId slot;  // while it is open
};

inline constexpr std::size_t kMaxMessageBytes = std::size_t{1} << 30;
inline constexpr std::size_t kMaxNoticeBytes = 1024;

struct Timer {
  void (*on_expiry)(Timer& timer, Time now) = nullptr;
  void* context = nullptr;
  Time deadline = kNever;
  std::size_t heap_index = SIZE_MAX;  // transport's own
};

// Events that the user of a Stack hears without having asked. Called on the engine; must not block.
class Observer {
 public:
  virtual ~Observer() = default;
  // An eager message, an offer of a large one, or a want arrived and no request with this key is
  // open here. Lets the process group compare the operation's signature with what it has run or
  // will run, and match any-source receives. `is_send`: the peer sends (true) or wants (false)
  // under that key.
  virtual void on_unmatched_st(PeerId peer, const MessageKey& key, std::uint64_t signature,
                               bool is_send) = 0;
  // A send and a receive of the same key have different signatures. The local request completes
  // with kMismatch after this call; no byte has moved.
  virtual void on_mismatch_st(PeerId peer, const MessageKey& key, std::uint64_t ours,
                              std::uint64_t theirs) = 0;
  // Open requests with this peer have already been completed with the same status.
  virtual void on_peer_lost_st(PeerId peer, const Status& why) = 0;
  // The peer said goodbye: nothing more will come; that is no failure unless somebody needs it.
  virtual void on_peer_left_st(PeerId peer) = 0;
  // A notice sent by the peer's Observer side (abort, mismatch, arrival report).
  virtual void on_notice_st(PeerId peer, std::span<const std::byte> bytes) = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;

  virtual void send_st(PeerId peer, SendRequest& request) = 0;
  virtual void recv_st(PeerId peer, RecvRequest& request) = 0;
  // Completes an open request with `why` (on the next turn of the loop) and tells the peer. After
  // completion the transport touches neither the request nor its memory.
  virtual void cancel_st(SendRequest& request, const Status& why) = 0;
  virtual void cancel_st(RecvRequest& request, const Status& why) = 0;
  virtual void release_st(Staging& staging) = 0;

  // Any-source receives: is a message of that key (eager, or offered) waiting here for a receive?
  // And: ask the peer to offer the message of that key, now or when it is sent, beyond any quota;
  // on_unmatched_st tells when it did. A large send that nobody wants yet offers itself once
  // anyway, as far as the quota allows.
  virtual bool has_unmatched_st(PeerId peer, const MessageKey& key) const = 0;
  virtual void solicit_st(PeerId peer, const MessageKey& key) = 0;

  // The group is over in this process: none of its requests is open, with any peer, and none will
  // be posted. What peers have sent for it and nobody received is dropped, and so is what still
  // comes, of which on_unmatched_st goes on to tell. A group's id is never used again.
  virtual void forget_group_st(std::uint64_t group) = 0;

  // Reliable, ordered, small and rare; at most kMaxNoticeBytes. A notice may overtake messages that
  // were sent before it, and is told of before the completions that are queued.
  virtual void notify_st(PeerId peer, std::span<const std::byte> bytes) = 0;
  // Is nothing under way with the peer: whatever was sent to it has arrived there, and no
  // completion waits here?
  virtual bool is_idle_st(PeerId peer) const = 0;

  virtual Time now_st() const = 0;                       // the loop's time: read once a turn
  virtual void arm_st(Timer& timer, Time deadline) = 0;  // re-arming moves it
  virtual void disarm_st(Timer& timer) = 0;

  // True when the peer shares this host's memory; decides the link class the planner assumes.
  virtual bool is_local_st(PeerId peer) const = 0;

  // Why nothing more can be exchanged with the peer, as the observer was told, or ok: for whoever
  // comes to need it later than that. One that was lost while nobody needed it may be connected
  // anew.
  virtual Status loss_st(PeerId peer) const = 0;
};

}  // namespace taco::harp
