// Pairs this process's sends and receives with those of one peer, by key. Knows no wire: it tells a
// Link what to move and hears from it through LinkEvents. One per peer, made by the engine, owner
// thread only; no allocation in steady state.
//
// A small message within its group's quota goes at once (eager). Anything else stays with its
// sender, which offers it once; the receiver's Want releases it as a bulk transfer into that very
// receive. So what a receiver holds unmatched is bounded by the quotas, and the order in which
// keys are posted on either side never blocks anybody.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/list.h"
#include "harp/byte_pool.h"
#include "harp/link.h"
#include "harp/matching/completion_queue.h"
#include "harp/matching/key_table.h"
#include "harp/matching/over_groups.h"
#include "harp/quotas.h"
#include "harp/transport.h"

namespace taco::harp {

class Matcher;

// The state that all matchers of one engine share. Owned by the engine; outlives them.
struct MatcherHost {
  Observer* observer = nullptr;  // may be null
  CompletionQueue completions;   // the engine runs it every turn
  BytePool buffers;
  OverGroups over;
  std::uint64_t bytes_copied = 0;  // eager data that had to wait for its receive
  std::size_t expecting = 0;       // matchers with open requests
  std::vector<Matcher*> large;     // those whose tables may give memory back (Matcher::trim)
};

class Matcher final : public LinkEvents {
 public:
  Matcher(PeerId peer, MatcherHost& host) : peer_(peer), host_(host) {}
  ~Matcher() override;
  Matcher(const Matcher&) = delete;
  Matcher& operator=(const Matcher&) = delete;

  // Before any other call. The link outlives the matcher's use of it.
  void attach(Link& link) { link_ = &link; }
  // The peer has forgotten all that was between us, and is reached anew by another link. Only while
  // nothing waits for it. What it had sent whole may still be received.
  void begin_anew(Link& link);
  // Does a request, or an answer that the observer hears, wait for the peer?
  bool is_waiting() const;

  // Transport's calls for this peer; see transport.h.
  void send(SendRequest& request);
  void recv(RecvRequest& request);
  void cancel(SendRequest& request, const Status& why);
  void cancel(RecvRequest& request, const Status& why);
  void release(Staging& staging) { link_->release(staging); }
  bool has_unmatched(const MessageKey& key) const;
  void solicit(const MessageKey& key);
  void notify(std::span<const std::byte> bytes) { link_->notice(bytes); }
  // The group is over here (host_.over knows it): drops what the peer keeps here for it.
  void forget_group(std::uint64_t group);

  // Is a request open with this peer? (Then silence matters, and leaving would lose something.)
  bool expecting() const override { return open_receives_ > 0 || !sends_.empty(); }
  std::size_t open_receives() const { return open_receives_; }
  // Eager messages and offers kept here that no receive waits for; wants and solicitations that no
  // send waits for.
  std::size_t unmatched() const { return unmatched_; }
  std::size_t unserved() const { return outgoing_.size() - sends_listed_; }
  // Entries that the peer keeps here and no request of ours answers.
  std::size_t kept_for_peer() const { return unmatched_ + unserved() + groups_blocked_; }
  bool lost() const { return !lost_.ok(); }  // or left
  Status loss() const { return left_ ? Status() : lost_; }
  bool left() const { return left_; }
  std::size_t groups_remembered() const { return groups_.size(); }
  // Gives back what a busier time has taken. False: there may be more to give later.
  bool trim();
  std::size_t memory_bytes() const;  // of the tables

  // LinkEvents.
  void on_eager(const MessageKey& key, std::uint64_t signature,
                std::span<const std::byte> data) override;
  void on_want(const Want& want) override;
  void on_offer(const Offer& offer) override;
  void on_control(const Control& control) override;
  void on_notice(std::span<const std::byte> bytes) override;
  RecvRequest* receive_of(SlotId slot) override;
  void receive_finished(SlotId slot, const Status& status) override;
  void send_finished(SendRequest& request, const Status& status) override;
  void on_offered(SlotId slot) override;
  void on_lost(const Status& why) override;
  void on_left() override;

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  static constexpr std::size_t kFewSlots = 16;

  // Our side sends: an open send that is not eager, or a want or solicitation that came first.
  struct Outgoing {
    MessageKey key;
    SendRequest* send = nullptr;
    std::uint64_t signature = 0;  // of the want
    std::uint64_t max_bytes = 0;
    SlotId slot{};
    bool wanted = false, offered = false, solicited = false;
    bool announced = false;  // was offered, be it wanted since: the offer may wait at the peer
    bool empty() const { return send == nullptr && !wanted && !solicited; }
  };
  // Our side receives: a posted receive, an eager message or an offer that came first.
  struct Incoming {
    MessageKey key;
    RecvRequest* receive = nullptr;
    std::byte* data = nullptr;  // of an eager message (from host_.buffers), when has_data
    std::uint64_t signature = 0;
    std::uint64_t bytes = 0;
    bool has_data = false, offered = false, wanted = false;
    bool solicited = false;  // we asked for it, and the peer has not answered
    bool counted = false;    // the offer counts against its group's quota
    // Offers that are still to come, although what they offered has been received.
    std::uint32_t overtaken = 0;
    bool empty() const {
      return receive == nullptr && !has_data && !offered && !solicited && overtaken == 0;
    }
  };
  // Slots name posted receives to the peer. A slot's generation moves on with every use.
  struct Slot {
    RecvRequest* receive = nullptr;
    std::uint32_t generation = 1;
    std::uint32_t next_free = kNone;
  };
  // Quota of one group, as a sender and as a receiver. Dropped when it says nothing.
  struct Group {
    MessageKey key;  // {id, 0}
    bool used = false;
    std::uint32_t unconsumed = 0, unconsumed_bytes = 0;  // sent eagerly, not reported consumed
    std::uint32_t offers = 0;                            // offers of ours not yet wanted
    std::uint32_t kept = 0, kept_bytes = 0;              // eager messages that wait here
    std::uint32_t kept_offers = 0;                       // offers that do, unless we asked for them
    std::uint32_t unreported = 0, unreported_bytes = 0;  // consumed here, not told yet
    bool blocked = false;       // we said so: small sends of this group are kept
    bool peer_blocked = false;  // the peer said so: want every receive
    bool empty() const { return !used; }
    bool says_nothing() const {
      return unconsumed == 0 && offers == 0 && kept == 0 && kept_offers == 0 && unreported == 0 &&
             !blocked && !peer_blocked;
    }
  };

  void on_open_changed();

  template <class Entry>
  Entry& insert(KeyTable<Entry>& table, const MessageKey& key) {
    if (table.is_large()) note_size();
    return table.insert(key);
  }
  void note_size();
  void trim_slots();
  Group& group_of(std::uint64_t id);  // valid until another group's first use
  void sweep_groups();
  bool within_quota(const Group& group, std::size_t bytes) const;
  void consumed(std::uint64_t group, std::size_t bytes);
  void report(Group& group);
  void release_kept(std::uint64_t group);
  // Count the data that the peer keeps here. may_...(): whether it may keep one more; the peer is
  // lost if not.
  bool may_keep(std::uint64_t group, std::size_t bytes);
  bool may_keep_offer(std::uint64_t group);
  bool may_keep_unserved();
  void forget_expected();
  void forget_overtaken(Incoming& in, std::uint32_t count);
  void keep_data(Incoming& in, std::span<const std::byte> data);
  void take_data(Incoming& in);
  void drop_kept_offer(Incoming& in);
  void drop_unmatched(Incoming& in);
  bool end_peer(const std::string& excess);

  void start_eager(SendRequest& request, Group& group);
  void start_bulk(Outgoing& out);
  void keep(SendRequest& request, Outgoing& out, Group& group);
  void offer(Outgoing& out, Group& group);
  void drop_offer(Outgoing& out);
  void finish_send(SendRequest& request, const Status& status);

  void open_slot(RecvRequest& request);
  void close_slot(RecvRequest& request);
  void want(Incoming& in);
  void unwant(Incoming& in);
  void finish_receive(Incoming& in, const Status& status);
  void deliver(Incoming& in, std::uint64_t signature, std::span<const std::byte> data);
  void drop_data(Incoming& in);
  void void_solicitation(Incoming& in);

  void mismatch_at_receive(Incoming& in, std::uint64_t theirs);
  void too_long_at_receive(Incoming& in, std::uint64_t bytes);
  bool refuse_want(Outgoing& out);
  void differed(const MessageKey& key, std::uint64_t ours, std::uint64_t theirs);
  void tell_unmatched(const MessageKey& key, std::uint64_t signature, bool is_send);

  // The peer's messages, one kind each.
  void hear(const CancelReceive& it);
  void hear(const CancelSend& it);
  void hear(const CancelOffer& it);
  void hear(const VoidWant& it);
  void hear(const Solicit& it);
  void hear(const VoidSolicit& it);
  void hear(const EagerConsumed& it);
  void hear(const Blocked& it);
  void hear(const MismatchAtReceive& it);
  void hear(const MismatchAtSend& it);

  void check_counts() const;

  const PeerId peer_;
  MatcherHost& host_;
  Link* link_ = nullptr;
  Status lost_;
  bool left_ = false;
  bool is_noted_ = false;    // among host_.large
  bool is_counted_ = false;  // in host_.expecting

  KeyTable<Outgoing> outgoing_;
  KeyTable<Incoming> incoming_;
  std::size_t sends_listed_ = 0;                  // entries of outgoing_ with a send
  List<SendRequest, &SendRequest::links> sends_;  // every open one, oldest first
  std::vector<Slot> slots_;
  std::uint32_t free_slot_ = kNone;
  std::uint32_t first_generation_ = 1;  // of slots to come: beyond those of slots given back
  std::size_t open_receives_ = 0;
  std::size_t unmatched_ = 0;
  std::size_t unmatched_bytes_ = 0;  // of eager messages
  std::size_t overtaken_ = 0;        // offers that are still to come for nothing
  std::size_t groups_blocked_ = 0;   // by the peer
  KeyTable<Group> groups_;
};

}  // namespace taco::harp
