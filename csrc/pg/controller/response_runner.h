// Carries out what all ranks of a process set have agreed to do, in that order, by operations of
// the set's data group. Unfused requests run where their tensors lie; fused ones are copied into
// one buffer and out of it again. The owner and its thread are the process set's; nothing here
// blocks.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "pg/communicator.h"
#include "pg/controller/fusion_buffer.h"
#include "pg/controller/inbox.h"
#include "pg/controller/submission.h"

namespace taco::pg::controller {

class ResponseRunner {
 public:
  class Owner {
   public:
    virtual ~Owner() = default;
    // All of a response alike; null ones are of ranks that have joined.
    virtual void requests_ended(std::span<const PendingPtr> all, const Outcome& outcome) = 0;
    // An operation has failed, or this rank has no memory for one that the others run: no later one
    // of the set can.
    virtual void data_failed(const Status& why) = 0;
    virtual Listener* listener() = 0;  // null: none
  };

  // `set`: the number of the process set. `keeps`: bytes of the fusion buffer that are kept for the
  // next time.
  ResponseRunner(Owner& owner, int set, std::shared_ptr<Inbox> inbox,
                 std::shared_ptr<Communicator> data, std::size_t keeps);

  // One response that moves data. `pending`: this rank's requests, in its order; null where it has
  // joined. `is_last`: the thread waits for what happens next as soon as this returns.
  void run(Response response, std::vector<PendingPtr> pending, bool is_last);
  // True: no memory of any request is in use.
  bool is_idle() const { return running_.empty() && waiting_.empty(); }
  // While it is not idle: one of the requests that it runs.
  std::string busy_with() const;
  // Ends with `why` those that have not been started. What runs ends by itself.
  void fail_waiting(const Status& why);
  // Ends all with `why`: the transport has stopped, and no operation will end any more.
  void give_up(const Status& why);

 private:
  struct Job;
  using JobPtr = std::shared_ptr<Job>;

  void start_waiting();
  void start(const JobPtr& job);
  Status prepare(Job& job);
  Status find_inputs(Job& job);
  Status prepare_all_reduce(Job& job);
  Status prepare_adasum(Job& job);
  Status prepare_tensors(Job& job);  // of the kinds that move each tensor by itself
  Status prepare_all_gather(Job& job, std::size_t part);
  Status prepare_broadcast(Job& job, std::size_t part);
  Status prepare_all_to_all(Job& job, std::size_t part);
  Status prepare_reduce_scatter(Job& job, std::size_t part);
  Status fill_buffer(Job& job, std::size_t bytes);
  void begin(const JobPtr& job, OperationSpec spec);
  bool exchange_more(const JobPtr& job);
  void fail(const Status& why);
  void operation_ended(const JobPtr& job, const Status& status);
  void finish(const JobPtr& job);
  void empty_buffer(Job& job);
  void tell_activity(const Job& job, const char* what);

  Owner& owner_;
  const int set_;
  const std::shared_ptr<Inbox> inbox_;
  const std::shared_ptr<Communicator> data_;
  const int rank_, world_;
  const std::shared_ptr<FusionBuffer> buffer_;
  std::deque<JobPtr> waiting_;  // for the buffer, or behind one that does
  std::set<JobPtr> running_;
  Status failure_;               // the first one; nothing is started afterwards
  std::uint32_t exchanges_ = 0;  // numbers the requests that send and receive, alike on all ranks
};

// The rows of `total` that rank r of `world` gets: as equal as can be, the first ranks one more.
inline std::int64_t share_of_rows(std::int64_t total, int rank, int world) {
  return total / world + (rank < total % world ? 1 : 0);
}

}  // namespace taco::pg::controller
