#include "zerocache/schedule/simulator.h"

#include <algorithm>

#include "base/assert.h"
#include "zerocache/schedule/open_uses.h"

namespace taco::zerocache {
namespace {

// So many times all pages are moved at most while one operator waits.
constexpr std::size_t kCopiesInCircles = 20;

}  // namespace

SimulatedRun& SimulatedRun::operator+=(const SimulatedRun& other) {
  time += other.time;
  compute += other.compute;
  for (int way = 0; way < kWays; ++way) copies[way] += other.copies[way];
  hits += other.hits;
  misses += other.misses;
  return *this;
}

std::vector<Use> operators_of(const std::vector<UseEvent>& events) {
  OpenUses uses;
  std::vector<PageId> spent;
  std::vector<Use> operators;
  for (const UseEvent& event : events) {
    OperatorKey key = event.key;
    if (event.begins) {
      const auto id = uses.begin(key, event.accesses);
      TACO_ASSERT(id.ok());
      uses.set_begun(id.value());
    } else {
      key = uses.end(uses.latest(key), &spent) | kEndKeys;
    }
    const std::span<const Access> needed = uses.needed();
    operators.push_back({key, event.compute, {needed.begin(), needed.end()}});
  }
  return operators;
}

Simulator::Simulator(const Capacities& capacities, const Costs& costs, std::size_t pages,
                     DiskWays disk)
    : capacities_(capacities),
      costs_(costs),
      disk_(disk),
      scheduler_(capacities, costs, pages),
      pages_(pages) {}

void Simulator::fault(const std::string& text, PageId page) {
  if (faults_.size() < 20) {
    faults_.push_back(text + ", page " + std::to_string(page) + ", at " + std::to_string(now_));
  }
}

void Simulator::hold(PageId page, Tier tier) {
  Frame& frame = pages_[page].frames[index_of(tier)];
  if (frame.held) fault("a second frame in tier " + std::to_string(index_of(tier)), page);
  frame = {true, false, 0, 0};
  std::uint32_t& used = used_[index_of(tier)];
  if (++used > capacities_.of(tier)) {
    fault("more than the cap of tier " + std::to_string(index_of(tier)), page);
  }
  max_used_[index_of(tier)] = std::max(max_used_[index_of(tier)], used);
}

void Simulator::place(PageId page, Tier tier) {
  scheduler_.place(page, tier);
  hold(page, tier);
  Page& state = pages_[page];
  state.content = true;
  state.version = ++versions_;
  state.frames[index_of(tier)].full = true;
  state.frames[index_of(tier)].version = state.version;
}

void Simulator::decide() {
  actions_.clear();
  again_ = scheduler_.decide(now_, actions_);
  for (const Action& action : actions_) carry_out(action);
}

void Simulator::carry_out(const Action& action) {
  const auto [page, from, to] = action.copy;
  Page& state = pages_[page];
  Frame& source = state.frames[index_of(from)];
  if (action.kind == Action::Kind::kDrop) {
    if (!source.held || source.readers > 0) fault("a drop of what is not there or is read", page);
    source.held = false;
    --used_[index_of(from)];
    if (!state.content || source.version != state.version || !source.full) return;
    const bool elsewhere =
        std::any_of(std::begin(state.frames), std::end(state.frames), [&](const Frame& frame) {
          return frame.held && frame.full && frame.version == state.version;
        });
    if (!elsewhere) fault("the last copy was dropped", page);
    return;
  }
  hold(page, to);
  if (action.kind == Action::Kind::kTake) {
    state.frames[index_of(to)].full = true;
    return;
  }
  if (!source.held || !source.full) fault("a copy of what is not there", page);
  ++source.readers;
  const Way way = way_of(from, to);
  ++run_.copies[static_cast<int>(way)];
  const WaySpeed& speed = costs_.speed(way);
  const double seconds = static_cast<double>(costs_.page_bytes) / speed.bytes_per_second;
  random_ = random_ * 6364136223846793005u + 1442695040888963407u;
  const double draw = static_cast<double>(random_ >> 11) * 0x1.0p-53;
  const auto service = static_cast<Duration>(seconds * 1e9 * (1 + draw * (noise_ - 1)));
  Time& free = free_at(way);
  free = std::max(free, now_) + service;
  arrivals_.push({free + speed.latency, ++order_, now_, action.copy, source.version});
}

// When what carries this way has done all that it was given.
Time& Simulator::free_at(Way way) {
  const Way carrier = disk_ == DiskWays::kInTurns && way == Way::kWrite ? Way::kRead : way;
  return free_at_[static_cast<int>(carrier)];
}

void Simulator::measure(const Arrival& arrival) {
  const int way = static_cast<int>(way_of(arrival.copy.from, arrival.copy.to));
  const Time from = std::max(arrival.began, busy_until_[way]);
  busy_until_[way] = std::max(busy_until_[way], arrival.at);
  busy_[way] += std::max<Duration>(0, arrival.at - from);
}

// Ways that take turns are slower than they would be alone, by as much as the other has to carry.
// A mover measures that after each run, and plans by it.
void Simulator::tell_speeds() {
  if (disk_ == DiskWays::kAtOnce) return;
  Costs found = costs_;
  for (const Way way : {Way::kRead, Way::kWrite}) {
    const int index = static_cast<int>(way);
    if (busy_[index] <= 0 || run_.copies[index] == 0) continue;
    const double bytes =
        static_cast<double>(run_.copies[index]) * static_cast<double>(costs_.page_bytes);
    found.ways[index].bytes_per_second = bytes * 1e9 / static_cast<double>(busy_[index]);
  }
  scheduler_.set_costs(found);
}

void Simulator::arrive() {
  const Arrival arrival = arrivals_.top();
  arrivals_.pop();
  measure(arrival);
  now_ = std::max(now_, arrival.at);
  const auto [page, from, to] = arrival.copy;
  --pages_[page].frames[index_of(from)].readers;
  Frame& frame = pages_[page].frames[index_of(to)];
  frame.full = true;
  frame.version = arrival.version;
  scheduler_.done(arrival.copy);
  decide();
}

// Gives each page that may be anywhere a tier, as a Mover chooses it.
Use Simulator::with_tiers(Use use) const {
  const auto choose = [&](auto tier) {
    for (Access& access : use.accesses) {
      if (access.anywhere) access.tier = tier(access.page);
    }
  };
  choose([this](PageId page) { return scheduler_.best_tier(page); });
  if (capacities_.device == 0 || scheduler_.fits(use.accesses).ok()) return use;
  choose([](PageId) { return Tier::kDevice; });
  return use;
}

bool Simulator::wait_for(const Use& use) {
  for (std::size_t copies = 0; !scheduler_.ready(); ++copies) {
    if (arrivals_.empty()) {
      fault("nothing moves and an operator waits", use.accesses.front().page);
      return false;
    }
    if (copies > kCopiesInCircles * pages_.size()) {
      fault("copies go round in circles and an operator waits", use.accesses.front().page);
      return false;
    }
    arrive();
  }
  return true;
}

void Simulator::compute(const Use& use) {
  for (const Access& access : use.accesses) {
    const Page& page = pages_[access.page];
    const Frame& frame = page.frames[index_of(access.tier)];
    if (!frame.held || !frame.full) fault("an operator begins without its page", access.page);
    if (access.reads && (!page.content || frame.version != page.version)) {
      fault("an operator reads what is not the newest", access.page);
    }
  }
  scheduler_.computing(now_);
  const Time end = now_ + use.compute;
  for (;;) {
    const Time arrival = arrivals_.empty() ? kNever : arrivals_.top().at;
    if (std::min(arrival, again_) > end) break;
    if (again_ < arrival) {
      now_ = std::max(now_, again_);
      decide();
    } else {
      arrive();
    }
    for (const Access& access : use.accesses) {
      const Frame& frame = pages_[access.page].frames[index_of(access.tier)];
      if (!frame.held || !frame.full) fault("a page went while an operator used it", access.page);
    }
  }
  now_ = end;
  run_.compute += use.compute;
  for (const Access& access : use.accesses) {
    Page& page = pages_[access.page];
    if (access.writes) {
      page.version = ++versions_;
      page.content = true;
      page.frames[index_of(access.tier)].version = page.version;
    }
    if (access.last) page.content = false;
  }
}

SimulatedRun Simulator::run(const std::string& name, const std::vector<Use>& uses) {
  run_ = {};
  std::fill(std::begin(busy_), std::end(busy_), 0);
  const Time start = now_;
  const SchedulerStats before = scheduler_.stats();
  scheduler_.begin_run(name);
  for (const Use& planned : uses) {
    const Use use = with_tiers(planned);
    const Status begun = scheduler_.begin(now_, use.key, use.accesses);
    if (!begun.ok()) {
      faults_.push_back(begun.message());
      break;
    }
    for (const Access& access : use.accesses) {
      if (!access.reads) pages_[access.page].content = false;  // it is to be written whole
    }
    decide();
    if (!wait_for(use)) break;
    compute(use);
    scheduler_.end(now_);
    decide();
  }
  scheduler_.end_run();
  tell_speeds();
  run_.time = now_ - start;
  run_.hits = scheduler_.stats().hits - before.hits;
  run_.misses = scheduler_.stats().misses - before.misses;
  return run_;
}

SimulatedRun Simulator::runs(int times, const std::string& name, const std::vector<Use>& uses) {
  SimulatedRun all;
  for (int i = 0; i < times; ++i) all += run(name, uses);
  return all;
}

}  // namespace taco::zerocache
