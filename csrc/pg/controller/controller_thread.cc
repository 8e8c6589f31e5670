// The controller's thread.
#include <algorithm>
#include <utility>

#include "base/names.h"
#include "pg/controller/controller_core.h"

namespace taco::pg::controller {
namespace {

// After a controller has been told to end, so long may pass in which nothing happens: a rank that
// lives but never made a controller would be waited for for ever.
constexpr Duration kPatience = 10 * kSecond;
constexpr Duration kLinger = 5 * kSecond;

Status removed(int set) {
  return Status(Code::kAborted, "process set " + std::to_string(set) + " was removed");
}

Status ended_by(const std::vector<int>& askers, int own) {
  std::string text;
  for (const int rank : askers) {
    append_name(text, std::to_string(rank) + (rank == own ? " (this one)" : ""));
  }
  return Status(Code::kAborted, (askers.size() == 1 ? "rank " : "ranks ") + text +
                                    (askers.size() == 1 ? " has" : " have") +
                                    " shut the controller down: nothing can be submitted any more");
}

}  // namespace

void ControllerCore::run() {
  while (!is_over()) {
    if (inbox_->read() > 0) progress_ = monotonic_now();
    adopt();
    const Time next = step_sets();
    if (is_over() || next <= monotonic_now()) continue;
    // While an operation is open, this thread is one that waits for the engine. Otherwise it leaves
    // that to others.
    const bool waits =
        std::ranges::any_of(sets_, [](const auto& each) { return !each.second->is_idle(); });
    if (!inbox_->sleep(next, waits)) transport_stopped();
  }
  let_go();
}

// Takes over what the program's threads have left.
void ControllerCore::adopt() {
  std::vector<PendingPtr> submitted;
  bool asked = false;
  {
    std::lock_guard lock(mutex_);
    submitted.swap(submitted_);
    asked = shutdown_asked_;
    listener_now_ = listener_;
  }
  for (const PendingPtr& pending : submitted) {
    const auto found = sets_.find(pending->set);
    if (found != sets_.end()) {
      found->second->submit(pending);
    } else {
      const Status why = removed(pending->set).with_prefix(pending->describe() + ": ");
      request_ended(pending, {.status = why});
    }
  }
  if (asked && !leaving_ && broken_.ok()) {
    begin_leaving(ended_by({options_.rank}, options_.rank), true);
  }
}

// Returns when there is more to do, if nothing happens before.
Time ControllerCore::step_sets() {
  const Time now = monotonic_now();
  Time next = kNever;
  for (const auto& [id, set] : sets_) next = std::min(next, set->step(now));
  if (to_break_.ok()) {
    leave_with_the_others();
    drop_removed();
    next = std::min(next, look_for_patience(now));
  }
  if (!to_break_.ok() && broken_.ok()) {
    break_off(to_break_);
    return now;  // what was submitted meanwhile is told, too
  }
  return broken_.ok() ? next : kNever;
}

void ControllerCore::begin_leaving(const Status& why, bool asks) {
  leaving_ = true;
  progress_ = monotonic_now();
  {
    std::lock_guard lock(mutex_);
    refusal_ = why;
  }
  if (!asks) return;
  ProcessSet& global = *sets_.at(0);
  global.leave(true);
  summons_->call(global.ranks(), 0, Summons::What::kEnd);
}

// The global set's last round has been: all ranks know that the controller ends, and who asked.
void ControllerCore::leave_with_the_others() {
  ProcessSet& global = *sets_.at(0);
  if (!global.is_over()) return;
  const Status why = ended_by(global.askers(), options_.rank);
  if (!leaving_) begin_leaving(why, false);
  if (!std::exchange(others_leave_, true)) {
    for (const auto& [id, set] : sets_) set->leave(false);
    inbox_->wake();  // they begin at once
  }
  for (const auto& [id, set] : sets_) {
    if (set->is_over() && !removed_.contains(id)) set->end(why);
  }
}

void ControllerCore::drop_removed() {
  for (auto each = removed_.begin(); each != removed_.end();) {
    const auto found = sets_.find(*each);
    ProcessSet& set = *found->second;
    if (set.is_over()) set.end(removed(*each));
    if (!set.is_over() || !set.is_idle()) {
      ++each;
      continue;
    }
    set.close_when_idle();
    sets_.erase(found);
    each = removed_.erase(each);
  }
}

bool ControllerCore::has_ended_all() const {
  return leaving_ && others_leave_ && std::ranges::all_of(sets_, [](const auto& each) {
           return each.second->is_over() && each.second->is_idle();
         });
}

bool ControllerCore::is_over() const {
  if (stopped_) return true;
  if (broken_.ok()) return has_ended_all() && to_break_.ok();
  return std::ranges::all_of(sets_, [](const auto& each) { return each.second->is_idle(); });
}

// Data may move for as long as its group allows, as long as something moves.
Time ControllerCore::look_for_patience(Time now) {
  if (!leaving_) return kNever;
  const std::string data = moving();
  const Duration patience = data.empty() ? kPatience : options_.timeout;
  if (now < later(progress_, patience)) return later(progress_, patience);
  const std::string shut = "the controller was shut down, but ";
  const std::string within = " within " + seconds_text(patience);
  set_failed(Status(Code::kAborted, data.empty()
                                        ? shut + "not all ranks have come to the end of it" +
                                              within + ": has each of them made one?"
                                        : shut + data + " has not ended" + within +
                                              ", the group's timeout: does a rank stand still?"));
  return now;
}

// The first request that moves data, by name; nothing where none does.
std::string ControllerCore::moving() const {
  for (const auto& [id, set] : sets_) {
    if (set->is_moving_data()) return set->moving();
  }
  return {};
}

void ControllerCore::break_off(const Status& why) {
  broken_ = why;
  {
    std::lock_guard lock(mutex_);
    refusal_ = why;
  }
  for (const auto& [id, set] : sets_) {
    set->abort(why);
    set->end(why);
  }
  summons_->stop(why);
}

void ControllerCore::transport_stopped() {
  const Status why(Code::kAborted, "the transport of the controller's groups was closed");
  if (broken_.ok()) break_off(why);
  for (const auto& [id, set] : sets_) set->give_up(why);
  stopped_ = true;
}

// The end of the thread: nobody is told anything afterwards but by refusal_.
void ControllerCore::let_go() {
  adopt();
  const bool good = broken_.ok();
  for (const auto& [id, set] : sets_) {
    if (id != 0 && good) set->close_when_idle();
  }
  if (good) summons_->stop(refusal_);
  for (const auto& [id, set] : sets_) {
    if (id == 0 || !good) set->close(good ? kLinger : 0);
  }
}

Status ControllerCore::open_set(int id, const std::vector<int>& ranks) {
  auto opened = ProcessSet::open(*this, inbox_, *groups_,
                                 {.id = id, .ranks = ranks, .family = family_}, options_);
  if (!opened.ok()) return opened.status();
  sets_.emplace(id, std::move(opened).value());
  return Status();
}

Outcome ControllerCore::change_sets(const Request& request) {
  return request.kind == Kind::kAddSet ? add_set(request) : remove_set(request);
}

Outcome ControllerCore::add_set(const Request& request) {
  const std::vector<int> ranks(request.ranks.begin(), request.ranks.end());
  const auto place = std::ranges::lower_bound(ranks, options_.rank);
  const bool is_member = place != ranks.end() && *place == options_.rank;
  int id = 0;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [known, front] : fronts_) {
      if (front.ranks != ranks) continue;
      return {.status = invalid(described(request) + ": process set " + std::to_string(known) +
                                " has just these ranks already")};
    }
    id = next_set_++;
  }
  if (is_member) {
    if (const Status opened = open_set(id, ranks); !opened.ok()) {
      set_failed(opened);
      return {.status = opened};
    }
  }
  {
    std::lock_guard lock(mutex_);
    fronts_[id] = {.ranks = ranks,
                   .place = is_member ? static_cast<int>(place - ranks.begin()) : -1};
  }
  if (const auto early = early_.extract(id); !early.empty() && is_member) {
    sets_.at(id)->come(early.mapped());
  }
  return {.set = id};
}

Outcome ControllerCore::remove_set(const Request& request) {
  {
    std::lock_guard lock(mutex_);
    if (fronts_.erase(request.root) == 0) {
      return {.status = invalid(described(request) + ": process set " +
                                std::to_string(request.root) + " is not known")};
    }
  }
  if (const auto found = sets_.find(request.root); found != sets_.end()) {
    found->second->leave(false);
    removed_.insert(request.root);
  }
  inbox_->wake();  // its last round begins at once
  return {};
}

void ControllerCore::requests_ended(std::span<const PendingPtr> all, const Outcome& outcome) {
  {
    std::lock_guard lock(mutex_);
    for (const PendingPtr& each : all) {
      if (each != nullptr) forget(*each);
    }
  }
  for (const PendingPtr& each : all) {
    if (each != nullptr) each->end(outcome);
  }
  for (const PendingPtr& each : all) {
    if (each != nullptr) each->tell();
  }
}

void ControllerCore::set_failed(const Status& why) {
  if (to_break_.ok()) to_break_ = why;
}

void ControllerCore::summon(const ProcessSet& set, Summons::What what) {
  summons_->call(set.ranks(), set.id(), what);
}

void ControllerCore::summoned(int set, Summons::What what) {
  if (const auto found = sets_.find(set); found != sets_.end()) {
    found->second->come(what);
  } else if (set >= next_set_) {
    early_[set] = std::max(early_[set], what);
  }
}

// In a last round others may be through with everything, and gone.
void ControllerCore::summons_failed(const Status& why) {
  if (!sets_.at(0)->is_in_last_round()) set_failed(why);
}

}  // namespace taco::pg::controller
