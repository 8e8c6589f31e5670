#include "zerocache/schedule/scheduler.h"

#include <algorithm>

#include "base/assert.h"
#include "base/names.h"
#include "zerocache/schedule/scheduler_marks.h"

namespace taco::zerocache {
namespace {

// One in so many of all pages that a run fetches may be on its way, or waiting in the place of
// another page: so much more is moved at most than if every page came at the last moment.
constexpr std::size_t kShareAhead = 50;
constexpr std::size_t kMinAhead = 6;
// Frames of the device that pages which are changed there leave to those that come and go: at most,
// and that share of all.
constexpr std::uint32_t kMaxForOthers = 4, kShareForOthers = 8;

std::string with_bytes(std::size_t pages, std::size_t page_bytes) {
  return count_text(pages, "page") + " (" + size_text(pages * page_bytes) + ")";
}

}  // namespace

Status check_capacities(const Capacities& capacities, std::size_t page_bytes, std::size_t pages,
                        std::size_t device_pages, std::size_t host_pages) {
  const auto refuse = [&](const char* what, std::size_t has, std::size_t needs,
                          const std::string& why) {
    return Status(Code::kInvalidArgument,
                  std::string(what) + " holds " + with_bytes(has, page_bytes) + ", but " + why +
                      ": give it " + with_bytes(needs, page_bytes) + " at least");
  };
  if (device_pages > capacities.device) {
    return refuse("device memory", capacities.device, device_pages,
                  "one operator needs " + with_bytes(device_pages, page_bytes) + " there at once");
  }
  const bool device_holds_all = pages <= capacities.device && host_pages == 0;
  // One frame for what comes up while another is for what goes down.
  const std::size_t passing = capacities.device > 0 && !device_holds_all ? 2 : 0;
  if (host_pages + passing > capacities.host) {
    const std::string why = host_pages == 0
                                ? "pages pass through it in both directions"
                                : "one operator needs " + with_bytes(host_pages, page_bytes) +
                                      " there at once, besides those that pass through";
    return refuse("host memory", capacities.host, host_pages + passing, why);
  }
  const std::size_t room = std::size_t{capacities.device} + capacities.host + capacities.disk;
  const std::size_t largest = std::max(capacities.device, capacities.host);
  const std::size_t spare = capacities.device == 0 ? (pages <= capacities.host ? 0 : 1) : passing;
  if (pages + spare > room && pages > largest) {
    return refuse("the sum of memory and disk", room, pages + spare,
                  "there are " + with_bytes(pages, page_bytes) + ", and room to exchange them");
  }
  return Status();
}

Scheduler::Scheduler(const Capacities& capacities, const Costs& costs, std::size_t pages)
    : capacities_(capacities),
      costs_(costs),
      pages_(capacities, pages),
      needed_(pages, 0),
      left_(pages, 0xFF),
      ahead_(pages, 0),
      evicting_(pages, 0),
      fetched_(pages, 0),
      given_up_(pages, 0),
      roams_(pages, 0),
      writing_(pages, 0) {
  for (auto& wanted : wanted_) wanted.assign(pages, kNoPosition);
  for (PageHeap& queue : queues_) queue.resize(pages);
  for (PageHeap& queue : blanks_) queue.resize(pages);
}

void Scheduler::place(PageId page, Tier tier) {
  pages_.place(page, tier);
  unmark(left_[page], tier);
}

const Trace* Scheduler::trace_of(const std::string& name) const {
  const auto found = runs_.find(name);
  return found == runs_.end() || !found->second->follower.known()
             ? nullptr
             : &found->second->follower.trace();
}

// A run is expected to be followed by one like it, unless more is known.
std::array<const Trace*, 3> Scheduler::course() const {
  std::array<const Trace*, 3> course{};
  std::string name = name_;
  for (const Trace*& trace : course) {
    trace = trace_of(name);
    const auto found = runs_.find(name);
    if (found != runs_.end() && !found->second->next.empty()) name = found->second->next;
  }
  return course;
}

void Scheduler::begin_run(const std::string& name) {
  if (run_ != nullptr) runs_[name_]->next = name;
  std::unique_ptr<Run>& run = runs_[name];
  if (run == nullptr) run = std::make_unique<Run>();
  run_ = run.get();
  name_ = name;
  run_->follower.begin_run();
  const auto expected = course_;
  course_ = course();
  if (course_[0] != expected[0] || course_[1] != expected[1]) renew_all();
  const std::size_t accesses = course_[0] == nullptr ? 0 : course_[0]->accesses();
  look_ahead_ = std::max(kMinAhead, accesses / kShareAhead);
}

void Scheduler::end_run() {
  Follower& follower = run_->follower;
  const Position size = course_[0] == nullptr ? follower.position() : course_[0]->size();
  renew_next_uses(follower.position(), size, size);
  const bool changed = follower.end_run();
  base_ += size;
  course_ = changed ? decltype(course_)() : decltype(course_){course_[1], course_[2], nullptr};
}

Tier Scheduler::best_tier(PageId page) const {
  if (capacities_.device == 0 || !pages_.holds(page, Tier::kDevice)) return Tier::kHost;
  const bool twice = pages_.has(page, Tier::kHost) && pages_.has(page, Tier::kDevice);
  const std::size_t stay = pages_.evictable(Tier::kDevice, Residency::kSole).size();
  const std::uint32_t others = std::min(kMaxForOthers, capacities_.device / kShareForOthers);
  return twice && stay + others >= capacities_.device ? Tier::kHost : Tier::kDevice;
}

Status Scheduler::fits(std::span<const Access> accesses) const {
  std::size_t sets[2] = {};
  std::size_t pages = pages_.with_content();
  for (const Access& access : accesses) {
    ++sets[index_of(access.tier)];
    if (!pages_.has_content(access.page)) ++pages;
  }
  return check_capacities(capacities_, costs_.page_bytes, pages, sets[0], sets[1]);
}

Status Scheduler::begin(Time now, OperatorKey key, std::span<const Access> accesses) {
  TACO_RETURN_IF_ERROR(fits(accesses));
  if (run_->follower.is_endless(needed_.size())) {
    end_run();
    begin_run(std::string(name_));
  }
  now_ = now;
  std::fill(std::begin(fails_), std::end(fails_), false);
  computing_since_ = kNever;
  look_at_given_up();
  current_.assign(accesses.begin(), accesses.end());
  for (const Access& access : current_) needed_[access.page] |= bit(access.tier);
  follow(run_->follower.begin(key, accesses));
  for (const Access& access : current_) need(access);
  for (const Use& use : run_->follower.rest_of_detour()) {
    for (const Access& access : use.accesses) {
      if (waiting_for(access.tier) >= look_ahead_) return Status();
      const bool there = pages_.has(access.page, access.tier) || !access.reads || access.anywhere;
      if (!there) want(access.page, access.tier, now_at());
    }
  }
  return Status();
}

void Scheduler::follow(const Follower::Step& step) {
  if (course_[0] == nullptr) return;
  const Position now = step.at != kNoPosition ? step.at : step.next;
  if (now == step.expected) return;
  renew_next_uses(std::min(now, step.expected), std::max(now, step.expected), now);
  restart_looking();
}

void Scheduler::need(const Access& access) {
  const auto [page, tier, reads, writes, last, anywhere] = access;
  no_longer_ahead(page, tier);
  writing_[page] = writes || last ? 1 : 0;
  if (!reads && pages_.has_content(page)) {
    pages_.set_content(page, false);
    pages_.spoil(page, tier);
    forget_copies(page, bit(tier));
  }
  if (reads) {
    const bool there = pages_.has(page, tier);
    const bool had_left = (left_[page] & bit(tier)) != 0;
    if (had_left || !there) ++(there ? stats_.hits : stats_.misses);
  }
  pages_.set_next_use(page, kDemanded);
  ++missing_;
  if (pages_.has(page, tier)) {
    arrived(page, tier);
    route(page);  // what is written now goes nowhere meanwhile
  } else {
    want(page, tier, kDemanded);
  }
}

void Scheduler::end(Time now) {
  if (computing_since_ != kNever) run_->follower.took(now - computing_since_);
  computing_since_ = kNever;
  now_ = now;
  ++recency_;
  for (const Access& access : current_) release(access);
  current_.clear();
  missing_ = 0;
}

void Scheduler::release(const Access& access) {
  const auto [page, tier, reads, writes, last, anywhere] = access;
  unmark(needed_[page], tier);
  unwant(page, tier);
  pages_.unpin(page, tier);
  writing_[page] = 0;
  // Where it is not, the operator never began.
  if ((writes || last) && pages_.has(page, tier)) {
    pages_.set_content(page, !last);
    pages_.spoil(page, tier);
    forget_copies(page, last ? std::uint8_t{0} : bit(tier));
  }
  if (!last) unmark(left_[page], tier);
  pages_.set_next_use(page, next_use_after(page, run_->follower.position()));
  if (writes) roams_[page] = anywhere ? 1 : 0;
  if (writes || last) look_back(page);
  route(page);
}

void Scheduler::discard(PageId page) {
  pages_.set_content(page, false);
  for (const Tier tier : kMemory) pages_.spoil(page, tier);
  forget_copies(page, 0);
  look_back(page);
  route(page);
}

void Scheduler::ask_again() {
  std::fill(std::begin(fails_), std::end(fails_), false);
  for (const Access& access : current_) {
    if (!pages_.has(access.page, access.tier)) want(access.page, access.tier, kDemanded);
  }
}

// All copies but those in the tiers whose bits are set.
void Scheduler::forget_copies(PageId page, std::uint8_t but) {
  for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
    if (!pages_.has(page, tier) || (but & bit(tier)) != 0) continue;
    left_[page] |= bit(tier);
    if (pages_.outdate(page, tier)) {
      actions_.push_back({Action::Kind::kDrop, {page, tier, tier}});
    }
  }
}

Position Scheduler::next_use_after(PageId page, Position from) const {
  // If nothing is known, the page that was used last is taken for the one that is used next.
  if (course_[0] == nullptr) return kNeverUsed / 2 - recency_;
  Position start = base_;
  // In this run a detour may come that uses it: not fetched for that, but not thrown away either.
  const Position possible = run_->follower.possible_use(page, from);
  if (possible < course_[0]->size()) {
    return start + std::min(possible, course_[0]->next_use(page, from));
  }
  for (const Trace* trace : course_) {
    if (trace == nullptr) break;
    const Position at = trace->next_use(page, from);
    if (at != kNeverUsed) return start + at;
    start += trace->size();
    from = 0;
  }
  return kNeverUsed;
}

// Renews the next use of each page that is used in [from, to) of this run's trace, which goes on at
// `after`.
void Scheduler::renew_next_uses(Position from, Position to, Position after) {
  if (course_[0] == nullptr) return;
  for (Position at = from; at < to; ++at) {
    for (const Access& access : course_[0]->at(at).accesses) {
      if (needed_[access.page] != 0) continue;
      pages_.set_next_use(access.page, next_use_after(access.page, after));
    }
  }
}

void Scheduler::renew_all() {
  if (course_[0] != nullptr) {
    for (std::size_t page = 0; page < pages_.size(); ++page) {
      const auto id = static_cast<PageId>(page);
      pages_.set_next_use(id, next_use_after(id, 0));
    }
  }
  restart_looking();
}

}  // namespace taco::zerocache
