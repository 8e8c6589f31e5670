// One call to a process group, described without torch: its kind, element type and buffers.
// pg/c10d translates torch's calls into these; schedules and the executor know nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/far_future.h"
#include "base/status.h"
#include "harp/engine/stack.h"
#include "kernels/kernels.h"

namespace taco::pg {

struct OperationSpec;

enum class Kind : std::uint8_t {
  kAllReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kReduce,
  kGather,
  kScatter,
  kAllToAll,
  kBarrier,
  kSend,
  kRecv,
  kRecvAny,
  kPut,
  kSignal,
  kWaitSignal,
};
const char* name_of(Kind kind);  // "all_reduce", ... : torch.distributed's names

// Operations of a window (GroupOptions::window).
inline bool is_one_sided(Kind kind) {
  return kind == Kind::kPut || kind == Kind::kSignal || kind == Kind::kWaitSignal;
}
// All ranks of the group take part, in the same order.
inline bool is_collective(Kind kind) {
  return kind != Kind::kSend && kind != Kind::kRecv && kind != Kind::kRecvAny &&
         !is_one_sided(kind);
}

class Codec;
class WholeCall;
struct Feedback;

// A part of a call that several engines run, as one of them has it (group/striped_group.h). Its
// pieces are cut out of the call's.
struct Part {
  std::uint64_t signature = 0;  // the call's, which messages carry; 0: it is no part
  std::uint64_t sequence = 0;   // the call's number; 0: the next
  int index = 0, count = 1;     // the first is the home's
};

struct Piece {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

// Memory that the others of a group may write into (pg/window/window.h).
struct WindowMemory {
  Piece memory;
  kernels::Dtype dtype = kernels::Dtype::kU8;
};

// The later stages of an operation whose ranks learn in one stage what the next one exchanges. To
// everybody it is one operation, with one sequence number, signature, deadline and failure; the
// tags of its messages tell the stages apart (pg/planning/schedule.h).
class Stages {
 public:
  virtual ~Stages() = default;
  // Called on the engine each time a stage has been done here. Makes of `spec` the next one, whose
  // pieces lie in memory that this object owns, and returns true; or false when there is none. A
  // failure ends the operation: kResource, that of this rank alone, with it the group from here on;
  // of any other kind all ranks come to the same, from what they have received.
  virtual Result<bool> next_st(OperationSpec& spec) = 0;
};

// One call as this rank sees it. `inputs` and `outputs` are lists of contiguous pieces whose
// meaning the kind fixes; pieces may have different sizes where torch allows it, zero included:
//   all_reduce, reduce   one input piece, one output piece (may be the same memory)
//   broadcast            one piece, in outputs on every rank (root's is read)
//   all_gather           one input; `world` outputs, output r receives rank r's input
//   gather               one input; `world` outputs at the root
//   scatter              `world` inputs at the root; one output
//   reduce_scatter       `world` inputs; one output
//   all_to_all           `world` inputs, `world` outputs
//   send / recv          one piece, peer in `root`, user tag in `tag`
//   put                  one input, peer in `root`, place in its window in `offset`
//   signal, wait_signal  no piece, peer in `root`
struct OperationSpec {
  Kind kind = Kind::kBarrier;
  kernels::Dtype dtype = kernels::Dtype::kU8;
  kernels::ReduceOp op = kernels::ReduceOp::kSum;
  double premul = 1.0;  // kPremulSum's factor
  int root = 0;         // root, or the peer of two ranks' operations; -1: any source
  std::uint32_t tag = 0;
  std::uint64_t offset = 0;  // in bytes
  std::vector<Piece> inputs;
  std::vector<Piece> outputs;
  Duration timeout = 0;  // 0: the group's
  bool caller_will_wait = false;
  // all_to_all: the caller knows that all blocks of all ranks are equal (no split lists were
  // given). Allows algorithms that rely on it; where one is chosen, all ranks must set it alike.
  bool equal_splits = false;
  std::shared_ptr<Stages> stages;  // after this one; null: there is one stage only
  // Lets algorithms send blocks in coded form (pg/codec.h); null: the result is exact.
  std::shared_ptr<const Codec> codec;
  // The memory of this gradient, for a codec that has one (Codec::has_memory).
  std::shared_ptr<Feedback> feedback;
  // Settings that the ranks of a coded gradient must have in common beside it.
  bool scaled = false;  // the loss is multiplied by a GradScaler
  bool fates = false;   // what has become of earlier ones (lightcc::Gradients::Plan)
  Part part;
  std::shared_ptr<WholeCall> whole;  // of the part; hears how it ends in place of everybody else
  // Told how it ended here, and after how long, before anybody else hears of that: on the engine,
  // so it takes no time and calls nothing of this group. Empty: nobody asks.
  std::function<void(const Status& status, Duration elapsed)> ended_st;
};

// The size that statistics count: all inputs or all outputs, whichever are larger.
std::uint64_t bytes_of(const OperationSpec& spec);

// A started operation. Shared by the caller's Work and the engine.
class Operation {
 public:
  virtual ~Operation() = default;
  virtual bool done() const = 0;
  // Valid once done(). Timeout texts name operation, sequence, size, who arrived and who did not.
  virtual Status status() const = 0;
  // Drives the engine inline; without the GIL. kTimeout when `timeout` passes first (the operation
  // itself goes on and has its own deadline); 0 waits for the operation's own deadline.
  Status wait(Duration timeout) {
    return wait(timeout, timeout > 0 ? later(monotonic_now(), timeout) : kNever);
  }
  // The same for who has begun to wait before.
  virtual Status wait(Duration timeout, Time until) = 0;
  // True: it is done, or never will be, since the transport has stopped.
  virtual bool wait_until(Time until) = 0;
  // A collective's number in its group, from 1, the same on all ranks; no two have the same.
  // Messages carry its low 32 bits. What is between two ranks has the number of the newest
  // collective at that time.
  virtual std::uint64_t sequence() const = 0;
  virtual bool is_point_to_point() const { return false; }
  virtual int source_rank() const = 0;        // kRecvAny: who sent
  virtual Duration elapsed() const = 0;       // from start to completion, ns
  virtual const char* algorithm() const = 0;  // what the planner chose
  // Called once, on the completion thread, never on the engine and under no lock; at once (on that
  // thread) when already done. Callbacks may start operations and wait for them.
  virtual void on_complete(std::function<void()> callback) = 0;
};
using OperationPtr = std::shared_ptr<Operation>;

}  // namespace taco::pg
