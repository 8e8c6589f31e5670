// The conversation with one remote process over packets: handshake, reliability, flow and
// congestion control. Implements Link for the Matcher. Knows no socket and no clock: packets come
// in through on_packets(), go out through SessionHost::nic(), time is SessionHost::now(); so the
// same object serves UDP and the simulator.
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
#include <memory>
#include <string>
#include <vector>

#include "harp/link.h"
#include "harp/session/congestion.h"
#include "harp/session/flow.h"
#include "harp/session/loss.h"
#include "harp/session/message.h"
#include "harp/session/path.h"
#include "harp/session/reassembly.h"
#include "harp/session/received_packets.h"
#include "harp/session/recent_packets.h"
#include "harp/session/sent_packets.h"
#include "harp/session/session_host.h"
#include "harp/session/small_packets.h"
#include "harp/session/wire.h"

namespace taco::harp {

struct SessionConfig {
  std::uint64_t own_incarnation = 0;
  std::uint64_t peer_incarnation = 0;
  PairKey key{};                 // what hellos are proved with
  Endpoint peer_endpoint;        // where to say hello
  std::uint32_t local_path = 0;  // which local address of the Nic
  std::size_t max_datagram = 0;  // 0: the address's; the peer's is agreed in the handshake
  Duration peer_timeout = 10 * kSecond;
  std::string description;                    // "10.0.0.2:41234 (pid 77 on nodeb)", for error texts
  const CongestionOps* congestion = nullptr;  // null: swift
};

class Session final : public Link, private SentPackets::Listener {
 public:
  // All references outlive the session. Link calls may be made at once.
  Session(SessionConfig config, SessionHost& host, LinkEvents& events);
  ~Session() override;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  std::uint64_t connection_id() const { return own_connection_; }
  // What the packets to the peer carry (an ICMP error quotes it); 0: not known yet.
  std::uint64_t peer_connection_id() const { return peer_connection_; }
  bool established() const { return peer_connection_ != 0; }
  bool ended() const { return state_ == State::kEnded; }

  // A datagram, or run of datagrams, that carries connection_id(). Unauthenticated until parsed.
  void on_packets(const RxPacket& packets);
  // A hello that means this process and whose proof has been checked; the packet brought it. False:
  // its sender has begun anew, and is no recording. This session has nobody to speak with any more,
  // and the caller must end it.
  [[nodiscard]] bool on_hello(const wire::Hello& hello, const RxPacket& packet);
  // To whoever has something under way here that is lost with the session.
  void lose_to_new_session();
  const PairKey& key() const { return config_.key; }
  // Its peer speaks another version of the wire; or something at the peer's address seems to.
  void refuse_version(std::uint8_t version);
  void suspect_version(std::uint8_t version);
  // Is this the header of a packet that went out lately?
  bool sent_lately(const wire::Header& header) const {
    return established() && header.connection == peer_connection_ && recent_.contains(header);
  }

  // The engine's own loop stood still for `gap`: nobody is to blame for silence meanwhile. Before
  // anything else of the turn that follows.
  void on_gap(Duration gap);
  // Ask for a sign of life now (the network hinted that the peer is gone).
  void probe();
  // The engine's verdict, with its reasons. LinkEvents::on_lost follows, once.
  void declare_lost(const Status& why);
  // Sends acknowledgements that wait for company. Before going to sleep for long.
  void flush_acks();

  Time last_heard() const { return last_heard_; }  // 0: never
  // Probes sent since the peer was last heard.
  std::uint32_t unanswered_probes() const { return unanswered_probes_; }
  const Endpoint& remote() const { return path_.pair().remote; }
  std::uint32_t local_path() const { return path_.pair().local; }
  // The largest datagram that is known to reach the peer.
  std::size_t path_size() const { return path_.mtu().size(); }
  // Something has raised the question whether it still does.
  bool doubts_its_path() const { return path_.mtu().in_doubt(); }
  // Sends by this pair of addresses from now on; the peer follows when it has had an answer there.
  void move_to(const AddressPair& pair);
  const std::string& description() const { return config_.description; }
  std::size_t memory_bytes() const;  // of everything it holds, itself included

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
  void release(Staging&) override {}
  bool busy() const override;
  void break_off(const std::string& how) override;
  void leave() override;

 private:
  friend class SessionHost;
  enum class State : std::uint8_t { kConnecting, kOpen, kLeaving, kEnded };
  enum class Sent : std::uint8_t { kYes, kNothing, kNicFull };

  // session_receive.cc
  void on_packet(std::span<std::byte> bytes, const RxPacket& from);
  void on_data(const wire::Packet& packet);
  bool begin_message(RecvState& state, const wire::Packet& packet);
  void finish_receive(RecvState& state, const Status& status);
  bool on_eager_packet(const wire::Packet& packet);
  bool on_fragment(const wire::Packet& packet);
  bool on_frames(const wire::Packet& packet, const RxPacket& from);
  void establish(const wire::Hello& hello, const RxPacket& packet);
  void on_ack(const wire::Ack& ack);
  bool on_records(std::uint32_t serial, std::span<const std::byte> block);
  void deliver_records(std::span<const std::byte> block);
  void deliver_record(const wire::Record& record);
  void after_receive();
  void on_run_acked(const SentRun& run, std::uint64_t mask) override;
  void on_run_lost(const SentRun& run, std::uint64_t mask) override;
  AckSample sample() const;

  // session_transmit.cc
  enum class Turn : std::uint8_t { kDone, kMore, kNicFull };
  Turn transmit(std::size_t budget);  // called by SessionHost for ready sessions
  Sent send_hello();
  Time next_hello() const;
  Sent send_control();
  Sent send_eager();
  Sent send_run(std::size_t& budget);
  bool fit(BulkSend& send);
  std::size_t fill_run(BulkSend& send, SegmentRange range);
  std::size_t fill_pieces(BulkSend& send, SegmentRange range);
  std::uint32_t room_for(std::uint32_t wanted);
  wire::PacketId next_id() const { return {peer_connection_, next_number_, wire::kFirstPath}; }
  bool within_credit(std::uint32_t packets) const;
  void commit(SentRun run);
  bool offer_packet(wire::Header& header, std::span<const std::byte> body, const AddressPair& pair,
                    bool unfragmented = false);

  bool offer_hello(const wire::Hello& hello, std::size_t bytes, const AddressPair& pair);

  // session_path.cc
  void heard_elsewhere(const RxPacket& from);
  Sent send_tokens();
  Sent send_mtu_probe();
  void on_mtu_timer();
  void note_acked_size(const SentRun& run, const BulkSend& send);
  void note_lost_size(const SentRun& run, const BulkSend& send, std::uint64_t mask);

  // session.cc
  void record(bool (*write)(wire::Writer& writer, const void* what), const void* what);
  void seal_block();
  void ready() { host_.make_ready(*this); }
  void finish_taken();
  void finish_send(BulkSend& send, const Status& status);
  void drop_send(BulkSend& send);
  void retire(BulkSend& send);
  void activate(BulkSend& send);
  void deactivate(BulkSend& send);
  BulkSend* next_send() const;
  RecvState* receive_of(std::uint64_t wire_slot);
  void drop_receive(RecvState& state);
  void say_goodbye_when_quiet();
  void end();
  bool content_unacknowledged() const;
  void refresh_credit();

  // session_timers.cc
  static void on_expiry(Timer& timer, Time now);
  void on_timer();
  void on_tick();
  void on_probe_timeout();
  void lose_overdue();
  Time next_deadline() const;
  void update_timer();
  void trim();

  SessionConfig config_;
  SessionHost& host_;
  LinkEvents& events_;
  State state_ = State::kConnecting;

  // Handshake.
  std::uint64_t own_connection_ = 0, peer_connection_ = 0;
  std::size_t max_datagram_ = 0;  // that both ends take
  Time hello_said_ = 0;
  std::uint32_t hellos_ = 0;
  bool hello_due_ = true, answer_hello_ = false;
  wire::Nonce own_nonce_, peer_nonce_{};  // the peer's: once established
  wire::Nonce echo_{};                    // the peer's, as last heard: hellos send it back
  Time other_version_at_ = kNever;        // when a packet of one first came from the peer's address
  std::uint32_t largest_hello_ = 0;       // bytes of the largest datagram with a hello that came
  std::uint32_t answer_bytes_ = 0;        // of the hello that is or was answered last
  AddressPair answer_to_;                 // by which it came

  // One path: where it leads, and what we send on it.
  Path path_;
  const CongestionOps& congestion_;
  CongestionState window_;
  std::uint64_t next_number_ = 1;
  std::uint64_t next_uncounted_ = 1;
  RecentPackets recent_;
  SentPackets sent_;
  RoundTrip rtt_;
  ReorderWindow reorder_;
  std::uint64_t peer_limit_ = CreditAccount::kInitial;
  std::uint32_t peer_epoch_ = 0;
  Time probe_base_ = 0;
  Time loss_not_before_ = 0;
  Time back_at_ = 0;               // the turn that followed the last stall of the own loop
  std::uint64_t quiet_until_ = 0;  // packet number that ends a round without spurious losses
  std::uint32_t backoff_ = 0;
  std::uint32_t unanswered_probes_ = 0;
  bool probe_due_ = false;
  bool window_limited_ = false;
  bool credit_blocked_ = false;
  bool lowering_in_flight_ = false;
  std::uint32_t mtu_probes_lost_ = 0;  // on this occasion; they say nothing about congestion

  // And what we receive.
  ReceivedPackets received_;
  CreditAccount credit_;
  std::uint32_t unacknowledged_ = 0;  // packets that want an acknowledgement
  Time ack_deadline_ = kNever;
  bool ack_now_ = false;

  // Messages.
  std::vector<BulkSend*> sends_;
  std::vector<std::uint32_t> free_sends_;
  std::uint32_t send_uses_ = 0;
  List<BulkSend, &BulkSend::round> active_;  // with something to transmit, oldest first
  BulkSend* in_pieces_ = nullptr;            // the split message whose pieces leave; others wait
  std::uint64_t last_group_ = 0;             // whose message was served last
  std::vector<BulkSend*> unreturned_;  // acknowledged, but the driver still refers to the payload
  std::vector<RecvState*> receives_;   // by slot index
  std::size_t open_receives_ = 0;
  Reassembly reassembly_;
  SmallSender eager_;
  SmallSender records_;
  SerialFilter eager_filter_;
  RecordOrder record_order_;
  std::byte* block_ = nullptr;  // records not yet sealed into a block
  std::size_t block_bytes_ = 0;
  std::vector<SendRequest*> taken_;  // eager messages copied, to be finished on the next turn

  // Life.
  Timer timer_;
  Time armed_ = kNever;
  Time next_tick_ = 0;
  Time silence_base_ = 0;  // last sign of life, or of nobody caring
  Time last_heard_ = 0;
  bool peer_left_ = false;
  bool goodbye_queued_ = false;

  ReadySession place_{.session = this};  // in SessionHost's list
};

}  // namespace taco::harp
