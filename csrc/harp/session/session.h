// The conversation with one remote process over packets: handshake, reliability, flow and
// congestion control. Implements Link for the Matcher. Knows no socket and no clock: packets come
// in through on_packets(), go out through SessionHost::nic(), time is SessionHost::now(); so the
// same object serves UDP and the simulator.
//
// Kept here is what packets carry, whichever way they take: handshake, credit, messages. The way
// itself, from packet numbers to the congestion window, is a Path: a session has one or several.
//
// Made by the engine on first use of a peer, or when the peer's hello arrives; starts connecting
// at once. Owner thread only. The engine finds it by connection_id() for every packet but a hello,
// and by the hello's `sender` incarnation (after checking its proof) for a hello.
//
// Promises: every byte of a bulk message reaches its Sink exactly once, after its checksum; a
// finished request's memory is not touched again; losing the peer is reported once, through
// LinkEvents::on_lost, never while packets are being read by others.
#pragma once

#include <cstdint>
#include <forward_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "harp/link.h"
#include "harp/session/datagrams.h"
#include "harp/session/flow.h"
#include "harp/session/handshake.h"
#include "harp/session/message.h"
#include "harp/session/path.h"
#include "harp/session/path_set.h"
#include "harp/session/reassembly.h"
#include "harp/session/repathing.h"
#include "harp/session/sealing.h"
#include "harp/session/send_queue.h"
#include "harp/session/sent_packets.h"
#include "harp/session/session_host.h"
#include "harp/session/session_life.h"
#include "harp/session/small_packets.h"
#include "harp/session/wire.h"

namespace taco::harp {

struct SessionConfig {
  std::uint64_t own_incarnation = 0;
  std::uint64_t peer_incarnation = 0;
  PairKey key{};  // what hellos are proved with, and keys derived from
  Security security = Security::kNone;
  wire::Checksum checksum = wire::Checksum::kCrc32c;
  std::uint64_t packets_per_key = kPacketsPerKey;
  std::vector<AddressPair> ways;  // to the peer: at least one, the best first
  std::size_t max_datagram = 0;   // 0: the first address's; the peer's is agreed in the handshake
  Duration peer_timeout = 10 * kSecond;
  std::string description;                    // "10.0.0.2:41234 (pid 77 on nodeb)", for error texts
  const CongestionOps* congestion = nullptr;  // null: swift
};

class Session final : public Link {
 public:
  // All references outlive the session. Link calls may be made at once.
  Session(SessionConfig config, SessionHost& host, LinkEvents& events);
  ~Session() override;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  std::uint64_t connection_id() const { return handshake_.connection(); }
  // The id that packets to the peer carry (an ICMP error quotes it); 0: not known yet.
  std::uint64_t peer_connection_id() const { return handshake_.peer_connection(); }
  bool established() const { return handshake_.established(); }
  bool ended() const { return life_.ended(); }
  bool has_eager() const { return eager_.has_work(); }  // small messages that have not left

  // A datagram, or run of datagrams, that carries connection_id(). Unauthenticated until parsed.
  void on_packets(const RxPacket& packets);
  // Takes a hello, brought by `packet`, that names this process and whose proof has been checked.
  // False: the peer has begun anew, and its hello is no replay. This session has no peer any more,
  // and the caller must end it.
  [[nodiscard]] bool on_hello(const wire::Hello& hello, const RxPacket& packet);
  // Tells each owner of something under way here that it is lost with the session.
  void lose_to_new_session();
  const PairKey& key() const { return key_; }
  // Something at the peer's address seems to speak another version of the wire.
  void on_other_version(std::uint8_t version) { handshake_.on_other_version(version); }
  // Is this the header of a packet that went out lately, by this pair, by which the peer has been
  // reached?
  bool sent_lately(const wire::Header& header, const AddressPair& by) const;

  // The engine's own loop stood still for `away`: nobody is to blame for silence meanwhile. Before
  // anything else of the turn that follows. Not told to one that rests: it waits for nothing.
  void on_gap(Duration late, Duration away);
  // Ask for a sign of life now (the network hinted that the peer is gone).
  void probe();
  // The engine's verdict, with its reasons. LinkEvents::on_lost follows, once.
  void declare_lost(const Status& why);
  // Sends acknowledgements that wait for company. Before going to sleep for long.
  void flush_acks();

  Time last_heard() const { return last_heard_; }  // 0: never
  // The first path's remote address.
  const Endpoint& remote() const { return paths_.first().pair().remote; }
  std::uint32_t local_path() const { return paths_.first().pair().local; }
  const PathSet& paths() const { return paths_; }
  std::size_t paths_due() const { return paths_due_; }        // that were to be, when it began
  const SendCredit& granted() const { return send_credit_; }  // by the peer
  const CreditAccount& grants() const { return credit_; }     // to the peer
  // The peer has answered there; or may be there, as long as there are hellos only.
  bool sends_to(const Endpoint& remote) const;
  // Is it just there that hellos are said? Not once it is established.
  bool calls(const Endpoint& remote) const;
  // Notes which of the Nic's addresses (bit i: the i-th) are not there at the moment, and which are
  // back.
  void on_addresses_changed(std::uint32_t missing, std::uint32_t back);
  // Notes addresses that the Nic did not have before.
  void on_addresses_added(std::uint32_t added);
  // A packet of ours was refused there, of which that is the beginning. True: so was one on every
  // other way to the peer, or path that is live, since it was heard last; and no others are still
  // to come.
  bool on_refused(const Endpoint& remote, std::span<const std::byte> quoted);
  // The time within which an answer comes by any live path, as a rule, from a busy host too.
  Duration answer_time() const;
  // The largest datagram that is known to reach the peer by every path.
  std::size_t path_size() const { return paths_.datagram(); }
  // Something has raised the question whether it still does.
  bool doubts_its_path() const { return paths_.main().mtu().in_doubt(); }
  // The first path sends by this pair of addresses from now on; the peer follows when it has had an
  // answer there.
  void move_to(const AddressPair& pair);
  // One of several paths between the same addresses goes to other ports, or back to those that the
  // last one there was moved from; the peer may have to be asked. False: it has nowhere to go.
  bool move_path(const wire::PathMove& move);
  // The Nic's addresses (bit i: the i-th) that it sends from; and those of them at which the Nic
  // had no room in its last turn.
  std::uint32_t locals() const;
  std::uint32_t full_locals() const { return full_; }
  const std::string& description() const { return description_; }
  const Sealing* sealing() const { return sealing_.get(); }  // null: nothing is sealed, so far
  std::size_t memory_bytes() const;  // of everything it holds, itself included
  // Brings into the caches what it consists of beside itself: where its paths lie, then these.
  void prefetch_parts() const;
  void prefetch_paths() const;
  // Something is under way that a peer waits for which has not left.
  bool lingers() const { return busy() && !life_.peer_left(); }

  // Link.
  std::size_t eager_limit() const override;
  void eager(SendRequest& request) override;
  void bulk(SendRequest& request, SlotId slot, bool offered) override;
  void withdraw(SendRequest& request) override;
  void forget(SlotId slot) override;
  void want(RecvRequest& request) override;
  void offer(const SendRequest& request) override;
  void control(const Control& control) override;
  void notice(std::span<const std::byte> bytes) override;
  void on_expecting() override;
  void release(Staging&) override {}
  bool busy() const override;
  void break_off(const std::string& how) override;
  void leave() override;

 private:
  friend class SessionHost;
  using Sent = Path::Sent;
  // Told what became of what has left by one path.
  class Fates final : public SentPackets::Listener {
   public:
    Fates(Session& session, Path& path) : session_(session), path_(path) {}
    void on_run_acked(const SentRun& run, std::uint64_t mask) override {
      session_.on_run_acked(path_, run, mask);
    }
    void on_run_lost(const SentRun& run, std::uint64_t mask) override {
      session_.on_run_lost(path_, run, mask);
    }

   private:
    Session& session_;
    Path& path_;
  };

  // Whether this is the side that opens paths and decides between which addresses they run.
  bool leads() const { return own_incarnation_ < peer_incarnation_; }

  // session_paths.cc
  void open_paths();
  void tell_paths();
  Path& open_path(wire::PathId id, const AddressPair& pair);
  Path* path_of(const wire::Packet& packet, const RxPacket& from);
  void on_path_response(Path& path, const RxPacket& from, std::uint64_t token);
  void look_after(Path& path);
  void ask_others(const Path& path);
  void leave_if_silent(Path& path);
  void tell_unanswered(const Path& path) const;
  void leave_silent(Path& path);
  void leave_path(Path& path);
  void give_back_credit(Path& path, std::uint32_t lost);
  void on_path_closed(const wire::PathClosed& closed);
  Path::Agreed agreed(const AddressPair& pair) const;

  // session_addresses.cc
  void tell_addresses(std::uint32_t which);
  void on_path_open(const wire::PathOpen& open);
  void leave_lost_ways();
  void leave_lost_addresses();
  void open_new_paths();
  void give(Path& path, const AddressPair& pair);
  Path* to_elsewhere(std::uint32_t local, const Endpoint& remote) const;
  std::optional<std::uint32_t> unused_way(std::span<const std::uint32_t> ways,
                                          const Endpoint& remote) const;
  std::uint32_t free_port(std::uint32_t local) const;
  std::optional<std::uint32_t> lacks_path_to(const Endpoint& remote,
                                             const std::vector<Endpoint>& all) const;
  Path* spare_path() const;
  std::vector<Endpoint> remotes() const;

  // session_silence.cc
  void look_elsewhere(Path& path);
  void ask_where_told(Path& path);
  bool leads_from(std::uint32_t local, const Endpoint& remote);
  void doubt_where_acks_go();
  const std::vector<AddressPair>& free_pairs();
  bool is_free(const AddressPair& pair) const;

  // session_repathing.cc
  struct PathGroup {  // of those between the same two addresses: two at least
    std::vector<wire::PathId> paths;
    Repathing moves;
    wire::PathId moved = wire::kFirstPath;  // the last, and whence
    AddressPair before;
  };
  bool is_between(const Path& path, const Path& other) const;
  void group_paths();
  PathGroup* group_of(const Path& path);
  void look_for_slow_paths();
  std::vector<AddressPair> free_ports(const Path& path) const;
  void on_path_move(const wire::PathMove& wish);
  void on_path_moved(const Path& path, const AddressPair& before, bool was_live);

  // session_handshake.cc
  void establish(const wire::Hello& hello, const AddressPair& from);
  void make_keys();
  Sent send_hello();
  bool offer_hello(const wire::Hello& hello, std::size_t bytes, const AddressPair& pair);
  bool hello_is_awaited() const;
  bool protects_alike(const wire::Hello& hello);
  void refuse_setting(const char* name, const std::string& ours, const std::string& theirs);

  // session_receive.cc
  void on_packet(Datagrams& arrived, const RxPacket& from);
  void on_following(Path& path, RecvState& state, wire::FollowingSegments following,
                    wire::Packet& packet, Datagrams& arrived);
  Path* admit(std::span<std::byte> bytes, const RxPacket& from, wire::Packet& packet);
  wire::Verdict open(std::span<std::byte> bytes, wire::Packet& packet);
  RecvState* on_data(Path& path, const wire::Packet& packet);
  bool begin_message(RecvState& state, const wire::Packet& packet);
  bool place(RecvState& state, const wire::Packet& packet);
  void finish_message(Path& path, RecvState& state);
  void finish_receive(RecvState& state, const Status& status);
  bool on_eager_packet(Path& path, const wire::Packet& packet);
  bool on_fragment(Path& path, const wire::Packet& packet);
  bool on_frames(Path& path, const wire::Packet& packet, const RxPacket& from);
  void on_ack(const wire::Ack& ack);
  bool on_records(std::uint32_t serial, std::span<const std::byte> block);
  void deliver_records(std::span<const std::byte> block);
  void deliver_record(const wire::Record& record);
  void on_goodbye();
  void after_receive();
  void on_run_acked(Path& path, const SentRun& run, std::uint64_t mask);
  void on_run_lost(Path& path, const SentRun& run, std::uint64_t mask);
  void on_bulk_acked(Path& path, const SentRun& run, std::uint64_t mask);
  void on_bulk_lost(Path& path, const SentRun& run, std::uint64_t mask);
  BulkSend* send_of(const SentRun& run) const;

  // session_transmit.cc
  enum class Turn : std::uint8_t { kDone, kMore, kNicFull };
  Turn transmit(std::size_t budget);  // called by SessionHost for ready sessions
  Sent transmit_small(Path& path);
  bool transmit_runs(std::size_t budget);
  void share_out();
  bool ask_for_credit();
  bool worth_it(const Path& path, std::uint32_t tried) const;
  bool owes_ack(const Path& path) const;
  std::uint32_t write_acks(const Path& path, wire::Writer& writer) const;
  Sent send_control(Path& path);
  Sent send_eager(Path& path);
  Sent send_run(Path& path, std::size_t& budget);
  bool fit(Path& path, BulkSend& send);
  static std::uint8_t flags_of_last(const Path& path, SegmentRange range);
  std::size_t fill_run(const Path& path, BulkSend& send, SegmentRange range);
  std::size_t fill_pieces(const Path& path, BulkSend& send, SegmentRange range);
  std::size_t fill_sealed(const Path& path, BulkSend& send, SegmentRange range);
  bool seals_data() const { return seals(security_, wire::Type::kData); }
  bool trusts_payload() const { return checksum_ == wire::Checksum::kKernel && !seals_data(); }
  // The key that masks the checksums of segments. Null: none.
  const HeaderKey* segment_key() const {
    return sealing_ != nullptr ? &sealing_->sent_headers() : nullptr;
  }
  // The peer's.
  const HeaderKey* received_key() const {
    return sealing_ != nullptr && !seals_data() ? &sealing_->received_headers() : nullptr;
  }
  std::uint8_t flags_of(const BulkSend& send, std::uint32_t segment) const;
  std::size_t segment_bytes(std::size_t message_bytes) const;
  std::uint32_t offer_run(const Path& path, BulkSend& send, SegmentRange range);

  // session.cc
  enum class Says : std::uint8_t { kOfItself, kInAnswer };
  void record(bool (*write)(wire::Writer& writer, const void* what), const void* what,
              Says says = Says::kOfItself);
  void seal_block();
  void ready() {
    stir();
    host_.make_ready(*this);
  }
  void finish_taken();
  void finish_returned();
  void finish_send(BulkSend& send, const Status& status);
  void drop_send(BulkSend& send);
  void retire(BulkSend& send);
  bool has_bulk() const { return queue_ != nullptr && !queue_->empty(); }
  RecvState* receive_of(std::uint64_t wire_slot);
  void drop_receive(RecvState& state);
  void say_goodbye_when_quiet();
  void let_go();
  bool content_unacknowledged() const;
  bool keeps_asking() const;
  void refresh_credit();

  // session_timers.cc
  static void on_expiry(Timer& timer, Time now);
  std::string why_silent() const;
  void on_timer();
  void on_tick();
  void stir();
  bool awaits_something() const;
  bool may_rest() const;
  void call();
  bool waits_for_turn();
  Time next_deadline() const;
  void update_timer();
  void trim();

  SessionHost& host_;
  LinkEvents& events_;
  const std::uint64_t own_incarnation_, peer_incarnation_;
  const PairKey key_;
  const Security security_;
  const wire::Checksum checksum_;
  SessionLife life_;
  const std::uint64_t packets_per_key_;
  const Duration peer_timeout_;
  const std::string description_;
  Handshake handshake_;
  SendCredit send_credit_;  // what the peer grants
  CreditAccount credit_;    // what it is granted
  const CongestionOps& congestion_;
  std::unique_ptr<Sealing> sealing_;  // once established, unless nothing is to be sealed
  PathSet paths_;
  std::forward_list<PathGroup> groups_;
  std::forward_list<Endpoint> announced_;  // where the peer listens beside what it had published
  // Pairs of addresses that no path runs between, where the peer may be asked: as of the last time
  // that it was in doubt.
  std::unique_ptr<std::vector<AddressPair>> free_pairs_;
  // The log mentions the paths only once so many are live, each between addresses of its own, or at
  // tell_paths_by_.
  std::uint8_t paths_due_ = 1;
  bool reading_ = false;         // records of the peer's
  bool asks_too_much_ = false;   // some of those that were acknowledged were not read for it
  bool heard_early_ = false;     // somebody speaks to this session, which has no keys yet
  std::uint32_t full_ = 0;       // of this turn: addresses that the Nic has no room at
  std::uint32_t refused_ = 0;    // ways, or paths (bit i: the i-th), since the peer was heard last
  Time tell_paths_by_ = kNever;  // they have been told, or there are none yet

  // Messages.
  std::vector<BulkSend*> sends_;
  std::vector<std::uint32_t> free_sends_;
  std::uint32_t send_uses_ = 0, open_receives_ = 0;
  std::unique_ptr<SendQueue> queue_;   // of those with something to transmit; null: no messages
  std::vector<BulkSend*> unreturned_;  // acknowledged, but the driver still refers to the payload
  std::vector<RecvState*> receives_;   // by slot index
  Reassembly reassembly_;
  SmallSender eager_;
  SmallSender records_;
  SerialFilter eager_filter_;
  RecordOrder record_order_;
  std::byte* block_ = nullptr;  // records not yet sealed into a block
  std::uint32_t block_bytes_ = 0, block_answers_ = 0;
  std::vector<SendRequest*> taken_;  // eager messages copied, to be finished on the next turn

  // Time.
  Timer timer_;
  Time next_tick_ = kNever;  // kNever: it rests
  Time silence_base_ = 0;    // last sign of life, or of nobody caring
  Time last_heard_ = 0;
  Time called_at_ = 0;  // by the peer's last hello, until it is established

  SessionPlaces places_{.session = this};  // in SessionHost's lists
};

}  // namespace taco::harp
