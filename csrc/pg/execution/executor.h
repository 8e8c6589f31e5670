// Runs one Schedule over a Transport: posts the sends and receives that are ready (executor.cc),
// does copies, arithmetic and coding inline (executor_local.cc), and tells its owner when the
// caller's part is done and when nothing is open any more. A state machine without a thread; every
// function runs on the engine.
//
// Executions are pooled (ExecutionPool) and keep their arrays, so that a steady state allocates
// nothing. Long arithmetic is cut into pieces of the schedule's turn_bytes, one a turn of the
// engine's loop, so that other operations progress meanwhile.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/cache_line.h"
#include "base/list.h"
#include "harp/engine/stack.h"
#include "pg/codec.h"
#include "pg/execution/operation_state.h"
#include "pg/execution/scratch_pool.h"
#include "pg/planning/schedule.h"

namespace taco::pg {

// The facts of its group that an Execution needs; constant but for `gone`.
struct GroupView {
  std::uint64_t id = 0;
  std::string name;
  int rank = 0;
  int world = 1;
  const std::vector<harp::PeerId>* peers = nullptr;
  std::vector<Status> gone;            // by rank: why it sends nothing more, ok while it may
  std::vector<std::uint32_t> arrived;  // newest collective each rank is known to have started
  std::vector<std::uint32_t> sent;     // newest collective each rank has received something of
};

class ExecutionOwner {
 public:
  virtual ~ExecutionOwner() = default;
  // The caller's buffers are done with: the operation may complete, or go on with another
  // Execution. Once for each start.
  virtual void finished_st(Execution& execution, OperationState& operation) = 0;
  // Nothing is open: the Execution may be used again. Once, after finished_st, last of all.
  virtual void drained_st(Execution& execution) = 0;
  // A request towards `rank` failed, or cannot be posted. Answer with fail_st, now or later.
  virtual void broken_st(Execution& execution, int rank, const Status& why) = 0;
};

class alignas(kCacheLine) Execution final : public harp::Task {
 public:
  void start_st(harp::Engine& engine, ExecutionOwner& owner, GroupView& group,
                OperationState& operation, std::shared_ptr<const Schedule> schedule,
                ScratchBlock scratch);
  // Cancels what is open; finished_st and drained_st follow when it has ended.
  void fail_st(const Status& why);
  bool has_open_st(int rank) const;                  // a request towards it
  void run_st(harp::Transport& transport) override;  // goes on with the arithmetic

  OperationState* operation() const { return operation_; }  // null once finished
  std::uint64_t sequence() const { return sequence_; }
  bool failing() const { return failing_; }
  ScratchBlock take_scratch() { return std::exchange(scratch_, {}); }
  std::size_t memory_bytes() const { return slots_.capacity() * sizeof(Slot); }

  // For the dump: "step 12 of 40, waiting for rank 2 (1.0 of 4.0 MiB received)".
  std::string describe_progress() const;
  // Ranks a receive is open from.
  std::vector<int> waiting_for() const;

  Links<Execution> links;  // of its group's, until it has drained

 private:
  enum class State : std::uint8_t { kWaiting, kReady, kPosted, kDone };
  struct Slot {  // one transfer
    Slot() : send() {}
    Execution* execution = nullptr;
    std::uint32_t step = 0;
    std::int32_t rank = 0;
    Time posted = 0;
    bool open = false;
    bool is_send = false;
    union {
      harp::SendRequest send;
      harp::RecvRequest recv;
    };
  };
  // A send to several peers: those on this host share one staged copy.
  struct Family {
    harp::Staging staging;
    bool used = false;
  };
  // One that is known by now, and of whose block it is.
  struct Length {
    std::uint64_t bytes = 0;
    std::int32_t from = 0;
  };
  // Sends, or receives: posted in the order of the schedule, a window of them at a time.
  struct Lane {
    std::vector<std::uint32_t> steps;
    std::uint32_t low = 0;    // all before it are done
    std::uint32_t limit = 0;  // those before it may be posted
  };

  static void on_sent(harp::SendRequest& request, const Status& status);
  static void on_received(harp::RecvRequest& request, const Status& status);

  void prepare();
  void make_ready(std::uint32_t step);
  bool post(std::uint32_t step);
  bool post_send(std::uint32_t step);
  bool post_receive(std::uint32_t step);
  bool refuses(int rank, const harp::MessageKey& key, bool is_send);
  void fill_sink(const Step& step, harp::Sink& sink);
  void finish_step(std::uint32_t step);
  void advance(Lane& lane);
  void pump();
  bool compute(const Step& step, std::size_t& budget);
  bool code(const Step& step, std::size_t& budget);
  Coding coding_of(const Step& step) const;
  void release(Family& family);
  void complete_step(std::uint32_t step);
  void finish_if_done();
  std::byte* address(const Slice& slice) const;
  bool writes_cold(const Step& step) const;

  harp::Engine* engine_ = nullptr;
  harp::Transport* transport_ = nullptr;
  ExecutionOwner* owner_ = nullptr;
  GroupView* group_ = nullptr;
  OperationState* operation_ = nullptr;
  std::shared_ptr<const Schedule> schedule_;
  ScratchBlock scratch_;
  std::uint64_t sequence_ = 0;
  std::uint32_t stage_ = 0;
  std::uint64_t signature_ = 0;
  std::size_t element_bytes_ = 1;
  kernels::ReduceFn reduce_ = nullptr;

  std::vector<Slot> slots_;               // by index into Schedule::transfers
  std::vector<std::uint32_t> remaining_;  // dependencies, then open transfers, of each step
  std::vector<std::uint32_t> position_;   // of a send or receive step in its lane
  std::vector<State> state_;
  std::vector<Family> families_;          // of sends to several peers
  std::vector<std::uint32_t> family_of_;  // by step
  Lane sends_, receives_;
  std::vector<std::uint32_t> local_;  // ready arithmetic, a queue from local_head_
  std::size_t local_head_ = 0;
  std::size_t local_offset_ = 0;  // done of the step at the head
  std::optional<Coding> coding_;  // what it codes
  Time coding_since_ = 0;         // 0 while the timeline is off
  std::vector<Length> lengths_;   // by number, of Schedule::lengths

  std::uint32_t steps_left_ = 0;
  std::uint32_t callers_steps_left_ = 0;
  std::uint32_t open_ = 0;
  bool busy_ = false;        // finish_if_done() is for the outermost call
  bool continuing_ = false;  // submitted to the engine
  bool failing_ = false;
  bool cold_output_ = false;
  bool finished_ = false;
};

class ExecutionPool {
 public:
  ExecutionPool() = default;
  ~ExecutionPool();
  ExecutionPool(const ExecutionPool&) = delete;
  ExecutionPool& operator=(const ExecutionPool&) = delete;
  Execution& take();
  void give(Execution& execution);
  ScratchPool& scratch() { return scratch_; }

 private:
  static constexpr std::size_t kKept = 64;
  static constexpr std::size_t kKeptBytes = 256 << 10;  // of one Execution's slots
  std::vector<Execution*> free_;
  ScratchPool scratch_;
};

}  // namespace taco::pg
