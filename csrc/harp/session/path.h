// One path of a session: between which addresses it runs, how large a packet it carries, what has
// left by it and what has come, how long that takes, how much of it gets lost, and how much may be
// under way at once. Each path numbers its own packets, and acknowledgements name the path whose
// numbers they mean. What the packets carry is the session's, which decides what leaves by which
// path; so is the credit, which all paths of a session use up together.
//
// The first path lives as long as its session. A further one is proved before anything else leaves
// by it, and again when it has fallen silent while others answer:
//
//   state     what leaves by it                                     leads to
//   kProving  challenges, ever more rarely; whatever else was       kLive, when one is answered
//             under way is lost, for others to carry
//   kLive     everything                                            kProving, see fall_silent()
//
// One that falls silent again and again rests before it is proved, ever longer.
//
// Made by its session, which owns it; owner thread only. A path never calls its session: functions
// that may leave something to be sent say so, and the caller sees to it that its turn comes.
//
// path.cc is what comes in and what time brings, path_transmit.cc what goes out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/clock.h"
#include "base/machine.h"
#include "harp/nic.h"
#include "harp/session/congestion.h"
#include "harp/session/delayed_ack.h"
#include "harp/session/delivery_rate.h"
#include "harp/session/flow.h"
#include "harp/session/loss.h"
#include "harp/session/pacer.h"
#include "harp/session/path_ends.h"
#include "harp/session/path_mtu.h"
#include "harp/session/received_packets.h"
#include "harp/session/recent_packets.h"
#include "harp/session/replay_window.h"
#include "harp/session/sealing.h"
#include "harp/session/sent_packets.h"
#include "harp/session/session_host.h"
#include "harp/session/wire.h"

namespace taco::harp {

class Path {
 public:
  enum class Sent : std::uint8_t { kYes, kNothing, kNicFull };
  enum class State : std::uint8_t { kProving, kLive };
  friend constexpr bool leads_to(State from, State to) { return from != to; }

  // `leads`: of the two sides, this one decides between which addresses (path_ends.h). The
  // references outlive the path.
  Path(wire::PathId id, const AddressPair& pair, bool leads, const CongestionOps& congestion,
       SessionHost& host, SendCredit& credit);

  wire::PathId id() const { return id_; }
  const AddressPair& pair() const { return ends_.pair(); }
  PathMtu& mtu() { return mtu_; }
  const PathMtu& mtu() const { return mtu_; }
  DelayedAck& ack() { return ack_; }
  const DelayedAck& ack() const { return ack_; }

  // The handshake's results: packets carry `connection` from now on, both ends take datagrams up to
  // `limit`, and what is to be sealed is sealed there; null: nothing is.
  struct Agreed {
    std::uint64_t connection = 0;
    std::size_t limit = 0;
    Sealing* sealing = nullptr;
  };
  // A nonce has made the round trip over `pair`, and a datagram of `proved` bytes has arrived.
  void open(const AddressPair& pair, const Agreed& agreed, std::size_t proved);
  bool is_open() const { return connection_ != 0; }
  // The same for a further path, which has yet to be proved.
  void open_unproven(const Agreed& agreed);
  bool is_live() const { return state_.is(State::kLive); }
  // For people to read: being proved for the first time, live, given up because it fell silent, or
  // given up so often that it is not even tried for a while.
  enum class Standing : std::uint8_t { kProving, kLive, kLeft, kResting };
  Standing standing() const;
  // The peer has answered between these two addresses, be it not of late.
  bool has_led_there() const { return standing() != Standing::kProving; }
  // Challenges that have left since the path was made or given up, none of them answered.
  std::uint32_t challenges() const { return challenges_; }
  // The time within which an answer comes, as a rule.
  Duration answer_time() const { return rtt_.answer_time(); }
  Duration round_trip() const { return rtt_.has_sample() ? rtt_.smoothed() : 0; }  // 0: not known
  std::uint32_t window() const { return static_cast<std::uint32_t>(window_.window); }  // packets
  // Since the path was made: payload that left by it, and packets that were lost there.
  std::uint64_t payload_sent() const { return payload_sent_; }
  std::uint64_t packets_lost() const { return packets_lost_; }
  std::uint32_t in_flight() const { return sent_.in_flight(); }
  // Packets that were acknowledged; and whether lately the window kept more from leaving.
  std::uint64_t packets_acked() const { return last_number() - packets_lost_ - in_flight(); }
  bool is_limited() const;
  // Makes this the main path, or no longer: that one asks for credit when it has run out.
  void set_main(bool main) { is_main_ = main; }
  // Keeps the path from moving to where its peer's packets come from, and from asking again for a
  // while.
  void stay() { ends_.on_newest_here(host_.now()); }
  // The owner has chosen another pair.
  void move_to(const AddressPair& pair);
  // Asks at a pair of addresses; the path goes there if the peer answers there.
  void challenge(const AddressPair& pair);
  // It has just been asked where its peer's packets came from: nowhere else until that is answered.
  bool asks_where_heard() const { return ends_.asks_where_heard(host_.now()); }
  // The peer has said goodbye: what is under way may be acknowledged, or not.
  void on_peer_left();
  // The session has ended.
  void close() { sent_.clear(); }

  // Receiving.
  std::uint64_t number_of(const wire::Packet& packet) const {
    const bool uncounted = (packet.flags & wire::kUncounted) != 0;
    return wire::expand_number(packet.number, uncounted ? uncounted_.largest() + 1 : expected());
  }
  std::uint64_t expected() const { return received_.largest() + 1; }  // the next counted number
  // A counted packet of that number has come before, or would be too old to tell.
  bool has_received(std::uint64_t number) const { return received_.has(number); }
  void on_copy();
  // False: a copy of an uncounted one, or too old.
  bool take_uncounted(std::uint64_t number) { return uncounted_.take(number); }
  // A counted packet of `bytes` that is new, and is kept. True: a challenge is to be sent.
  bool on_packet(std::uint64_t number, std::size_t bytes, const RxPacket& from);
  // Whether that packet is the newest of all, and came by the path's own pair: then so many of the
  // next numbers may have come with it.
  bool has_just_heard(std::uint64_t number, const RxPacket& from) const {
    return number == received_.largest() && ends_.is_by(from);
  }
  void on_following(std::uint32_t packets) {
    received_.extend(packets);
    ack_.want(packets);
  }
  void on_challenge(const RxPacket& from, std::uint64_t token) {
    ends_.on_challenge(AddressPair::of(from), token);
  }
  // True: the path has moved, or has been proved.
  bool on_response(const RxPacket& from, std::uint64_t token);
  enum class News : std::uint8_t { kMalformed, kNothing, kSomething };
  // The other paths that share a link with this one: how many they are, and the packets that the
  // session may have under way by them.
  struct Others {
    std::uint32_t paths = 0;
    double window = 0;
  };
  News on_ack(const wire::Ack& ack, const Others& others, SentPackets::Listener& listener);
  // Called by the listener for a run that is about this path: of data packets of `datagram` bytes
  // each, or a probe for the MTU.
  void on_size_acked(const SentRun& run, std::size_t datagram) {
    mtu_.on_data_acked(datagram, run.sent);
  }
  void on_size_lost(const SentRun& run, std::uint64_t mask, std::size_t datagram);
  void on_mtu_probe_acked(const SentRun& run) {
    mtu_.on_probe_acked(run.first_segment, host_.now());
  }
  void on_mtu_probe_lost() { ++mtu_probes_lost_; }
  std::uint64_t largest_received() const { return received_.largest(); }

  // Timers. True: there is something to send.
  Time next_deadline() const;
  bool on_timer(SentPackets::Listener& listener);
  // A sign of life is wanted.
  void probe();
  // Something has left that nobody acknowledges: since when it is in doubt whether this path still
  // leads anywhere; kNever: no doubt. And may it be given up, if the peer is heard elsewhere?
  Time in_doubt_since() const { return tail_.unanswered() > 0 ? doubted_ : kNever; }
  std::uint32_t unanswered() const { return tail_.unanswered(); }  // pings in a row
  bool is_silent() const;
  // A packet that left by it was refused on its way. True: that is what first raises the doubt.
  bool on_refused();
  bool is_refused() const { return refusals_ > 0; }
  Time last_news() const { return news_; }  // of something that has arrived by it
  // Declares lost what is under way; the path is to be proved again.
  void fall_silent(SentPackets::Listener& listener);
  // One that is not live gets another pair of addresses, and is as if it had just been made.
  void start_over(const AddressPair& pair);
  // There is reason to believe that it leads somewhere again: it is challenged at once.
  void try_again();
  // The same, if it rests: nothing else answers.
  void end_rest() {
    if (standing() == Standing::kResting) try_again();
  }
  // The next numbers are gone, as if their packets had been lost.
  void use_up(std::uint32_t numbers);
  // Numbers so far; those that are lost with the path use up credit until the peer is told.
  std::uint64_t last_number() const { return next_number_ - 1; }
  // The last number that the peer has been told of in a PathClosed.
  std::uint64_t closed_up_to() const { return closed_up_to_; }
  void on_close_told() { closed_up_to_ = last_number(); }
  // The engine comes back so late; for so long it was kept away.
  void on_gap(Duration late, Duration away);
  void forget_lost();
  void trim();
  // Nothing has left by it of which it is not known what became, and nothing is asked of it.
  bool is_at_rest() const { return sent_.empty() && !ends_.has_tokens(); }
  std::size_t memory_bytes() const { return sent_.memory_bytes() + received_.memory_bytes(); }

  // Sending. A packet is built, offered, and committed if the Nic has taken it.
  wire::PacketId next_id() const { return {connection_, next_number_, id_}; }
  PacketNonce nonce_of(const wire::PacketId& id) const {
    const bool again = id.number < next_number_ + offered_;
    return {id_, id.number, false, again ? attempt_ : std::uint8_t{0}};
  }
  // Notes that only the first `left` of `count` packets offered with the next numbers have left,
  // and have yet to be committed.
  void on_not_taken(std::uint32_t count, std::uint32_t left);
  bool offer(wire::Header& header, std::span<const std::byte> body) {
    return offer(header, body, pair(), false);
  }
  bool offer(wire::Header& header, std::span<const std::byte> body, const AddressPair& pair,
             bool unfragmented);
  // The bytes that a tag takes of a control packet or an eager message.
  std::size_t small_tag_bytes() const { return sealing_ != nullptr ? wire::kTagBytes : 0; }
  // One packet of frames, which ask for an acknowledgement (`counted`: to be committed) or not.
  // They are to hold an acknowledgement if may_ack(). False: the Nic is full.
  bool may_ack() const { return received_.largest() > 0 && (ack_.due() || ack_.wanted()); }
  void fill(wire::Ack& ack) const;
  bool send_frames(std::span<const std::byte> frames, bool counted);
  void commit(SentRun run);
  void count_payload(std::size_t bytes) {
    payload_sent_ += bytes;
    host_.counters().bytes_sent += bytes;
  }
  // Segments leave in datagrams of so many bytes. What others took to arrive says nothing of these.
  void on_datagram(std::size_t bytes) {
    if (std::exchange(datagram_, static_cast<std::uint16_t>(bytes)) != bytes) delivery_ = {};
  }
  // How long until what leaves after `more` packets more would arrive, as far as one can tell.
  Duration arrival(std::size_t more = 0) const;
  // Limits what this path, one of several, may have under way of what there is to send: `most`
  // packets, or what keeps it busy if that is more. take_all(): whatever the window allows.
  static constexpr std::uint16_t kNoShare = 0xffff;
  void set_share(std::size_t most);
  void take_all() { share_ = kNoShare; }
  // The next packet of frames is to ask for a sign of life.
  bool probe_due() const { return tail_.due(); }
  // Sends packets that ask the path itself where it leads and what it carries.
  Sent send_tokens();
  Sent send_mtu_probe();

  // May a packet leave, as far as credit goes? And as far as the window goes too? The latter notes
  // what stands in the way.
  bool within_credit() const;
  bool has_room();
  // Whether packets under way leave no room in the window for more, until they are acknowledged.
  bool is_crowded() const;
  // How many of `wanted` segments may leave now; notes what stands in the way.
  std::uint32_t room_for(std::uint32_t wanted);
  // After so many more the window is full, and too small to wait until the peer acknowledges by
  // itself.
  bool wants_news(std::uint32_t more) const;
  // Is this the header of a packet that went out lately?
  bool sent_lately(const wire::Header& header) const { return recent_.contains(header); }

 private:
  std::span<const std::byte> sealed(wire::Header& header, std::span<const std::byte> body);
  void renew_numbers();
  bool watches_silence() const;
  std::uint32_t patience() const;
  std::uint32_t worth_a_run() const;
  std::uint32_t share() const;
  AckSample sample() const;
  bool detect_losses(SentPackets::Listener& listener);
  bool on_mtu_timer(Time now);
  bool on_probe_timeout(Time now);
  bool on_retry(Time now);
  void choose_token();
  void become_live();

  SessionHost& host_;
  SendCredit& credit_;  // the session's
  const wire::PathId id_;
  Machine<State> state_;
  bool peer_left_ = false;
  bool is_main_ = false;
  std::uint16_t datagram_ = 0;  // that segments left in last
  std::uint16_t share_ = kNoShare;
  std::uint64_t connection_ = 0;  // that packets carry; 0: not open yet
  Sealing* sealing_ = nullptr;    // the session's; null: nothing is sealed
  PathEnds ends_;
  PathMtu mtu_;

  // Sent packets.
  std::uint64_t next_number_ = 1;
  std::uint64_t next_uncounted_ = 1;
  RecentPackets recent_;
  SentPackets sent_;
  RoundTrip rtt_;
  DeliveryRate delivery_;
  ReorderWindow reorder_;
  TailProbe tail_;
  const CongestionOps& congestion_;
  CongestionState window_;
  Pacer pacer_;
  bool window_limited_ = false;  // since the last acknowledgement
  std::uint8_t refusals_ = 0;    // of packets that left by it, since one has arrived
  // So many of the next numbers were sealed for packets that the Nic has not taken; which attempt
  // at them is the next.
  std::uint8_t offered_ = 0, attempt_ = 0;
  std::uint32_t mtu_probes_lost_ = 0;  // on this occasion; they say nothing about congestion
  Time loss_not_before_ = 0;
  Time back_at_ = 0;               // the turn that followed the last stall of the own loop
  Time tells_since_ = 0;           // what left before tells nothing of the way's time
  std::uint64_t quiet_until_ = 0;  // packet number that ends a round without spurious losses

  // Whether it leads anywhere.
  Time news_ = 0;     // when something was acknowledged last
  Time doubted_ = 0;  // when the first probe of those that are unanswered became due
  Time live_since_ = 0;
  Time retry_ = kNever;               // of kProving: the next challenge
  Duration interval_ = 0, rest_ = 0;  // between challenges; before the first of them
  std::uint32_t challenges_ = 0;
  // When an acknowledgement came last for which more waited to leave: milliseconds, in what four
  // bytes hold. It is compared with what they are now.
  std::uint32_t limited_ = 0;
  std::uint64_t closed_up_to_ = 0;

  std::uint64_t payload_sent_ = 0, packets_lost_ = 0;

  // Received packets.
  ReceivedPackets received_;
  ReplayWindow uncounted_;
  DelayedAck ack_;
};

}  // namespace taco::harp
