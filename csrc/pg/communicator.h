// Runs the operations of one group on one rank. A group costs no thread and no descriptor.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pg/cost.h"
#include "pg/operation.h"
#include "pg/planning/cost_parameters.h"
#include "pg/planning/topology.h"

namespace taco::pg {

// The group to which a child belongs, and with which it fails. A child runs operations that belong
// to one of its parent's: those that a callback of its future starts.
struct Parent {
  std::uint64_t group = 0;  // 0: none
  std::uint64_t root = 0;   // the parent's own, or `group`: the program's group
};

struct GroupOptions {
  std::uint64_t id = 0;  // random, chosen by rank 0, the same on all ranks
  std::string name;      // torch's, for messages
  int rank = 0;
  int world = 1;
  std::vector<harp::PeerId> peers;  // by group rank; peers[rank] is unused
  std::vector<int> global_ranks;    // by group rank, for messages
  std::vector<int> host_of_rank;    // dense host index by group rank, the same on all ranks
  std::vector<double> host_gbits;   // interface speed by host index
  int intra_size = 0;               // Topology::grouped; 0: the hosts. The same on all ranks
  Duration timeout = 0;
  Parent parent;
  CostParameters costs;   // what the planner assumes, the same on all ranks
  std::string algorithm;  // as TACO_ALGORITHM, for this group only; "": what TACO_ALGORITHM says
  // This rank's memory for puts of the others, who begin only when all have made the group. It
  // stays until close_window() has returned, or close(). A group has sends and receives or this.
  std::optional<WindowMemory> window;
  bool runs_parts = false;  // of a group of the same id on another engine, and nothing else
};

// Another engine of the process, for parts of the group's large operations.
struct FurtherEngine {
  std::shared_ptr<harp::Stack> stack;
  std::vector<harp::PeerId> peers;  // the members there, as GroupOptions::peers
};

// An operation that has not ended.
struct OpenOperation {
  std::uint64_t sequence = 0;  // of a collective; 0: it is none
  std::string text;            // what it is, step, peer, bytes done
};

// A group as it stands on this rank: how far it has come, what it runs, why it has failed.
struct GroupReport {
  std::string name;
  int rank = 0, world = 1;
  std::vector<int> global_ranks;  // as in GroupOptions
  std::uint64_t sequence = 0;     // of collectives started
  Status error;                   // as Communicator::error()
  bool destroyed = false;
  std::optional<std::vector<OpenOperation>> open;  // none: the engine does not answer
};
std::string describe(const GroupReport& report);
std::string describe(const std::vector<OpenOperation>& open);

class Communicator {
 public:
  // `stack` may be null only when world == 1. Where there are further engines, as many and in the
  // same order on all ranks, large operations are cut among all (pg/group/striped_group.h).
  static Result<std::shared_ptr<Communicator>> create(
      std::shared_ptr<harp::Stack> stack, GroupOptions options,
      const std::vector<FurtherEngine>& further = {});
  virtual ~Communicator() = default;

  // Any thread, without the GIL. Checks what can be checked locally (kInvalidArgument,
  // kUnsupported); everything else arrives through the operation. Never blocks.
  virtual Result<OperationPtr> start(OperationSpec spec) = 0;

  // Fails every open operation with `why`, tells the members, refuses new ones. Any thread;
  // idempotent.
  virtual void abort(const Status& why) = 0;
  // Waits, at most `linger`, until sends are acknowledged and their receivers have come to the
  // operations they belong to; then leaves. Returns the failure of the group that no operation has
  // told yet: a broadcast's root is done before its receivers can disagree. Idempotent.
  virtual Status close(Duration linger) = 0;

  // Drops what others still put: nothing is written to the window after this has returned ok.
  // Operations of this rank that wait for a signal fail with `why`. kInternal: the engine does not
  // answer, and may yet write. Any thread but the engine's.
  virtual Status close_window(const Status& why) = 0;

  // Closes it as soon as no operation is open, however long that takes, and keeps it alive until
  // then. Nobody may start another. Does not block.
  virtual void close_when_idle(Duration linger) = 0;

  virtual Status error() const = 0;            // first failure that broke the group, or ok
  virtual std::uint64_t sequence() const = 0;  // of collectives started
  virtual void set_timeout(Duration timeout) = 0;
  virtual const GroupOptions& options() const = 0;
  // The topology that plans are made for. Immutable, as long-lived as the group.
  virtual const Topology& topology() const = 0;
  // Predicts, by the planner's model, what averaging so many bytes of float32 in place should take,
  // with a codec or, if that is null, exact. The same on all ranks. Any thread.
  virtual Cost predict_average(std::uint64_t bytes,
                               const std::shared_ptr<const Codec>& codec) const = 0;
  // The same for what start() would run. Checks it likewise; kUnsupported for what the model does
  // not know: sends, receives, and operations of several stages.
  virtual Result<Cost> predict(OperationSpec spec) const = 0;

  // Calls back once, on the completion thread, when the group has failed; not for being closed. At
  // once if it has failed already. Any thread.
  virtual void on_failure(std::function<void()> callback) = 0;

  // Once, before anything else is started: all ranks come to it, with the same digest of what they
  // were told about the group, or the group fails with a reason that names those that did not.
  virtual Status roll_call(std::uint64_t digest, Duration timeout) = 0;
  // All ranks arrive or the missing ones are named, all of them when `report_all`.
  virtual Status monitored_barrier(Duration timeout, bool report_all) = 0;
  virtual GroupReport report() const = 0;
  std::string dump() const { return describe(report()); }
};

// Per-algorithm calls, bytes and time since the process started, for taco_torch.stats().
struct AlgorithmStats {
  std::string name;  // "all_reduce/ring"
  std::uint64_t calls = 0, bytes = 0;
  double seconds = 0;
};
std::vector<AlgorithmStats> algorithm_stats();
std::vector<GroupReport> report_all_groups();
std::string dump_all_groups();

}  // namespace taco::pg
