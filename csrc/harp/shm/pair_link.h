// The link between this process and one other. Records travel in two rings, one each way; large
// messages are either pulled by their receiver straight from the sender's memory, or staged block
// by block in the sender's arena, which the receiver has mapped. In neither way does a process
// write into another's memory.
//
// Owned by the endpoint; owner thread only. Four files: pair_life.cc has connecting and endings,
// pair_link.cc the records, pair_send.cc the large messages that leave, pair_receive.cc those that
// come.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/spsc_ring.h"
#include "harp/quotas.h"
#include "harp/shm/host.h"
#include "harp/shm/layout.h"
#include "harp/shm/link.h"
#include "harp/shm/pair_state.h"
#include "harp/shm/socket.h"

namespace taco::harp {

class PairLink final : public ShmLink {
 public:
  // `id` names the link among the events of the endpoint's epoll set.
  PairLink(ShmHost& host, const ShmAddress& peer, const std::string& description, std::uint32_t id);
  ~PairLink() override;

  // ShmLink
  void attach(LinkEvents& events) override { events_ = &events; }
  void connect() override;
  bool is_connected() const override { return connection_.is(PairConnection::kUp); }
  std::string describe() const override;

  // Link
  std::size_t eager_limit() const override { return kShmEagerBytes; }
  void eager(SendRequest& request) override;
  void bulk(SendRequest& request, SlotId slot, bool offered) override;
  void withdraw(SendRequest& request) override;
  void forget(SlotId slot) override;
  void want(RecvRequest& request) override;
  void offer(const SendRequest& request) override;
  void control(const Control& control) override;
  void notice(std::span<const std::byte> bytes) override;
  void release(Staging& staging) override;
  bool busy() const override;
  void break_off(const std::string& how) override;
  void leave() override;

  // The endpoint calls these.
  const ShmAddress& peer() const { return peer_; }
  std::uint32_t id() const { return id_; }
  int peer_core() const {
    return is_connected() ? peer_page_->core.load(std::memory_order_relaxed) : -1;
  }
  // The peer's greeting came, over its own connection (`socket`) or, when null, over ours.
  void on_greeting(const ShmGreeting& greeting, Result<ShmPeerMemory> memory,
                   ShmPeerProcess process, OwnFd socket);
  void on_socket();         // one of our sockets is readable
  void on_no_descriptor();  // for what the peer's greeting brought
  void on_process_ended();  // the pidfd is readable
  // The parts of a turn; each returns whether it did anything.
  bool drain();         // records of the peer's ring
  std::size_t work();   // one step of each kind of bulk transfer; bytes moved
  bool run_deferred();  // completions, waiting records, connecting, endings
  void flush();         // the doorbell
  bool has_input();     // is there anything to do before sleeping?

 private:
  // Blocks that may be at the peer at one time. Few, so that they stay in the caches.
  static constexpr std::size_t kBlocksOut = 4;

  // The memory that answers to the peer may take while they wait for room in the ring: as much as
  // an honest peer that reads nothing of ours can cause. It has a pull or pieces under way for each
  // receive we told it of, and small messages within its quotas; its questions are few beside
  // these.
  static constexpr std::size_t kMaxAnswerBytes =
      (kMaxReceives + kMaxUnmatched) * sizeof(ShmKeyRecord);

  // The bulk transfer whose turn it is: the one with the least left to do, so that shorter
  // messages overtake longer ones and equal ones finish one after the other; now and then the
  // oldest, so that none starves.
  template <class Queue, class Left>
  static auto whose_turn(Queue& queue, std::uint32_t& turn, const Left& left) {
    constexpr std::uint32_t kOldestEvery = 8;
    if (++turn % kOldestEvery == 0) return queue.begin();
    return std::min_element(queue.begin(), queue.end(),
                            [&](const auto& x, const auto& y) { return left(x) < left(y); });
  }

  // An open large send, or one that has ended but whose blocks are still being read.
  struct Send {
    Machine<PairSendStage> stage;
    std::uint8_t blocks_out = 0;
    std::uint32_t generation = 1;
    std::uint32_t blocks[kBlocksOut];
    SendRequest* request = nullptr;
    SlotId slot;
    std::size_t offset = 0;  // staged so far
  };
  // A piece or a message that waits to be copied to where it belongs.
  struct Incoming {
    ShmPieceRecord record;
    std::size_t done = 0;  // of a pull
  };
  struct Progress {
    std::uint32_t generation = 0;
    std::uint64_t bytes = 0;
  };
  struct Finished {
    SendRequest* request;
    Status status;
  };

  // In use, and not lost yet.
  bool is_open() const {
    return !connection_.is(PairConnection::kIdle) && !connection_.is(PairConnection::kLost);
  }
  bool is_connecting() const { return is_open() && !is_connected(); }
  // Whether what the peer has published is worth reading.
  bool reads() const { return is_connected() && !verdict_.is(PairVerdict::kBroken); }
  bool has_verdict() const { return !verdict_.is(PairVerdict::kNone); }
  // A peer that does not map our memory yet may find that it cannot, and says so by its socket.
  bool peer_is_up() const {
    return is_connected() && peer_half_->maps_peer.load(std::memory_order_acquire) != 0;
  }

  // pair_life.cc
  Status make_half();
  Status greet(int socket);
  void start_connecting();
  void go_up(const ShmGreeting& greeting, ShmPeerMemory memory);
  void part_with_sockets();
  void watch(int fd, std::uint32_t kind);
  void lose(const std::string& why, PairVerdict verdict = PairVerdict::kEnded);
  void miss(const std::string& why) { lose(why, PairVerdict::kMissed); }
  void finish_losing(const Status& why);
  void damaged() { break_off("what it wrote makes no sense"); }
  bool report_end();

  // pair_link.cc
  std::byte* reserve(std::size_t bytes);
  // `answers`: the peer causes it, and no request of ours ends with it.
  void push(const void* record, std::size_t bytes, std::span<const std::byte> data = {},
            bool answers = false);
  void push_slot(ShmRecordType type, SlotId slot = {}, ShmSendId send = {},
                 std::uint64_t offset = 0, bool refused = false);
  bool empty_outbox();
  bool may_answer(std::size_t bytes);
  void dispatch(std::span<const std::byte> record);
  void dispatch_key(std::span<const std::byte> record);
  void dispatch_slot(std::span<const std::byte> record);
  void dispatch_control(std::span<const std::byte> record);

  // pair_send.cc
  Send& open_send(SendRequest& request, SlotId slot, std::uint32_t* index);
  void close_send(std::uint32_t index);
  Send* find_send(ShmSendId id);
  void finish(SendRequest& request, const Status& status);
  void note_want(SlotId slot, bool places);
  bool prefers_pull(const SendRequest& request, SlotId slot) const;
  void start_pull(std::uint32_t index);
  void queue(std::uint32_t index);
  void unqueue(std::uint32_t index);
  std::size_t stage_piece(std::uint32_t index);
  std::uint32_t block_for(Send& send);
  void on_returned(ShmSendId id, std::uint64_t block);
  void on_pulled(ShmSendId id, bool refused);
  void on_cannot_pull(ShmSendId id, std::uint64_t offset, bool never_again);
  void drop_sends();
  std::size_t work_out();

  // pair_receive.cc
  void on_inline(const ShmSlotRecord& record, std::span<const std::byte> data);
  void on_piece(const ShmPieceRecord& record);
  void give_back(const ShmPieceRecord& record, bool refused);
  RecvRequest* receive_for(const ShmPieceRecord& record);
  bool may_advance(const ShmPieceRecord& record, std::size_t bytes);
  void advance(const ShmPieceRecord& record, RecvRequest& request, std::size_t bytes);
  std::size_t take_piece(const ShmPieceRecord& record);
  std::size_t pull_step(Incoming& incoming, bool* over);
  bool still_valid(const ShmPieceRecord& record) const;
  std::size_t work_in();

  ShmHost& host_;
  const ShmAddress peer_;
  const std::string description_;
  const std::uint32_t id_;
  LinkEvents* events_ = nullptr;
  Machine<PairConnection> connection_;
  Machine<PairVerdict> verdict_;
  std::string why_lost_;  // the verdict in words
  Machine<OwnGoodbye> own_goodbye_;
  Machine<PeerGoodbye> peer_goodbye_;

  // Ours: what we write.
  Arena half_memory_;
  ShmHalf* half_ = nullptr;
  OwnFd half_fd_;
  std::optional<RingProducer> ring_out_;
  // The peer's: what we read.
  Mapping peer_half_memory_, peer_arena_;
  const ShmHalf* peer_half_ = nullptr;
  const ShmPage* peer_page_ = nullptr;
  std::optional<RingConsumer> ring_in_;
  OwnFd peer_doorbell_;
  ShmPeerProcess process_;
  OwnFd sockets_[2];           // ours and the peer's, when both connected at once
  bool peer_watches_ = false;  // our process

  std::vector<std::vector<std::byte>> outbox_;  // records that found the ring full, oldest first
  std::size_t outbox_sent_ = 0;
  std::size_t answer_bytes_ = 0;  // in the outbox
  bool reading_ = false;          // the peer's records
  bool starved_ = false;
  bool work_waits_ = false;  // bulk data may be able to move
  bool dirty_ = false;       // something was published or freed since the last flush
  std::uint32_t rung_ = 0;   // the sleep that the doorbell was last rung for

  std::vector<Send> sends_;
  std::vector<std::uint32_t> free_sends_;
  std::vector<std::uint32_t> queue_;  // with something left to stage, oldest first
  std::size_t blocks_out_ = 0;        // of all sends
  std::uint32_t out_turn_ = 0;
  std::vector<Finished> finished_;
  bool peer_pulls_ = false;   // the peer said that it can
  std::vector<bool> places_;  // by the peer's slot index: its receive is a plain copy

  std::vector<Incoming> incoming_;  // oldest first; at most kBlocksOut pieces and kShmPulls pulls
  std::uint32_t in_turn_ = 0;
  std::vector<Progress> progress_;  // by slot index

  Time last_heard_ = 0;  // 0: never
};

// The subject of an event of the endpoint's epoll set: a kind, and a link's id or a descriptor.
enum ShmEventKind : std::uint32_t { kShmListener, kShmCaller, kShmSocket, kShmProcess };

}  // namespace taco::harp
