// Sends and receives between two ranks. The n-th send to a peer under a user's tag matches the
// n-th receive from it under that tag: order is kept per sender and tag, and different tags never
// wait for each other. A receive from any source takes the next message of whichever rank has one;
// while it waits, later receives of the same tag wait behind it, since it might take their message.
//
// Messages longer than one transport message travel in parts, each with a number of its own.
// Engine only; one per group.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "harp/transport.h"
#include "pg/execution/executor.h"
#include "pg/group/own_messages.h"

namespace taco::pg {

class PointToPointOwner {
 public:
  virtual ~PointToPointOwner() = default;
  virtual void message_done_st(OperationState& operation, const Status& status) = 0;
  virtual void message_broken_st(OperationState& operation, int rank, const Status& why) = 0;
};

struct PointToPointMessage;

class PointToPoint {
 public:
  PointToPoint(PointToPointOwner& owner, GroupView& group);
  ~PointToPoint();

  void start_st(OperationState& operation, harp::Transport& transport);
  // Ends the operation with `why`; message_done_st follows, perhaps within this call.
  void fail_st(OperationState& operation, const Status& why);
  // Is this the receive of a message that waits here already?
  bool is_here_st(const OperationState& operation, harp::Transport& transport);
  // A message of this user tag waits for a receive.
  void on_unmatched_st(std::uint32_t tag);
  void peer_gone_st(int rank);
  // Has a message been sent to, or asked of, this rank?
  bool has_exchanged_st(int rank) const;

  static std::uint64_t wire_tag(std::uint32_t tag, std::uint32_t number) {
    return (std::uint64_t{tag} << 32) | (std::uint64_t{1} << 31) | (number & 0x7fffffff);
  }
  static bool is_wire_tag(std::uint64_t tag) { return (tag >> 31 & 1) != 0; }
  static std::uint32_t user_tag(std::uint64_t tag) { return static_cast<std::uint32_t>(tag >> 32); }

  std::string describe(const OperationState& operation) const;

 private:
  struct Counter {
    std::uint32_t next = 0;
    std::uint32_t solicited = UINT32_MAX;  // the number last asked for
  };
  static std::uint64_t counter_key(int rank, std::uint32_t tag) {
    return (std::uint64_t(static_cast<std::uint32_t>(rank)) << 32) | tag;
  }

  template <class Open>
  void open_parts(PointToPointMessage& message, Counter& counter, const Open& open);
  void post_send(PointToPointMessage& message);
  void post_receive(PointToPointMessage& message);
  void match(std::uint32_t tag);
  int find_source(std::uint32_t tag);
  int last_gone() const;
  void part_done(PointToPointMessage& message, const Status& status, std::size_t bytes,
                 std::size_t expected);
  void finish_if_done(PointToPointMessage& message);
  PointToPointMessage& take();
  static void on_sent(harp::SendRequest& request, const Status& status);
  static void on_received(harp::RecvRequest& request, const Status& status);

  // Is the peer this rank?
  bool is_own(const OperationState& operation) const { return operation.spec.root == group_.rank; }

  PointToPointOwner& owner_;
  GroupView& group_;
  const std::unique_ptr<PointToPointMessage> own_mark_;
  OwnMessages own_;
  harp::Transport* transport_ = nullptr;
  std::unordered_map<std::uint64_t, Counter> sent_, received_;  // by counter_key
  // Receives that wait because one of them is from any source, by tag; none is ever empty.
  std::unordered_map<std::uint32_t, std::deque<PointToPointMessage*>> waiting_;
  int last_source_ = 0;
  std::vector<std::unique_ptr<PointToPointMessage>> all_;
  std::vector<PointToPointMessage*> free_;
};

}  // namespace taco::pg
