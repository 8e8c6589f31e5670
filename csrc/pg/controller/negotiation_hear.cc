// The second half of a round: what the ranks' words change in the tables.
#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "pg/controller/agreement.h"
#include "pg/controller/negotiation_state.h"

namespace taco::pg::controller {
namespace {

// Numbers in the rows of a slot. With more it would be cheaper to say them again.
constexpr std::size_t kMaxCachedRows = 4096;

bool is_worth_a_slot(const Agreed& agreed) {
  switch (agreed.request.kind) {
    case Kind::kJoin:
    case Kind::kAddSet:
    case Kind::kRemoveSet:
      return false;
    default:
      break;
  }
  const std::size_t lists = agreed.rows.size();
  return lists == 0 || lists * agreed.rows[0].size() <= kMaxCachedRows;
}

Status of_another_table(int rank, std::uint64_t round) {
  return Status(Code::kInternal, "rank " + std::to_string(rank) + "'s words in round " +
                                     std::to_string(round) +
                                     " of a negotiation come from other tables than this rank's");
}

}  // namespace

Result<std::vector<Words>> Negotiation::State::read(
    const std::vector<std::string_view>& words_by_rank) const {
  const auto world = static_cast<std::size_t>(options.world);
  if (words_by_rank.size() != world) {
    return Status(Code::kInternal, "words of " + std::to_string(words_by_rank.size()) +
                                       " ranks in a negotiation of " + std::to_string(world));
  }
  std::vector<Words> all;
  all.reserve(world);
  for (std::size_t rank = 0; rank < world; ++rank) {
    Result<Words> read = read_words(words_by_rank[rank], options.world);
    if (!read.ok()) return read.status().with_prefix("rank " + std::to_string(rank) + ": ");
    const bool has_slots = std::ranges::all_of(
        read->waiting_slots, [&](std::uint32_t slot) { return cache.is_used(slot); });
    if (!has_slots || read->round != round || read->digest != folded(cache.digest(), events)) {
      return of_another_table(static_cast<int>(rank), round);
    }
    all.push_back(std::move(*read));
  }
  return all;
}

Status Negotiation::State::hear_rank(int rank, Words& heard) {
  for (Request& request : heard.requests) {
    if (request.kind == Kind::kJoin) {
      auto has_it = joined[static_cast<std::size_t>(rank)];
      if (has_it) return of_another_table(rank, round);
      has_it = true;
      ++joined_count;
      events = folded(events, static_cast<std::uint64_t>(rank));
      continue;
    }
    // Somebody has it in another form than the slot.
    if (Slot* const slot = cache.find(request.name)) forget_slot(*slot);
    if (!table.hear(rank, std::move(request))) return of_another_table(rank, round);
  }
  return {};
}

void Negotiation::State::remember(const Agreed& ran) {
  if (!is_worth_a_slot(ran)) return;
  if (joined_count > 0 && !zeros_can_stand(ran.request)) return;
  std::optional<Pending> displaced;
  cache.insert(ran.request, ran.rows, displaced);
  if (displaced) speak(std::move(*displaced));
}

void Negotiation::State::settle(RequestTable::Entry& entry) {
  Agreed& next = agreed.emplace_back();
  const Request& first = entry.variants[0].request;
  for (std::size_t rank = 0; rank < entry.said.size(); ++rank) {
    if (!entry.said[rank]) next.zeros.push_back(static_cast<int>(rank));
  }
  next.error = agreement_of(entry.variants);
  if (next.error.ok() && !next.zeros.empty() && !zeros_can_stand(first)) {
    next.error = failure_by_join(first, next.zeros);
  }
  events = folded(events, Digest().add_text(first.name).value());
  if (next.error.ok()) {
    next.rows = rows_of(entry.variants, options.world);
    next.error = check_rows(first, next.rows);
  }
  if (entry.said[static_cast<std::size_t>(options.rank)]) {
    auto own = spoken.extract(first.name);
    TACO_ASSERT(!own.empty(), "'%s' was said, and is not pending", first.name.c_str());
    next.request = std::move(own.mapped().request);
  } else {
    next.request = first;
  }
  next.bytes = bytes_of(next.request);
  if (next.error.ok()) remember(next);
}

void Negotiation::State::end_join(int last_joined) {
  TACO_ASSERT(table.size() == 0 && spoken.empty() && cache.waiting() == 0);
  Agreed& next = agreed.emplace_back();
  next.request = std::exchange(join, {}).request;
  next.last_joined = last_joined;
  join_state = Join::kNone;
  joined.assign(joined.size(), false);
  joined_count = 0;
  events = folded(events, static_cast<std::uint64_t>(last_joined));
}

Negotiation::State::Holders Negotiation::State::holders(const std::vector<Words>& heard) {
  Holders all;
  for (std::size_t rank = 0; rank < heard.size(); ++rank) {
    for (const std::uint32_t slot : heard[rank].waiting_slots) {
      std::vector<bool>& ranks = all[cache.slot(slot).request.name];
      ranks.resize(heard.size());
      ranks[rank] = true;
    }
  }
  return all;
}

std::vector<int> Negotiation::State::missing_of(const std::string& name,
                                                const Holders& holders) const {
  const auto holding = holders.find(name);
  const RequestTable::Entry* const entry = table.find(name);
  std::vector<bool> lacking(joined.size());
  for (std::size_t rank = 0; rank < joined.size(); ++rank) {
    const bool holds = holding != holders.end() && holding->second[rank];
    lacking[rank] = !holds && !joined[rank] && (entry == nullptr || !entry->said[rank]);
  }
  return ranks_in(lacking);
}

// Those that began later, or were not said yet, are not known to the others.
void Negotiation::State::note_missing(const Holders& holders) {
  missing.clear();
  std::vector<bool> others = joined;
  others.flip();
  for (const Pending* const each : pending()) {
    std::vector<int> ranks =
        each == &join ? ranks_in(others) : missing_of(each->request.name, holders);
    const bool is_known = std::ranges::find(ranks, options.rank) == ranks.end();
    if (is_known) missing.emplace(each->order, std::move(ranks));
  }
}

Status Negotiation::check_sizes(const std::vector<std::int64_t>& bytes_by_rank) const {
  const State& state = *state_;
  const std::size_t most = most_words_bytes(state.options.world, state.options.cache_slots);
  for (std::size_t rank = 0; rank < bytes_by_rank.size(); ++rank) {
    const std::int64_t bytes = bytes_by_rank[rank];
    if (bytes > 0 && static_cast<std::uint64_t>(bytes) <= most) continue;
    return Status(Code::kInternal, "rank " + std::to_string(rank) + "'s words in round " +
                                       std::to_string(state.round) +
                                       " of a negotiation are said to have " +
                                       std::to_string(bytes) + " bytes; 1 to " +
                                       std::to_string(most) + " are possible");
  }
  return {};
}

Status Negotiation::hear(const std::vector<std::string_view>& words_by_rank) {
  State& state = *state_;
  Result<std::vector<Words>> read = state.read(words_by_rank);
  if (!read.ok()) return read.status();
  std::vector<Words>& heard = *read;
  const State::Holders holders = state.waiting_asked ? state.holders(heard) : State::Holders();
  const int joined_before = state.joined_count;
  int last_joined = -1;
  for (int rank = 0; rank < state.options.world; ++rank) {
    const int before = state.joined_count;
    TACO_RETURN_IF_ERROR(state.hear_rank(rank, heard[static_cast<std::size_t>(rank)]));
    if (state.joined_count > before) last_joined = rank;
  }
  state.unsaid.erase(state.unsaid.begin(),
                     state.unsaid.begin() + static_cast<std::ptrdiff_t>(state.said));
  if (state.says_join) state.join_state = State::Join::kSaid;
  if (state.joined_count > joined_before) {
    for (State::Slot& slot : state.cache.used()) {
      if (!zeros_can_stand(slot.request)) state.forget_slot(slot);
    }
  }
  for (RequestTable::Entry& entry : state.table.take_complete(state.joined)) state.settle(entry);
  if (state.joined_count == state.options.world) state.end_join(last_joined);
  if (state.waiting_asked) state.note_missing(holders);
  return {};
}

}  // namespace taco::pg::controller
