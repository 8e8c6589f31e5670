#include "pg/controller/negotiation.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/assert.h"
#include "pg/controller/agreement.h"
#include "pg/controller/negotiation_state.h"

namespace taco::pg::controller {
namespace {

bool same_but_name(const Request& a, const Request& b) {
  return a.kind == b.kind && a.dtype == b.dtype && a.op == b.op && a.root == b.root &&
         a.prescale == b.prescale && a.postscale == b.postscale && a.shapes == b.shapes &&
         a.splits == b.splits && a.ranks == b.ranks;
}

Status pending_already(const Request& request) {
  return refuse_request(request,
                        "an operation of this name is pending on this rank; wait for it, or give "
                        "each a name of its own");
}

Status joined_already(const Request& request) {
  return refuse_request(
      request, "this rank has joined and takes no part until all ranks have; wait for join()");
}

}  // namespace

// A request that goes by words waits in `spoken` until all have said it.
void Negotiation::State::speak(Pending pending) {
  std::string name = pending.request.name;
  const auto [place, is_new] = spoken.emplace(std::move(name), std::move(pending));
  TACO_ASSERT(is_new, "'%s' is said twice", place->first.c_str());
  unsaid.push_back(&place->second);
}

// Its number means nothing any more: what waits there goes by words.
void Negotiation::State::forget_slot(Slot& slot) {
  if (std::optional<Pending> waiting = cache.erase(slot)) speak(std::move(*waiting));
}

// Before it joins a rank says all that it has pending: from then on its bits mean zeros.
void Negotiation::State::say_what_waits() {
  std::vector<Pending> waiting;
  for (Slot& slot : cache.used()) {
    if (slot.waiting) waiting.push_back(*cache.take_waiting(slot));
  }
  std::ranges::sort(waiting, {}, &Pending::order);
  for (Pending& each : waiting) speak(std::move(each));
}

void Negotiation::State::run_slot(Slot& slot) {
  TACO_ASSERT(slot.waiting || has_joined(), "'%s' runs", slot.request.name.c_str());
  Agreed& next = agreed.emplace_back();
  if (slot.waiting) {
    next.request = std::move(slot.waiting->request);
  } else {
    next.request = slot.request;
  }
  cache.run(slot);
  next.rows = slot.rows;
  next.bytes = slot.bytes;
  if (joined_count > 0) next.zeros = ranks_in(joined);
}

void Negotiation::State::run_slots(const std::vector<std::uint64_t>& combined) {
  TACO_ASSERT(combined.size() == cache.used_row().size());
  for (std::size_t i = 0; i < std::min(combined.size(), cache.used_row().size()); ++i) {
    std::uint64_t bits = combined[i] & cache.used_row()[i];
    for (; bits != 0; bits &= bits - 1) {
      const auto bit = i * 64 + static_cast<std::size_t>(std::countr_zero(bits));
      run_slot(cache.slot(static_cast<std::uint32_t>(bit - kFirstSlotBit)));
    }
  }
}

void Negotiation::State::write_words() {
  WordsWriter writer(round, folded(cache.digest(), events));
  for (said = 0; said < to_say && writer.add(unsaid[said]->request);) ++said;
  says_join = join_state == Join::kUnsaid && said == to_say && writer.add(join.request);
  if (waiting_asked) {
    for (const Slot& slot : std::as_const(cache).used()) {
      if (slot.waiting && slot.waiting->since_round <= round) writer.add_waiting(slot.number);
    }
  }
  words = writer.take();
}

std::vector<const Pending*> Negotiation::State::pending() const {
  std::vector<const Pending*> all;
  for (const auto& each : spoken) all.push_back(&each.second);
  for (const Slot& slot : cache.used()) {
    if (slot.waiting) all.push_back(&*slot.waiting);
  }
  if (join_state != Join::kNone) all.push_back(&join);
  std::ranges::sort(all, {}, &Pending::order);
  return all;
}

Negotiation::Negotiation(NegotiationOptions options) : state_(std::make_unique<State>(options)) {}

Negotiation::~Negotiation() = default;

Status Negotiation::submit(Request request) {
  State& state = *state_;
  if (state.join_state != State::Join::kNone) return joined_already(request);
  const std::uint64_t since = state.round + 1, order = state.submitted;
  if (request.kind == Kind::kJoin) {
    TACO_RETURN_IF_ERROR(check_request(request, state.options.world));
    state.join = {std::move(request), since, order};
    state.join_state = State::Join::kSubmitted;
    ++state.submitted;
    return {};
  }
  const bool is_spoken = !state.spoken.empty() && state.spoken.contains(request.name);
  State::Slot* const slot = state.cache.find(request.name);
  if (is_spoken || (slot != nullptr && slot->waiting)) return pending_already(request);
  if (slot != nullptr && same_but_name(slot->request, request)) {
    state.cache.wait_in(*slot, std::move(request), since, order);
    ++state.submitted;
    return {};
  }
  std::ranges::sort(request.ranks);
  TACO_RETURN_IF_ERROR(check_request(request, state.options.world));
  ++state.submitted;
  state.speak({std::move(request), since, order});
  return {};
}

bool Negotiation::wants_round() const {
  const State& state = *state_;
  return state.cache.waiting() > 0 || !state.spoken.empty() ||
         state.join_state != State::Join::kNone || state.raises_shutdown || state.raises_question;
}

void Negotiation::raise(Flag flag) {
  (flag == Flag::kShutdown ? state_->raises_shutdown : state_->raises_question) = true;
}

std::vector<std::uint64_t> Negotiation::bits() {
  State& state = *state_;
  ++state.round;
  if (state.join_state == State::Join::kSubmitted) {
    state.say_what_waits();
    state.join_state = State::Join::kUnsaid;
  }
  state.to_say = state.unsaid.size();
  const bool says = state.to_say > 0 || state.join_state == State::Join::kUnsaid;
  std::vector<std::uint64_t> row =
      state.has_joined() ? state.cache.used_row() : state.cache.waiting_row();
  row[0] |= says ? 0 : kSilent;
  row[0] |= std::exchange(state.raises_shutdown, false) ? 0 : kGoesOn;
  row[0] |= std::exchange(state.raises_question, false) ? 0 : kAsksNothing;
  return row;
}

bool Negotiation::words_follow(const std::vector<std::uint64_t>& combined) {
  State& state = *state_;
  state.shutdown_asked = (combined[0] & kGoesOn) == 0;
  state.waiting_asked = (combined[0] & kAsksNothing) == 0;
  state.run_slots(combined);
  if ((combined[0] & kSilent) != 0 && !state.waiting_asked) return false;
  state.write_words();
  return true;
}

std::string Negotiation::words() const { return state_->words; }

std::vector<Response> Negotiation::responses() {
  std::vector<Response> responses =
      fuse(state_->agreed, state_->options.fusion_bytes, state_->options.rank);
  state_->agreed.clear();
  return responses;
}

bool Negotiation::shutdown_asked() const { return state_->shutdown_asked; }

std::uint64_t Negotiation::round() const { return state_->round; }

std::vector<Negotiation::Waiting> Negotiation::waiting() const {
  std::vector<Waiting> all;
  for (const Pending* const each : state_->pending()) {
    const auto missing = state_->missing.find(each->order);
    all.push_back(
        {.name = each->request.name,
         .is_join = each == &state_->join,
         .since_round = each->since_round,
         .missing = missing == state_->missing.end() ? std::vector<int>{} : missing->second});
  }
  return all;
}

std::vector<int> Negotiation::joined() const { return ranks_in(state_->joined); }

std::uint64_t Negotiation::digest() const { return folded(state_->cache.digest(), state_->events); }

}  // namespace taco::pg::controller
