#include "zerocache/mover/mover.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "base/assert.h"
#include "base/thread.h"
#include "base/timeline.h"
#include "zerocache/mover/mover_state.h"

namespace taco::zerocache {
namespace {

Status check_options(const MoverOptions& options, const Layout& layout) {
  const auto page_bytes = std::to_string(layout.page_bytes());
  if (options.max_pages < layout.pages()) {
    return invalid("a store of at most " + std::to_string(options.max_pages) +
                   " pages, of which its layout has " + std::to_string(layout.pages()));
  }
  if (options.device == nullptr) {
    if (options.capacities.device == 0) return {};
    return invalid("device memory for " + std::to_string(options.capacities.device) +
                   " pages, but no device");
  }
  if (options.device->frame_bytes() != layout.page_bytes()) {
    return invalid("a device with frames of " + std::to_string(options.device->frame_bytes()) +
                   " bytes for pages of " + page_bytes);
  }
  if (options.device->usage().max_frames < options.capacities.device) {
    return invalid("a device of at most " + std::to_string(options.device->usage().max_frames) +
                   " frames for " + std::to_string(options.capacities.device) + " pages");
  }
  return options.range != nullptr ? Status() : invalid("a device without a range of addresses");
}

}  // namespace

Mover::State::State(const MoverOptions& options, const Layout& of, const Capacities& room,
                    const Costs& first)
    : layout(of),
      page_bytes(of.page_bytes()),
      max_pages(options.max_pages),
      capacities(room),
      scheduler(room, first, options.max_pages),
      recorder(options.max_pages),
      taken(std::size_t{2} * options.max_pages, 0),
      no_frame(std::size_t{2} * options.max_pages, 0),
      costs(first) {}

Mover::Mover(std::unique_ptr<State> state) : state_(std::move(state)) {}

Result<std::unique_ptr<Mover>> Mover::open(FileSystem& files, const MoverOptions& options,
                                           const Layout& layout) {
  TACO_RETURN_IF_ERROR(check_options(options, layout));
  // The disk's room is known only when its directories are open, the scheduler's when that is.
  auto names = std::make_shared<State*>(nullptr);
  auto carrier = PageCarrier::open(files, options, layout.page_bytes(),
                                   [names](PageId page) { return (*names)->describe(page); });
  if (!carrier.ok()) return carrier.status();
  Capacities capacities = options.capacities;
  capacities.disk = static_cast<std::uint32_t>(
      std::min<std::uint64_t>((*carrier)->slots(), std::numeric_limits<std::uint32_t>::max()));
  Costs costs = options.costs;
  costs.page_bytes = layout.page_bytes();
  auto state = std::make_unique<State>(options, layout, capacities, costs);
  *names = state.get();
  state->carrier = std::move(carrier).value();
  State* const running = state.get();
  auto thread = start_thread("taco-pages", [running] { running->run(); });
  if (!thread.ok()) return thread.status();
  state->thread = std::move(thread).value();
  return std::unique_ptr<Mover>(new Mover(std::move(state)));
}

Mover::~Mover() {
  if (state_->generation != fork_generation()) {
    // The threads are the parent's; to destroy what they sleep on would be to wait for them.
    static_cast<void>(state_.release());
    return;
  }
  {
    std::lock_guard lock(state_->mutex);
    TACO_ASSERT(state_->waiters.empty());
    state_->ending = true;
    state_->carrier->wake();
  }
  state_->thread.join();
}

void Mover::State::open_run(const std::string& name) {
  scheduler.begin_run(name);
  recorder.begin_run(name, monotonic_now());
  run_open = true;
}

// Outside any run one without a name is open as soon as there is a use.
void Mover::State::ensure_run() {
  if (run_open) return;
  open_run("");
  begin_operator(monotonic_now(), OpenUses::kRun, {});
}

void Mover::State::close_run() {
  if (!run_open) return;
  const Time now = monotonic_now();
  scheduler.end(now);
  scheduler.end_run();
  recorder.end_run(now);
  run_open = false;
  measure();
}

void Mover::begin_run(const std::string& name) {
  State& state = *state_;
  if (state.generation != fork_generation()) return;
  std::lock_guard lock(state.mutex);
  state.close_run();
  state.open_run(name);
  const Time now = monotonic_now();
  state.begin_operator(now, OpenUses::kRun, state.uses.needed());
  if (state.waiters.empty()) state.computing(now);
  state.decide();
}

void Mover::end_run() {
  State& state = *state_;
  if (state.generation != fork_generation()) return;
  std::lock_guard lock(state.mutex);
  if (!state.run_open) return;
  state.close_run();
  if (!state.uses.empty()) {
    // Their pages stay.
    state.ensure_run();
    state.change_operator(OpenUses::kRun, {});
    return;
  }
  state.decide();
}

// How fast the ways were since they were measured last: what a way carried, while it was busy.
void Mover::State::measure() {
  constexpr std::uint64_t kEnough = 8;  // copies
  constexpr double kWeight = 0.5;       // of what is new
  for (int way = 0; way < kWays; ++way) {
    const WayStats& now = stats.ways[static_cast<std::size_t>(way)];
    WayStats& before = measured[way];
    const Duration busy = now.busy - before.busy;
    if (now.copies - before.copies < kEnough || busy <= 0) continue;
    const double speed =
        static_cast<double>(now.bytes - before.bytes) * 1e9 / static_cast<double>(busy);
    double& believed = costs.ways[way].bytes_per_second;
    believed = before.copies == 0 ? speed : believed + kWeight * (speed - believed);
    before = now;
  }
  scheduler.set_costs(costs);
}

// The set of open uses is another from now on.
void Mover::State::change_operator(OperatorKey key, std::span<const PageId> spent) {
  const Time now = monotonic_now();
  scheduler.end(now);
  for (const PageId page : spent) scheduler.discard(page);
  begin_operator(now, key, uses.needed());
  if (waiters.empty()) computing(now);
  decide();
}

void Mover::State::begin_operator(Time now, OperatorKey key, std::span<const Access> needed) {
  const Status begun = scheduler.begin(now, key, needed);
  // The use that begins was found to fit, and what is left of it fits too.
  TACO_ASSERT(begun.ok(), "%s", begun.message().c_str());
  recorder.begin(now, key, needed);
}

void Mover::State::computing(Time now) {
  scheduler.computing(now);
  recorder.computing(now);
}

void Mover::State::decide() {
  const std::size_t before = actions.size();
  const Time now = monotonic_now();
  again = scheduler.decide(now, actions);
  for (std::size_t i = before; i < actions.size(); ++i) {
    ++decided;
    const Action& action = actions[i];
    recorder.decided(now, action);
    if (action.kind == Action::Kind::kTake) {
      taken[index(action.copy.page, action.copy.to)] = decided;
    }
  }
  const bool work = actions.size() > before;
  if (sleeps_until != 0 && (work || again < sleeps_until)) {
    sleeps_until = 0;
    carrier->wake();
  }
}

bool Mover::State::there(std::span<const Access> accesses) const {
  return std::all_of(accesses.begin(), accesses.end(), [this](const Access& access) {
    const auto [page, tier, reads, writes, last, anywhere] = access;
    const std::size_t at = index(page, tier);
    // A page that is being copied elsewhere may not be written until that has ended, though the
    // copy is worth nothing then.
    const bool copied_from = (writes || !reads) && scheduler.pages().leaving(page, tier);
    return scheduler.pages().has(page, tier) && !copied_from && carried >= taken[at] &&
           no_frame[at] == 0;
  });
}

Status Mover::State::check(std::span<const Access> accesses) const {
  for (const Access& access : accesses) {
    if (access.page >= max_pages) {
      return invalid("page " + std::to_string(access.page) + " of a store of at most " +
                     std::to_string(max_pages));
    }
    if (access.tier == Tier::kDisk) {
      return invalid("page " + std::to_string(access.page) + " cannot be used on disk");
    }
  }
  return {};
}

// The pages that a use begins to fill: if it does not begin after all, these hold nothing.
std::vector<PageId> Mover::State::blank(std::span<const Access> accesses) const {
  std::vector<PageId> blank;
  for (const Access& access : accesses) {
    const bool empty = !access.reads || !scheduler.pages().has_content(access.page);
    if (empty) blank.push_back(access.page);
  }
  return blank;
}

// Frames that were not to be had when the scheduler gave them are asked for once more.
void Mover::State::renew_takes(std::span<const Access> accesses) {
  for (const Access& access : accesses) {
    const std::size_t at = index(access.page, access.tier);
    if (no_frame[at] == 0 || !scheduler.pages().has(access.page, access.tier)) continue;
    no_frame[at] = 0;
    actions.push_back({Action::Kind::kTake, {access.page, access.tier, access.tier}});
    taken[at] = ++decided;
    carrier->wake();
  }
}

Result<OpenUses::Id> Mover::State::open_if_fits(OperatorKey key, std::span<const Access> accesses) {
  auto id = uses.begin(key, accesses);
  if (!id.ok()) return id;
  Status fits = scheduler.fits(uses.needed());
  if (fits.ok()) return id;
  std::vector<PageId> unused;
  uses.end(id.value(), &unused);
  return fits;
}

// Chooses a tier for what may be anywhere: where another use has it, else where it is cheap, or the
// device if host memory has no room for more.
Result<OpenUses::Id> Mover::State::open(OperatorKey key, std::vector<Access>& accesses) {
  const auto open_with = [&](auto choose) {
    for (Access& access : accesses) {
      if (!access.anywhere) continue;
      const std::optional<Tier> in_use = uses.tier_of(access.page);
      access.tier = in_use.has_value() ? *in_use : choose(access.page);
    }
    return open_if_fits(key, accesses);
  };
  auto opened = open_with([this](PageId page) { return scheduler.best_tier(page); });
  if (opened.ok() || capacities.device == 0) return opened;
  return open_with([](PageId) { return Tier::kDevice; });
}

Status Mover::begin(OperatorKey key, std::span<const Access> wanted) {
  State& state = *state_;
  if (state.generation != fork_generation()) {
    return invalid("pages belong to the process that opened their store; a forked child has none");
  }
  std::unique_lock lock(state.mutex);
  TACO_RETURN_IF_ERROR(state.check(wanted));
  std::vector<Access> accesses(wanted.begin(), wanted.end());
  const auto id = state.open(key, accesses);
  if (!id.ok()) return id.status();
  state.ensure_run();
  std::vector<PageId> blank = state.blank(accesses);
  state.change_operator(key, {});
  state.renew_takes(accesses);
  if (!state.there(accesses)) {
    Status status = state.wait(lock, accesses);
    if (!status.ok()) {
      state.give_up(id.value(), std::move(blank));
      return status;
    }
  }
  state.uses.set_begun(id.value());
  ++state.stats.uses;
  return {};
}

Status Mover::State::wait(std::unique_lock<std::mutex>& lock, std::span<const Access> accesses) {
  Waiter waiter;
  waiter.accesses = accesses;
  waiters.push_back(&waiter);
  carrier->wake();  // where nothing could be decided, it finds out why
  const Time start = monotonic_now();
  // Handlers of signals run later, though disks may take seconds: one that reads pages, saves or
  // closes them may do so between two calls of their owner, but not in the middle of a step.
  ended.wait(lock, [&] { return waiter.ended; });
  const Time now = monotonic_now();
  stats.stalled += now - start;
  stats.ways[static_cast<std::size_t>(waiter.way)].stalled += now - start;
  recorder.waited(start, now, waiter.way);
  if (timeline::enabled()) {
    timeline::add({.name = std::string(name_of(waiter.way)),
                   .track = "waits for pages",
                   .started = start,
                   .ended = now,
                   .arguments = "\"first\":" + timeline::quoted(describe(accesses.front().page))});
  }
  std::erase(waiters, &waiter);
  if (waiters.empty()) {
    computing(now);
    failure = Status();
  }
  return waiter.failed ? waiter.failure : Status();
}

void Mover::State::give_up(OpenUses::Id id, std::vector<PageId> blank) {
  std::vector<PageId> spent;
  const OperatorKey key = uses.end(id, &spent);
  for (const PageId page : blank) uses.lose(page);
  std::erase_if(blank, [this](PageId page) { return uses.uses(page); });
  change_operator(key | kEndKeys, blank);
}

void Mover::end(OperatorKey key) {
  State& state = *state_;
  if (state.generation != fork_generation()) return;
  std::lock_guard lock(state.mutex);
  const OpenUses::Id id = state.uses.latest(key);
  TACO_ASSERT(id != OpenUses::kNone, "no use of key %llx is open",
              static_cast<unsigned long long>(key));
  if (id == OpenUses::kNone) return;
  std::vector<PageId> spent;
  state.uses.end(id, &spent);
  state.change_operator(key | kEndKeys, spent);
}

std::byte* Mover::address(PageId page, Tier tier) const {
  return state_->carrier->address(page, tier);
}

Tier Mover::tier_of(PageId page) const {
  if (state_->generation != fork_generation()) return Tier::kDevice;
  std::lock_guard lock(state_->mutex);
  return state_->uses.tier_of(page).value_or(Tier::kDevice);
}

bool Mover::has_content(PageId page) const {
  if (state_->generation != fork_generation()) return false;
  std::lock_guard lock(state_->mutex);
  return page < state_->max_pages && state_->scheduler.pages().has_content(page);
}

void Mover::discard(std::span<const PageId> pages) {
  State& state = *state_;
  if (state.generation != fork_generation() || pages.empty()) return;
  std::lock_guard lock(state.mutex);
  TACO_ASSERT(
      std::none_of(pages.begin(), pages.end(), [&](PageId page) { return state.uses.uses(page); }));
  std::vector<PageId> held;
  std::copy_if(pages.begin(), pages.end(), std::back_inserter(held),
               [&](PageId page) { return state.scheduler.pages().has_content(page); });
  state.ensure_run();
  state.change_operator(OpenUses::kRun, held);
}

void Mover::change_layout(const std::function<void()>& change) {
  std::lock_guard lock(state_->layout_mutex);
  change();
}

RunRecord Mover::last_run(const std::string& name) const {
  if (state_->generation != fork_generation()) return {};
  std::lock_guard lock(state_->mutex);
  return state_->recorder.last(name);
}

Capacities Mover::capacities() const { return state_->capacities; }

Costs Mover::costs() const {
  if (state_->generation != fork_generation()) return {};
  std::lock_guard lock(state_->mutex);
  return state_->costs;
}

std::size_t Mover::page_bytes() const { return state_->page_bytes; }

MoverStats Mover::stats() const {
  State& state = *state_;
  if (state.generation != fork_generation()) return {};
  std::lock_guard lock(state.mutex);
  MoverStats stats = state.stats;
  for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
    const std::uint32_t capacity = state.capacities.of(tier);
    stats.tiers[static_cast<std::size_t>(index_of(tier))] = {
        capacity, capacity - state.scheduler.pages().free(tier)};
  }
  for (std::size_t way = 0; way < kWays; ++way) {
    stats.ways[way].bytes_per_second = state.costs.ways[way].bytes_per_second;
  }
  stats.hits = state.scheduler.stats().hits;
  stats.misses = state.scheduler.stats().misses;
  return stats;
}

}  // namespace taco::zerocache
