#include "pg/c10d/succession.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "base/log.h"

namespace taco::pg {
namespace {

// Groups made from a default group use its store, under prefixes of their own.
const void* tree_of(const c10::intrusive_ptr<c10d::Store>& store) {
  auto* prefixed = dynamic_cast<c10d::PrefixStore*>(store.get());
  return prefixed ? prefixed->getUnderlyingNonPrefixStore().get() : store.get();
}

constexpr Duration kLingerOfTheLast = kSecond;

}  // namespace

Status Succession::begin(const c10::intrusive_ptr<c10d::Store>& store,
                         const GroupRendezvousOptions& options) {
  options_ = options;
  tree_ = tree_of(store);
  const bool is_default = options.global_ranks.empty();
  if (!is_default && !options_.costs) options_.costs = costs_of_tree(tree_).parameters;
  Result<GroupRendezvousResult> joined = rendezvous(store, options_);
  if (!joined.ok()) return joined.status();
  Result<std::shared_ptr<Generation>> only =
      Generation::open(std::move(joined).value(), tree_, is_default);
  if (only.ok()) current_ = *only;
  return only.status();
}

Status Succession::begin_apart(const c10::intrusive_ptr<c10d::Store>& store,
                               const GroupRendezvousOptions& options) {
  options_ = options;
  tree_ = tree_of(store);
  Result<std::shared_ptr<edge::Roster>> roster = open_roster(store, options_);
  if (!roster.ok()) return roster.status();
  roster_ = std::move(roster).value();
  return Status();
}

std::optional<std::string> Succession::handle() const {
  const std::shared_ptr<edge::Roster> roster = roster_.load();
  return roster ? std::optional(roster->handle()) : std::nullopt;
}

Status Succession::destroyed() const {
  return Status(Code::kAborted,
                "group '" + options_.name + "' was destroyed and cannot be reconfigured");
}

// All members of the next generation have come, or it is closed again.
Status Succession::call_roll(const std::shared_ptr<Generation>& next, std::uint64_t digest,
                             Duration timeout) {
  coming_.store(next);
  if (closed_) next->communicator()->abort(destroyed());  // close() may have missed it
  Status all = next->communicator()->roll_call(digest, timeout);
  coming_.store(nullptr);
  if (!all.ok()) (void)next->close(0);
  return all;
}

Result<std::shared_ptr<Generation>> Succession::advance(const Reconfiguration& to) {
  std::lock_guard lock(advancing_);
  if (closed_) return destroyed();
  Result<edge::Gathering> gathered = roster_.load()->gather(to.handles, to.in_order, to.uuid);
  if (!gathered.ok()) return gathered.status();
  const std::uint64_t digest = gathered->digest;
  Result<GroupRendezvousResult> joined = group_of(std::move(gathered).value(), options_);
  if (!joined.ok()) return joined.status();
  Result<std::shared_ptr<Generation>> next =
      Generation::open(std::move(joined).value(), tree_, true);
  if (!next.ok()) return next;
  TACO_RETURN_IF_ERROR(call_roll(*next, digest, to.timeout > 0 ? to.timeout : kNever));
  const std::shared_ptr<Generation> last = current_.exchange(*next);
  if (last) (void)last->close(kLingerOfTheLast);
  if (closed_) return destroyed();  // by a handler of a signal, meanwhile
  TACO_LOG_INFO("pg", "group '%s' goes on with rank %d of %d", options_.name.c_str(),
                (*next)->options().rank, (*next)->options().world);
  return next;
}

Status Succession::close(Duration linger) {
  closed_ = true;
  if (const auto coming = coming_.load()) coming->communicator()->abort(destroyed());
  std::lock_guard lock(advancing_);
  const std::shared_ptr<Generation> last = current_.load();
  Status unreported;
  if (last) unreported = last->close(linger);
  roster_.store(nullptr);
  return unreported;
}

}  // namespace taco::pg
