// Memory of this rank that the others of its group write into without its taking part: a put writes
// at an offset, a signal counts, and a wait takes one signal of a given rank. A put counts as a
// signal, too. The signals of a rank are counted in the order in which it gave them, each once
// every put of that rank before it has landed.
//
// Nothing of HARP's wire knows of it (docs/decisions/0011-puts-are-messages.md). Each rank numbers
// its heads (window_message.h) to each owner. The owner takes them in that order, checks each
// against the window's bounds and dtype, and posts the receive of longer bytes right into the
// window. Puts of one rank into the same place land in order.
//
//   an inbox      event                              then
//   quiet         a head is heard, or waited for     taking: the receive of the next head is open
//   taking        a head comes, and may land         its landing is open; taking, if there is more
//   taking        a head comes that overlaps a       held: nothing is taken before that has landed
//                 landing, or is one too many
//   held          the landing that it waits for is   as if the head came now
//                 over
//   any           stop_st()                          stopped, once every open receive has ended
//
// Engine only; one per group that has a window.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "harp/transport.h"
#include "pg/execution/executor.h"
#include "pg/window/window_message.h"

namespace taco::pg {

class WindowOwner {
 public:
  virtual ~WindowOwner() = default;
  virtual void one_sided_done_st(OperationState& operation, const Status& status) = 0;
  virtual void one_sided_broken_st(OperationState& operation, int rank, const Status& why) = 0;
  // A put of `rank` into this window is refused (kMismatch), or was given up by it.
  virtual void incoming_broken_st(int rank, const Status& why) = 0;
  // This rank begins to wait for one with which nothing has been exchanged: that one is to
  // learn_of_st() it, so as to tell when it leaves.
  virtual void introduce_st(int rank) = 0;
  virtual void window_stopped_st() = 0;  // nothing touches the memory any more
};

struct OneSided;

class Window {
 public:
  // `group` and the memory outlive it, the memory until it has stopped.
  Window(WindowOwner& owner, GroupView& group, WindowMemory memory);
  ~Window();

  const WindowMemory& memory() const { return memory_; }

  // A put, a signal or a wait. One to this rank itself has put its bytes in place already.
  void start_st(OperationState& operation, harp::Transport& transport);
  // Ends the operation with `why`; one_sided_done_st follows, perhaps within this call.
  void fail_st(OperationState& operation, const Status& why);
  // A head of this rank waits for its receive.
  void heard_st(int rank, harp::Transport& transport);
  void learn_of_st(int rank) { (void)inbox_of(rank); }
  void peer_gone_st(int rank);
  // Takes nothing more. Idempotent; window_stopped_st() follows, perhaps within the first call.
  void stop_st(const Status& why);
  bool has_stopped_st() const { return stopping_ && open_ == 0; }
  bool is_stopping_st() const { return stopping_; }
  // Has this rank heard of the other, or sent it anything?
  bool knows_st(int rank) const;

  std::string describe(const OperationState& operation) const;

 private:
  struct Inbox;
  struct Landing;
  struct Outbox {
    std::uint32_t next_head = 0, next_bytes = 0;
  };

  bool is_own(const OperationState& operation) const { return operation.spec.root == group_.rank; }
  OneSided& take(OperationState& operation);
  Inbox& inbox_of(int rank);
  harp::PeerId peer_of(int rank) const { return (*group_.peers)[rank]; }
  harp::MessageKey head_key(const Inbox& inbox) const;
  bool has_next_head(const Inbox& inbox) const;

  void send(OneSided& one);
  void send_head(OneSided& one, const WindowMessage& message, std::size_t index);
  void wait(OneSided& one);
  void sent(OneSided& one, const Status& status);
  void finish_if_done(OneSided& one);

  void take_next_head(Inbox& inbox);
  void head_came(Inbox& inbox, const Status& status);
  void landed(Landing& landing, const Status& status);
  void advance(Inbox& inbox);
  bool may_land(const Inbox& inbox, const WindowMessage& put) const;
  void land(Inbox& inbox, const WindowMessage& message);
  void count_signals(Inbox& inbox);
  void fail_waits(Inbox& inbox, const Status& why);
  void ended_one();

  WindowOwner& owner_;
  GroupView& group_;
  const WindowMemory memory_;
  harp::Transport* transport_ = nullptr;
  std::vector<Outbox> outboxes_;                 // by rank
  std::vector<std::unique_ptr<Inbox>> inboxes_;  // by rank; null: nothing has come of it
  int open_ = 0;                                 // receives
  bool stopping_ = false;
  std::vector<std::unique_ptr<OneSided>> all_;
  std::vector<OneSided*> free_;
};

}  // namespace taco::pg
