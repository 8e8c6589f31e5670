// The state that all sessions of one engine share and the calls that they make to it: the Nic,
// buffers, credit, the turn's time, timers, and the list of sessions that have something to
// transmit. EngineLoop implements the pure virtuals. Owner thread only.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/list.h"
#include "harp/byte_pool.h"
#include "harp/nic.h"
#include "harp/session/call_pace.h"
#include "harp/session/flow.h"
#include "harp/session/message.h"
#include "harp/session/proof.h"
#include "harp/session/wire.h"
#include "harp/transport.h"

namespace taco::harp {

class Session;

// Since the engine was made. Written by the owner only.
struct ProtocolCounters {
  std::uint64_t bytes_sent = 0, bytes_received = 0;  // payload, retransmissions included
  std::uint64_t packets_sent = 0, packets_received = 0;
  std::uint64_t retransmits = 0;           // segments and small packets sent again
  std::uint64_t spurious_retransmits = 0;  // whose first copy turned out to have arrived
  std::uint64_t probes = 0;                // tail-loss probes (pings; they resend no data)
  std::uint64_t checksum_failures = 0, malformed = 0;
  std::uint64_t forged = 0;    // sealed packets whose tag is wrong, for damage or otherwise
  std::uint64_t unsealed = 0;  // packets sealed, or checked, otherwise than the session wants
  std::uint64_t early = 0;     // came before their session knew its keys
  std::uint64_t unproven = 0;  // hellos without a valid proof
  std::uint64_t resets_sent = 0, resets_received = 0;
  std::uint64_t other_versions = 0;  // packets of another version of the wire
  std::uint64_t duplicates = 0;      // packets or segments that had been received before
  std::uint64_t late = 0;            // segments for receives that had ended
  std::uint64_t nic_full = 0;        // packets the Nic refused for now
  std::uint64_t paths_proved = 0;    // further paths, and those that have come back
  std::uint64_t paths_left = 0;      // fell silent while others answered
  std::uint64_t paths_moved = 0;     // to other ports of the same addresses
};

// A session's places in the lists of the engine's.
struct SessionPlaces {
  Session* session = nullptr;
  Links<SessionPlaces> ready, awake;
  bool may_be_busy = false;
};

class SessionHost {
 public:
  SessionHost(Nic& nic, BytePool& buffers);
  virtual ~SessionHost() = default;

  // As Transport's, see transport.h. arm() moves an armed timer.
  virtual void arm(Timer& timer, Time deadline) = 0;
  virtual void disarm(Timer& timer) = 0;
  virtual std::uint64_t random() = 0;  // unguessable
  // The Nic's addresses that lead to that one, the best first; each by the first of its ports.
  virtual std::vector<std::uint32_t> ways_to(const Endpoint& remote) = 0;
  // The same for each of several, of one moment.
  virtual std::vector<std::vector<std::uint32_t>> ways_to_each(std::span<const Endpoint> remotes);
  // Where that process said it listens, when it began.
  virtual std::vector<Endpoint> published_by(std::uint64_t incarnation) = 0;
  // Once a session: its paths are there, or those that are not have had long enough.
  virtual void on_paths_opened(const Session& /*session*/) {}

  Time now() const { return now_; }
  void set_now(Time now) {  // once a turn, before anything else
    now_ = now;
    credit_.set_now(now);
  }

  // Gives every ready session one bounded turn to transmit. False when nothing is left that could
  // be sent now; `nic_full()` then says whether full sockets keep somebody from it.
  bool run_transmits();
  bool nic_full() const { return nic_full_; }
  bool has_ready() const { return !ready_.empty(); }
  bool has_ready_eager() const;  // a ready session has small messages
  // Something of some session's is under way that its peer waits for. Looks at those sessions only
  // that had something to transmit since they were looked at last.
  bool any_busy();
  std::size_t to_look_at() const { return to_look_at_; }
  std::size_t awake() const { return awake_.size(); }  // sessions whose time passes

  // A session has something to tell before it hears more.
  void press() { pressing_ = true; }
  bool take_pressing() { return std::exchange(pressing_, false); }

  // Sessions whose time passes hear that the engine's stood still.
  void tell_of_gap(Duration late, Duration away);

  // The Nic's addresses (bit i: the i-th) that were not there at the start.
  std::uint32_t late() const { return late_; }

  Nic& nic() { return nic_; }
  const Nic& nic() const { return nic_; }
  BytePool& buffers() { return buffers_; }
  // Memory kept from messages that are no more for those to come; bounded, whatever the number of
  // sessions.
  std::size_t bytes_kept() const {
    return sends_.bytes_kept() + receives_.bytes_kept() + sealed_.capacity();
  }
  // Where packets are sealed, a run at a time, and opened by a key that may turn out to be the
  // wrong one. The next call for more may move it.
  std::span<std::byte> sealing_buffer(std::size_t bytes) {
    if (sealed_.size() < bytes) sealed_.resize(bytes);
    return std::span(sealed_).first(bytes);
  }
  CreditPool& credit() { return credit_; }
  ProtocolCounters& counters() { return counters_; }
  const ProtocolCounters& counters() const { return counters_; }
  const std::vector<Session*>& sessions() const { return sessions_; }
  // The one whose packets carry that connection; null: none. Anybody may ask, so it is found soon.
  Session* session_to(std::uint64_t peer_connection) const;

 protected:
  void add_late(std::uint32_t late) { late_ |= late; }

 private:
  friend class Session;
  static constexpr std::size_t kRunSegments = 64;
  struct PieceHeader {
    wire::Header header;
    wire::FragmentDescriptor piece;
  };
  static_assert(offsetof(PieceHeader, piece) == sizeof(wire::Header));
  // Where packets are put together, one at a time: a packet is sent or refused before the next.
  struct Scratch {
    std::array<wire::Header, kRunSegments> headers;
    std::array<PieceHeader, kRunSegments> piece_headers;
    std::array<IoSlice, 2 * kRunSegments> slices;
    std::array<TxPacket, kRunSegments> packets;
    std::array<std::byte, wire::kMinDatagram> body;
  };
  void add(Session& session);
  void remove(Session& session);
  void know_by_peer_connection(Session& session);
  auto place_of(std::uint64_t peer_connection) const;
  void make_ready(Session& session);
  void wake(Session& session);
  void let_rest(Session& session);
  bool is_stopped(const Session& session) const;
  void share_credit();

  Nic& nic_;
  BytePool& buffers_;
  CreditPool credit_;
  CallPace calls_;
  ProtocolCounters counters_;
  ObjectPool<BulkSend> sends_;
  ObjectPool<RecvState> receives_;
  Scratch scratch_;
  std::vector<std::byte> sealed_;
  Time now_ = 0;
  bool pressing_ = false;
  std::vector<Session*> sessions_;
  std::vector<Session*> by_peer_connection_;  // those established, the least first
  List<SessionPlaces, &SessionPlaces::ready> ready_;
  // Those that look at the time; first those of them that may be busy, which others never are.
  List<SessionPlaces, &SessionPlaces::awake> awake_;
  std::size_t to_look_at_ = 0;
  // In this turn: the sessions that found a socket full, and the Nic's addresses that are (bit i:
  // the i-th).
  std::vector<Session*> stopped_;
  std::uint32_t full_locals_ = 0;
  std::uint32_t late_ = 0;
  bool nic_full_ = false;
};

}  // namespace taco::harp
