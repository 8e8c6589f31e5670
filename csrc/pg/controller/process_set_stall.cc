// Requests that wait for ranks that do not come: the ranks that wait ask the others, and say who is
// missing.
#include <algorithm>
#include <cstdio>

#include "base/log.h"
#include "pg/controller/agreement.h"
#include "pg/controller/process_set.h"

namespace taco::pg::controller {
namespace {

constexpr std::size_t kMostNamed = 20;  // in one line of the log

}  // namespace

std::string seconds_text(Duration duration) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", static_cast<double>(duration) / kSecond);
  return text;
}

PendingPtr ProcessSet::oldest() {
  while (!order_.empty() && order_.front()->agreed) order_.pop_front();
  // A rank that has joined waits for as long as the others have data, and has nothing after that.
  const bool waits = !order_.empty() && order_.front()->request.kind != Kind::kJoin;
  return waits ? order_.front() : nullptr;
}

// Before it is too late to say who is missing.
Duration ProcessSet::question_after() const {
  const Duration shutdown = options_.stall_shutdown / 2;
  if (options_.stall_warning <= 0) return shutdown;
  return shutdown > 0 ? std::min(shutdown, options_.stall_warning) : options_.stall_warning;
}

// Returns the time of the next look.
Time ProcessSet::look_for_stalls(Time now) {
  const Duration after = question_after();
  if (after <= 0 || world_ == 1 || phase_ == Phase::kFailed || leaving_) return kNever;
  const PendingPtr first = oldest();
  if (first == nullptr) return kNever;
  Time end = kNever;
  if (options_.stall_shutdown > 0) {
    end = later(first->submitted, options_.stall_shutdown);
    if (now >= end) {
      const std::string who = missing_.empty() ? first->describe() + " waits" : missing_;
      fail(Status(Code::kAborted, "some ranks of process set " + std::to_string(id()) +
                                      " have not submitted for " +
                                      seconds_text(options_.stall_shutdown) +
                                      " what others wait for, which is as long as may be: " + who));
      return kNever;
    }
  }
  Time next = std::max(later(first->submitted, after), later(last_question_, after));
  if (now >= next) {
    last_question_ = now;
    questioned_ = true;
    owner_.summon(*this, Summons::What::kTellWaiting);
    next = later(now, after);
  }
  return std::min(next, end);
}

std::string ProcessSet::missing_text(const Negotiation::Waiting& waiting) const {
  std::vector<int> ranks;
  ranks.reserve(waiting.missing.size());
  for (const int rank : waiting.missing) {
    ranks.push_back(place_.ranks[static_cast<std::size_t>(rank)]);
  }
  return named_ranks(ranks);
}

// The answers, which a round after the question has brought.
void ProcessSet::hear_of_missing(Time now) {
  if (!questioned_) return;
  std::string text;
  std::size_t named = 0;
  Duration longest = 0;
  for (const Negotiation::Waiting& waiting : negotiation_.waiting()) {
    const auto found = pending_.find(waiting.name);
    if (waiting.is_join || waiting.missing.empty() || found == pending_.end()) continue;
    const Duration age = now - found->second->submitted;
    if (age < question_after()) continue;
    longest = std::max(longest, age);
    if (++named > kMostNamed) continue;
    text +=
        (text.empty() ? "" : "; ") + found->second->describe() + " misses " + missing_text(waiting);
  }
  if (text.empty()) return;
  if (named > kMostNamed) text += "; and " + std::to_string(named - kMostNamed) + " more";
  questioned_ = false;
  missing_ = text;
  if (options_.stall_warning <= 0 || longest < options_.stall_warning) return;
  TACO_LOG_WARNING("controller",
                   "process set %d: some ranks have not submitted for %s what others wait for, "
                   "because they submit other operations, or no more. %s",
                   id(), seconds_text(longest).c_str(), text.c_str());
}

}  // namespace taco::pg::controller
