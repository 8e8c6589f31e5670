// A started operation, seen from both sides: the caller's handle (operation.h) and the engine's
// record. The caller's Work and the engine share it; the engine's share ends with complete_st().
// Nothing of the caller's memory is touched after complete_st().
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/cache_line.h"
#include "base/list.h"
#include "harp/engine/stack.h"
#include "pg/operation.h"

namespace taco::pg {

class OperationState;
class Execution;
struct PointToPointMessage;
struct OneSided;

// Memory that stands in for the caller's where inputs and outputs overlap in a way no schedule
// allows. See staging.h.
struct Staged {
  std::unique_ptr<std::byte[]> memory;
  std::vector<Piece> outputs;  // the caller's, to be filled from the staged ones at the end
};

// The runner of operations, that is a group: it takes each over on the engine.
class OperationRunner {
 public:
  virtual ~OperationRunner() = default;
  virtual void take_st(OperationState& operation, harp::Transport& transport) = 0;
};

class alignas(kCacheLine) OperationState final
    : public Operation,
      public harp::Task,
      public std::enable_shared_from_this<OperationState> {
 public:
  OperationState(OperationSpec spec, OperationRunner& runner, std::weak_ptr<harp::Stack> stack);

  // Operation: any thread.
  bool done() const override { return event_.is_set(); }
  Status status() const override;
  using Operation::wait;
  Status wait(Duration timeout, Time until) override;
  bool wait_until(Time until) override;
  std::uint64_t sequence() const override { return sequence_; }
  int source_rank() const override { return source_rank_; }
  Duration elapsed() const override;
  const char* algorithm() const override { return algorithm_.load(std::memory_order_relaxed); }
  void on_complete(std::function<void()> callback) override;

  // Task: the engine takes it over.
  void run_st(harp::Transport& transport) override;

  // "all_reduce SUM float32 x 4 (sequence 17)"
  std::string describe() const;
  bool is_point_to_point() const override { return !is_collective(spec.kind); }

  // Ends the operation: publishes `status`, wakes waiters, posts callbacks, lets go of the
  // engine's share. Once, by the engine, or by start() for what needs no engine.
  void complete(const Status& status, Time now);

  // Set before submission, then constant; `spec` belongs to the engine until completion.
  void set_sequence(std::uint64_t sequence) { sequence_ = sequence; }
  OperationSpec spec;
  std::uint64_t signature = 0;
  std::uint64_t bytes = 0;  // what the statistics count: the larger of inputs and outputs
  Time submitted = 0;
  Time deadline = kNever;
  Staged staged;
  bool in_place = false;

  // The engine's.
  std::shared_ptr<OperationState> self;    // while the engine works on it
  Links<OperationState> links;             // of its group's open operations
  Execution* execution = nullptr;          // of a collective that runs
  PointToPointMessage* message = nullptr;  // of a send or receive that runs
  OneSided* one_sided = nullptr;           // of a window's that runs
  Time started = 0;
  Status failure;  // why it is being cancelled, while requests are still open
  bool failing = false;
  std::uint32_t stage = 0;     // that runs, from 0
  std::size_t bytes_done = 0;  // received so far, for the dump
  void set_source_rank(int rank) { source_rank_ = rank; }
  void set_algorithm(const char* name) { algorithm_.store(name, std::memory_order_relaxed); }

 private:
  OperationRunner& runner_;
  const std::weak_ptr<harp::Stack> stack_;
  std::uint64_t sequence_ = 0;
  harp::Event event_;
  std::atomic<const char*> algorithm_{""};
  int source_rank_ = -1;  // published by event_
  Time ended_ = 0;        // published by event_
  Status status_;         // published by event_
  std::mutex mutex_;      // guards callbacks_ against completion
  std::vector<std::function<void()>> callbacks_;
};

}  // namespace taco::pg
