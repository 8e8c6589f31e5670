// The Controller's implementation: the thread, the process sets, and what the program's threads may
// ask meanwhile. Spread over two files: controller.cc, the program's side and the making, and
// controller_thread.cc, the thread's side.
//
// How it ends. A program that shuts it down has the global set's ranks come to a last round; after
// that every rank has the last rounds of all other sets, runs what was agreed on, tells what was
// not that it is over, and lets go of the groups. A lost rank, or one that can do no more, ends all
// of it at once, on all ranks, by the failure of the groups.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "base/fork.h"
#include "pg/controller/controller.h"
#include "pg/controller/inbox.h"
#include "pg/controller/process_set.h"
#include "pg/controller/submission.h"
#include "pg/controller/summons.h"

namespace taco::pg::controller {

// The families of a group's controllers, by their numbers in the order in which they are made. Far
// from those of others that are nested in the group.
std::uint64_t family_of(std::uint64_t group, std::uint64_t number);

class ControllerCore final : public Controller, private ProcessSet::Owner, private Summons::Owner {
 public:
  ControllerCore(std::shared_ptr<NestedGroups> groups, ControllerOptions options);
  ~ControllerCore() override { shutdown(); }
  static void operator delete(ControllerCore* core, std::destroying_delete_t) {
    end_unless_copied(core);
  }
  // Once, before anything else.
  Status open();

  // Controller: any thread.
  Result<std::shared_ptr<Submission>> submit(int set, Request request,
                                             std::shared_ptr<Tensors> tensors) override;
  Result<std::vector<int>> ranks_of(int set) const override;
  Result<std::vector<int>> sets() const override;
  Status set_listener(std::shared_ptr<Listener> listener) override;
  std::uint64_t sleeps() const override { return inbox_->sleeps(); }
  void shutdown() override;

  const std::uint32_t generation = fork_generation();  // of the process that made it

 private:
  bool is_copy() const { return generation != fork_generation(); }
  // A process set as any thread sees it.
  struct Front {
    std::vector<int> ranks;
    int place = -1;                         // of this rank among them; -1: it is no member
    std::unordered_set<std::string> names;  // pending ones of this rank
    bool joined = false;                    // a join of this rank is pending
  };

  // controller.cc
  Status check_set(int set) const;  // with the lock held, as the next
  Status check(const Request& request, const Front& front, bool has_tensors) const;
  std::string known_sets() const;
  void forget(const PendingRequest& pending);  // it has ended

  // controller_thread.cc
  void run();
  void adopt();
  Time step_sets();
  void begin_leaving(const Status& why, bool asks);
  void leave_with_the_others();
  void drop_removed();
  bool is_over() const;
  bool has_ended_all() const;
  Time look_for_patience(Time now);
  std::string moving() const;
  void break_off(const Status& why);
  void transport_stopped();
  void let_go();
  Status open_set(int id, const std::vector<int>& ranks);
  Outcome add_set(const Request& request);
  Outcome remove_set(const Request& request);

  // ProcessSet::Owner
  void requests_ended(std::span<const PendingPtr> all, const Outcome& outcome) override;
  void set_failed(const Status& why) override;
  Outcome change_sets(const Request& request) override;
  void summon(const ProcessSet& set, Summons::What what) override;
  Listener* set_listener_now() override { return listener_now_.get(); }
  // Summons::Owner
  void summoned(int set, Summons::What what) override;
  void summons_failed(const Status& why) override;

  const std::shared_ptr<NestedGroups> groups_;
  const ControllerOptions options_;
  const std::uint64_t family_;
  const std::shared_ptr<Inbox> inbox_;

  std::mutex joining_;  // of the thread
  std::unique_ptr<std::thread> thread_;

  mutable std::mutex mutex_;  // guards what follows
  std::map<int, Front> fronts_;
  std::vector<PendingPtr> submitted_;
  Status refusal_;  // of requests, once it ends
  bool shutdown_asked_ = false;
  std::shared_ptr<Listener> listener_;

  // The thread's.
  std::map<int, std::unique_ptr<ProcessSet>> sets_;  // of which this rank is a member
  std::set<int> removed_;                            // that still have their last round
  std::optional<Summons> summons_;
  std::map<int, Summons::What> early_;  // calls to sets that are not here yet
  std::shared_ptr<Listener> listener_now_;
  int next_set_ = 1;
  bool leaving_ = false, others_leave_ = false, stopped_ = false;
  Status broken_;      // why it is being broken off
  Status to_break_;    // the same, before that is done
  Time progress_ = 0;  // something happened, while leaving
};

}  // namespace taco::pg::controller
