// The link of a process to itself: what one part of a program sends to another under one Stack (a
// plugin's send and receive communicators of one process, say). Nothing is serialised and
// nothing staged: a message goes straight from the send's memory into the receive's sink, long ones
// piece by piece, so that everything else of the engine gets its turn. The link lives as long as
// its engine.
//
// Both ends of the link are one Matcher, in which sends and receives are kept apart. So at most one
// message travels under a key here, whichever part sends it; parts that could use the same key must
// include their identity in it.
//
// Owned by the peer that stands for this process; owner thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "harp/link.h"

namespace taco::harp {

class SelfLink final : public Link {
 public:
  explicit SelfLink(LinkEvents& events) : events_(events) {}

  // Once a turn: carries out what has been asked for before this call, and a piece of a long
  // message. True when it did anything.
  bool progress();

  // Link
  std::size_t eager_limit() const override { return kEagerBytes; }
  void eager(SendRequest& request) override;
  void bulk(SendRequest& request, SlotId slot, bool offered) override;
  void withdraw(SendRequest& request) override;
  void forget(SlotId) override {}  // a slot that has ended names no receive any more
  void want(RecvRequest& request) override;
  void offer(const SendRequest& request) override;
  void control(const Control& control) override;
  void notice(std::span<const std::byte> bytes) override;
  void release(Staging&) override {}
  bool busy() const override { return !asked_.empty() || !transfers_.empty(); }
  void break_off(const std::string& how) override;
  void leave() override {}

 private:
  // A message that waits for a receive not yet posted is copied once more: for short messages only.
  static constexpr std::size_t kEagerBytes = 4096;
  static constexpr std::size_t kPieceBytes = std::size_t{1} << 20;

  struct Eager {
    SendRequest* request;  // null once it has been withdrawn
  };
  struct Notice {
    std::vector<std::byte> bytes;
  };
  using Ask = std::variant<Eager, Want, Offer, Control, Notice>;
  struct Transfer {
    SendRequest* request = nullptr;
    SlotId slot;
    std::size_t done = 0;
  };

  void carry_out(const Want& want) { events_.on_want(want); }
  void carry_out(const Offer& offer) { events_.on_offer(offer); }
  void carry_out(const Control& control) { events_.on_control(control); }
  void carry_out(const Notice& notice) { events_.on_notice(notice.bytes); }
  void carry_out(const Eager& eager);
  void move_piece();
  void end_transfer(const SendRequest& request);

  LinkEvents& events_;
  std::vector<Ask> asked_;    // since the last turn
  std::vector<Ask> current_;  // of this turn
  std::vector<Transfer> transfers_;
  std::size_t next_ = 0;  // whose turn it is
};

}  // namespace taco::harp
