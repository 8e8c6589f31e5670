#include "zerocache/schedule/run_record.h"

#include <algorithm>
#include <utility>

namespace taco::zerocache {
namespace {

// A program that never ends its run (a training loop without an optimizer) takes no memory for
// that: what is kept for a page, and for a store without any.
constexpr std::size_t kEntriesOfPage = 32;
constexpr std::size_t kMinEntries = std::size_t{1} << 16;

constexpr std::uint64_t kSteadyFrom = 3;  // runs

}  // namespace

Duration RunRecord::stalled() const {
  Duration sum = 0;
  for (const Wait& wait : waits) sum += wait.to - wait.from;
  return sum;
}

std::vector<Use> RunRecord::uses() const {
  std::vector<Use> uses;
  uses.reserve(operators.size());
  for (std::size_t i = 0; i < operators.size(); ++i) {
    const Operator& each = operators[i];
    const std::size_t end =
        i + 1 < operators.size() ? operators[i + 1].first_access : accesses.size();
    const Duration compute = each.computing == kNever ? 0 : each.ended - each.computing;
    uses.push_back(
        {each.key, compute, {accesses.begin() + each.first_access, accesses.begin() + end}});
  }
  return uses;
}

std::vector<std::uint32_t> residency_over(const RunRecord& run, std::span<const std::uint8_t> kinds,
                                          std::size_t count, std::size_t points) {
  std::vector<std::uint32_t> now(kTiers * count, 0);
  const auto at = [&](Tier tier, PageId page) -> std::uint32_t& {
    return now[static_cast<std::size_t>(index_of(tier)) * count + kinds[page]];
  };
  for (PageId page = 0; page < run.before.size(); ++page) {
    for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
      if ((run.before[page] & bit(tier)) != 0) ++at(tier, page);
    }
  }
  std::vector<std::uint32_t> found(now.size() * points, 0);
  auto change = run.changes.begin();
  for (std::size_t moment = 0; moment < points; ++moment) {
    const auto part =
        static_cast<double>(moment) / static_cast<double>(std::max<std::size_t>(points - 1, 1));
    const Time until = run.began + static_cast<Duration>(part * static_cast<double>(run.time()));
    for (; change != run.changes.end() && change->at <= until; ++change) {
      at(change->tier, change->page) += change->came ? 1u : ~0u;
    }
    for (std::size_t i = 0; i < now.size(); ++i) found[i * points + moment] = now[i];
  }
  return found;
}

RunRecorder::RunRecorder(std::size_t pages)
    : max_entries_(kMinEntries + kEntriesOfPage * pages), resident_(pages, 0) {}

void RunRecorder::begin_run(const std::string& name, Time now) {
  run_ = &runs_[name];
  if (!name.empty()) late_ = &run_->open;
  RunRecord& open = run_->open;
  const RunRecord& last = run_->last;
  open.number = last.number + 1;
  open.began = now;
  open.operators.clear();
  open.accesses.clear();
  open.changes.clear();
  open.waits.clear();
  open.before = resident_;
  open.cut = false;
  std::fill(std::begin(open.copies), std::end(open.copies), 0);
  open.steady_runs = last.steady_runs;
  std::copy(std::begin(last.steady_copies), std::end(last.steady_copies),
            std::begin(open.steady_copies));
  if (open.number >= kSteadyFrom) ++open.steady_runs;
}

void RunRecorder::end_run(Time now) {
  if (run_ == nullptr) return;
  end_operator(now);
  run_->open.ended = now;
  if (late_ == &run_->open) late_ = &run_->last;
  std::swap(run_->open, run_->last);
  run_ = nullptr;
}

// True, and the run is not kept, once it has become too long.
bool RunRecorder::full() {
  RunRecord& open = run_->open;
  if (open.cut) return true;
  if (open.operators.size() + open.accesses.size() + open.changes.size() < max_entries_) {
    return false;
  }
  open.cut = true;
  open.operators = {};
  open.accesses = {};
  open.changes = {};
  open.waits = {};
  return true;
}

void RunRecorder::end_operator(Time now) {
  std::vector<RunRecord::Operator>& operators = run_->open.operators;
  if (!operators.empty()) operators.back().ended = now;
}

void RunRecorder::begin(Time now, OperatorKey key, std::span<const Access> accesses) {
  if (run_ == nullptr || full()) return;
  end_operator(now);
  RunRecord& open = run_->open;
  open.operators.push_back({key, now, now, kNever, open.accesses.size()});
  open.accesses.insert(open.accesses.end(), accesses.begin(), accesses.end());
}

void RunRecorder::computing(Time now) {
  if (run_ == nullptr || run_->open.operators.empty()) return;
  run_->open.operators.back().computing = now;
}

void RunRecorder::waited(Time from, Time to, Way way) {
  if (run_ != nullptr && !run_->open.cut) run_->open.waits.push_back({from, to, way});
}

void RunRecorder::decided(Time now, const Action& action) {
  const auto [page, from, to] = action.copy;
  const bool came = action.kind != Action::Kind::kDrop;
  const Tier tier = came ? to : from;
  std::uint8_t& tiers = resident_[page];
  // A frame that was not to be had is given up as well.
  if (((tiers & bit(tier)) != 0) == came) return;
  tiers = static_cast<std::uint8_t>(tiers ^ bit(tier));
  if (run_ != nullptr && !full()) run_->open.changes.push_back({now, page, tier, came});
}

void RunRecorder::copied(Way way) {
  if (late_ == nullptr) return;
  ++late_->copies[static_cast<int>(way)];
  if (late_->number >= kSteadyFrom) ++late_->steady_copies[static_cast<int>(way)];
}

RunRecord RunRecorder::last(const std::string& name) const {
  const auto found = runs_.find(name);
  return found == runs_.end() ? RunRecord() : found->second.last;
}

}  // namespace taco::zerocache
