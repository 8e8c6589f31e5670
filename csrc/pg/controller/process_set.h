// One process set as one of its ranks has it: what is pending there, the rounds in which the ranks
// find out what all of them have submitted, and the two groups that the set has, one for rounds,
// one for data.
//
// A round is an all_reduce of the negotiation's bits and, where words follow, two all_gathers. A
// rank begins one when it has something pending; the others' operation waits for it, without a
// limit of time, and ends when a rank is lost. A set ends by a last round, that says so and which
// all ranks come to: whatever they have agreed on before runs to its end on all of them.
//
// Owned by the controller; its thread only. Functions return at once.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "pg/controller/controller.h"
#include "pg/controller/inbox.h"
#include "pg/controller/negotiation.h"
#include "pg/controller/response_runner.h"
#include "pg/controller/submission.h"
#include "pg/controller/summons.h"
#include "pg/group/nested_groups.h"

namespace taco::pg::controller {

// "0.3 s".
std::string seconds_text(Duration duration);

class ProcessSet final : private ResponseRunner::Owner {
 public:
  class Owner {
   public:
    virtual ~Owner() = default;
    // All of them alike; null ones are none.
    virtual void requests_ended(std::span<const PendingPtr> all, const Outcome& outcome) = 0;
    void request_ended(const PendingPtr& pending, const Outcome& outcome) {
      requests_ended({&pending, 1}, outcome);
    }
    // A rank is lost, or this one can do no more: nothing that these ranks do together can go on.
    virtual void set_failed(const Status& why) = 0;
    // A response about process sets themselves.
    virtual Outcome change_sets(const Request& request) = 0;
    virtual void summon(const ProcessSet& set, Summons::What what) = 0;
    virtual Listener* set_listener_now() = 0;  // null: none
  };
  // `family`: the controller's number, from which the groups' are made.
  struct Place {
    int id = 0;
    std::vector<int> ranks;  // of all, rising
    std::uint64_t family = 0;
  };

  static Result<std::unique_ptr<ProcessSet>> open(Owner& owner, std::shared_ptr<Inbox> inbox,
                                                  NestedGroups& groups, Place place,
                                                  const ControllerOptions& options);
  ProcessSet(Owner& owner, std::shared_ptr<Inbox> inbox, Place place,
             const ControllerOptions& options, std::shared_ptr<Communicator> rounds,
             std::shared_ptr<Communicator> data);
  ProcessSet(const ProcessSet&) = delete;
  ProcessSet& operator=(const ProcessSet&) = delete;

  int id() const { return place_.id; }
  const std::vector<int>& ranks() const { return place_.ranks; }

  void submit(const PendingPtr& pending);
  // Another rank has called this one to a round.
  void come(Summons::What what);
  // Begins what is due by `now`. Returns when there is more to do, if nothing happens before.
  Time step(Time now);

  // The next round is the last. `asks`: this rank's program says so.
  void leave(bool asks);
  // The last round has been, and what was agreed in it may still run.
  bool is_over() const { return phase_ == Phase::kOver; }
  // The last round has begun everywhere; nobody needs more of this rank than it has begun.
  bool is_in_last_round() const { return last_round_; }
  // No operation of the set is open on this rank.
  bool is_idle() const;
  bool is_moving_data() const { return !runner_.is_idle(); }
  std::string moving() const { return runner_.busy_with(); }  // while it does
  const std::vector<int>& askers() const { return askers_; }  // of all ranks; once it is over

  // Ends with `why` what is pending and not agreed on, and whatever is submitted later.
  void end(const Status& why);
  // Everything, at all ranks; is_idle() some time later.
  void abort(const Status& why);
  // The transport has stopped.
  void give_up(const Status& why);
  // Leaves the groups once that holds up nobody; or now, within `linger`.
  void close_when_idle();
  void close(Duration linger);

 private:
  enum class Phase : std::uint8_t { kIdle, kBits, kSizes, kWords, kAskers, kOver, kFailed };
  using Handler = void (ProcessSet::*)();

  // ResponseRunner::Owner
  void requests_ended(std::span<const PendingPtr> all, const Outcome& outcome) override;
  void data_failed(const Status& why) override { fail(why); }
  Listener* listener() override { return owner_.set_listener_now(); }

  bool is_due(Time now) const;
  void begin_round(Time now);
  void start(OperationSpec spec, Phase phase, Handler done);
  void operation_ended(const Status& status, Handler done);
  void bits_combined();
  void sizes_gathered();
  void words_gathered();
  void finish_round();
  void gather_askers();
  void askers_gathered();
  void carry_out(Response response, bool is_last);
  PendingPtr take(const Request& request);
  void fail(const Status& why);
  Status with_global_rank(const Status& why) const;

  // process_set_stall.cc
  PendingPtr oldest();
  Duration question_after() const;  // 0: none
  Time look_for_stalls(Time now);
  void hear_of_missing(Time now);
  std::string missing_text(const Negotiation::Waiting& waiting) const;

  Owner& owner_;
  const std::shared_ptr<Inbox> inbox_;
  const Place place_;
  const ControllerOptions options_;
  const int rank_, world_;  // within the set
  const std::shared_ptr<Communicator> rounds_, data_;
  Negotiation negotiation_;
  ResponseRunner runner_;

  std::unordered_map<std::string, PendingPtr> pending_;  // not agreed on yet, by name
  PendingPtr join_;                                      // the same, whatever its name
  std::deque<PendingPtr> order_;                         // the same, and others: oldest first
  Status ended_;                                         // what is submitted from now on ends so

  Phase phase_ = Phase::kIdle;
  bool open_ = false;      // an operation of a round
  bool fresh_ = false;     // something was submitted since the last round began
  bool brought_ = false;   // the last round brought a response
  bool summoned_ = false;  // the next round is somebody else's wish
  bool leaving_ = false, asks_ = false, last_round_ = false;
  Time next_round_ = 0;  // after one that brought nothing
  std::vector<std::uint64_t> bits_;
  std::string words_;
  std::vector<std::int64_t> sizes_;
  std::vector<std::string> heard_;
  std::vector<std::uint8_t> asked_;
  std::vector<int> askers_;

  Time last_question_ = 0;  // to the others: what do they wait for?
  bool questioned_ = false;
  std::string missing_;  // the last answer, as text
};

}  // namespace taco::pg::controller
