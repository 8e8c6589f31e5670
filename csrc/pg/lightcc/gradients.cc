#include "pg/lightcc/gradients.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <utility>

#include "base/mixed_bits.h"

namespace taco::pg::lightcc {
namespace {

bool overlap(const Layout& a, const Layout& b) {
  return std::find_first_of(a.begin(), a.end(), b.begin(), b.end()) != a.end();
}

void multiply(Saved& saved, double factor) {
  for (float& value : saved.residual) value = static_cast<float>(value * factor);
  for (float& value : saved.momentum) value = static_cast<float>(value * factor);
}

std::uint8_t number_of(Fate fate) { return 1 + static_cast<std::uint8_t>(fate); }

std::vector<float> copy_of(const std::vector<float>& values, Extent run) {
  const auto first = values.begin() + static_cast<std::ptrdiff_t>(run.from);
  return {first, first + static_cast<std::ptrdiff_t>(run.count)};
}

}  // namespace

Gradients::Gradients(std::vector<Parameter> parameters, const Settings& settings, int rank,
                     int world, PartOf part_of)
    : parameters_(std::move(parameters)),
      settings_(settings),
      rank_(rank),
      world_(world),
      part_of_(std::move(part_of)),
      states_(parameters_.size()),
      decided_(parameters_.size()),
      pending_(parameters_.size()) {}

std::uint64_t Gradients::elements_of(const Layout& layout) const {
  std::uint64_t sum = 0;
  for (const int parameter : layout) sum += parameters_[parameter].elements;
  return sum;
}

std::vector<Gradients::Range> Gradients::ranges_of(const Layout& layout, const Part& part) const {
  std::vector<Range> ranges;
  std::uint64_t begin = 0;
  for (const int parameter : layout) {
    const std::uint64_t end = begin + parameters_[parameter].elements;
    const std::uint64_t from = std::max(begin, part.from);
    const std::uint64_t to = std::min(end, part.from + part.elements);
    if (from < to) ranges.push_back({parameter, from - begin, from - part.from, to - from});
    begin = end;
  }
  return ranges;
}

void Gradients::begin_step() {
  std::lock_guard lock(mutex_);
  ++step_;
}

Status Gradients::rescale(double scale) {
  std::lock_guard lock(mutex_);
  return rescale_all(scale);
}

Status Gradients::rescale_all(double scale) {
  if (scale == scale_) return Status();
  if (!(scale > 0 && std::isfinite(scale))) {
    return Status(Code::kInvalidArgument, "the gradients' scale is " + std::to_string(scale) +
                                              ", but must be a positive number");
  }
  const double factor = scale / scale_;
  for (auto& [index, bucket] : buckets_) {
    if (bucket.feedback) TACO_RETURN_IF_ERROR(pg::scale(*bucket.feedback, factor));
  }
  for (Saved& saved : saved_) multiply(saved, factor);
  pending_.scale(static_cast<float>(factor));
  scale_ = scale;
  return Status();
}

void Gradients::assume_scale(double scale) {
  std::lock_guard lock(mutex_);
  for (Saved& saved : saved_) multiply(saved, scale / scale_);
  scale_ = scale;
}

Result<Gradients::Plan> Gradients::plan(const Pass& pass) {
  std::lock_guard lock(mutex_);
  bool seen = true;
  Bucket& bucket = bucket_of(pass, seen);
  Result<std::shared_ptr<const Codec>> codec = codec_for(
      settings_of(pass.index), pass.gradient.size_bytes(), std::max<std::int64_t>(0, step_));
  if (!codec.ok()) return codec.status();
  const bool remembers = *codec && (*codec)->has_memory();
  if (remembers && !seen) seen = adopt(bucket) || pass.at_once;
  drop_saved_of(pass.layout);
  const bool in_part = remembers && seen && !pass.whole && !pass.uneven;
  if (in_part) {
    if (!bucket.feedback) give(bucket, settings_);
    prepare(bucket);
  }
  add_pending(pass, in_part);
  open(pass, in_part);
  Plan plan = {.codec = *codec, .feedback = nullptr};
  if (!pass.uneven) {
    plan.fates = std::popcount(fates_) % 2 != 0;
    for (const int parameter : pass.layout) decided_[parameter] = 0;
  }
  if (remembers) plan.codec = in_part ? *codec : nullptr;
  if (in_part) plan.feedback = bucket.feedback;
  return plan;
}

Gradients::Bucket& Gradients::bucket_of(const Pass& pass, bool& seen) {
  Bucket& bucket = buckets_[pass.index];
  seen = bucket.layout == pass.layout;
  if (seen) return bucket;
  retire_all_of(pass.layout);
  retire(bucket);
  const Part part = part_of_(pass.gradient.size());
  bucket = {.layout = pass.layout, .part = part, .ranges = ranges_of(pass.layout, part)};
  return bucket;
}

// Makes final what was sent of parameters that are decided. Where results take the place of what
// went in, what a second undecided pass sends has the first one's in it, of whoever sent that: then
// passes can only be rewound.
void Gradients::prepare(Bucket& bucket) {
  Feedback& feedback = *bucket.feedback;
  std::vector<Extent> runs;
  std::vector<std::uint8_t> first;
  bool undoable = false;
  for (const Range& range : bucket.ranges) {
    const State& state = states_[range.parameter];
    first.push_back(state.is_told && state.passes == 0);
    undoable = undoable || state.is_told;
    if (state.passes > 0) runs.push_back(range.run());
  }
  forget_sent_but(feedback, runs);
  feedback.before.first = std::move(first);
  feedback.undoable = undoable;
  if (!undoable) return;
  feedback.before.residual.resize(feedback.residual.size());
  feedback.before.momentum.resize(feedback.momentum.size());
}

void Gradients::open(const Pass& pass, bool coded) {
  const bool others_are_told =
      std::any_of(states_.begin(), states_.end(), [](const State& state) { return state.is_told; });
  for (std::size_t place = 0; place < pass.layout.size(); ++place) {
    State& state = states_[pass.layout[place]];
    state.newest = coded && state.is_told;
    state.dropped = false;  // others may have used it
    if (!is_used(pass, place)) continue;
    state.untrained = others_are_told && !state.is_told;
    if (!state.newest) continue;
    state.carries = !pass.adds;
    ++state.passes;
  }
}

void Gradients::used_elsewhere(int parameter, std::vector<float> carried) {
  std::lock_guard lock(mutex_);
  State& state = states_[parameter];
  if (state.is_told) note_taken(state, state.newest, /*adds=*/false);
  if (!state.newest) {
    pending_.add(parameter, 0, std::move(carried));
  } else {
    state.carries = true;
    ++state.passes;
    const std::uint64_t elements = carried.size();
    std::vector<float> used = carried;
    pending_.add(parameter, {.from = 0,
                             .elements = elements,
                             .if_used = std::move(used),
                             .if_kept = std::move(carried),
                             .if_dropped = {}});
  }
}

void Gradients::used_in_part(int parameter) {
  std::lock_guard lock(mutex_);
  states_[parameter].may_pend = true;
}

void Gradients::note_taken(State& state, bool coded, bool adds) {
  state.took = state.took || state.may_pend;
  const bool takes = state.may_pend || (state.took && !adds);
  state.mixed = state.mixed || (coded && takes);
}

// Each rank that holds a part of it adds it, and only the owner of a block knows whether that was
// coded: so when such a pass is taken back, it is rewound.
void Gradients::add_pending(const Pass& pass, bool coded) {
  std::uint64_t from = 0;
  for (std::size_t place = 0; place < pass.layout.size(); ++place) {
    const int parameter = pass.layout[place];
    State& state = states_[parameter];
    const std::uint64_t elements = parameters_[parameter].elements;
    if (is_used(pass, place)) {
      pending_.move_into(parameter, pass.gradient.subspan(from, elements), !state.is_told);
      if (state.is_told) note_taken(state, coded, pass.adds);
      if (pass.used.empty()) state.may_pend = false;
    }
    from += elements;
  }
}

void Gradients::tell_of(std::span<const int> parameters) {
  std::lock_guard lock(mutex_);
  for (const int parameter : parameters) states_[parameter].is_told = true;
}

void Gradients::forget_untrained(std::span<const int> parameters) {
  std::lock_guard lock(mutex_);
  std::vector<std::uint8_t> forgotten(parameters_.size());
  for (const int parameter : parameters) {
    if (!states_[parameter].untrained) continue;
    forgotten[parameter] = 1;
    pending_.clear(parameter);
  }
  for (auto& [index, bucket] : buckets_) {
    if (!bucket.feedback) continue;
    for (const Range& range : bucket.ranges) {
      if (forgotten[range.parameter]) clear(*bucket.feedback, range.run());
    }
  }
}

bool Gradients::is_rewound(const State& state, Fate fate) const {
  if (fate == Fate::kSkipped) return state.mixed || (state.carries && state.passes > 1);
  return fate == Fate::kDropped;
}

void Gradients::decide(std::span<const int> parameters, Fate fate) {
  std::lock_guard lock(mutex_);
  decide_all(parameters, fate);
}

void Gradients::decide_all(std::span<const int> parameters, Fate fate) {
  std::vector<std::uint8_t> decided(parameters_.size());
  for (const int parameter : parameters) decided[parameter] = 1;
  for (auto& [index, bucket] : buckets_) {
    if (!bucket.feedback || fate == Fate::kUsed) continue;
    for (const Range& range : bucket.ranges) {
      const State& state = states_[range.parameter];
      if (!decided[range.parameter] || state.passes == 0) continue;
      if (is_rewound(state, fate)) {
        rewind(*bucket.feedback, range.run());
      } else {
        restore(*bucket.feedback, range.run());
      }
    }
  }
  for (const int parameter : parameters) {
    State& state = states_[parameter];
    pending_.decide(parameter, fate == Fate::kUsed       ? &Pending::Undecided::if_used
                               : is_rewound(state, fate) ? &Pending::Undecided::if_dropped
                                                         : &Pending::Undecided::if_kept);
    note(parameter, state, fate);
    if (decided_[parameter] == 0) decided_[parameter] = number_of(fate);
    if (fate != Fate::kUsed && state.took) state.may_pend = true;
    state.dropped = fate == Fate::kDropped && (state.dropped || state.passes > 0);
    state.passes = 0;
    state.took = state.mixed = state.newest = false;
  }
}

void Gradients::note(int parameter, const State& state, Fate fate) {
  if (state.passes == 0) return;
  fates_ +=
      mixed_bits(std::uint64_t(parameter) << 32 ^ std::uint64_t(step_) << 2 ^ std::uint64_t(fate));
}

std::vector<std::uint8_t> Gradients::decided() const {
  std::lock_guard lock(mutex_);
  return decided_;
}

// A rank that has decided already has nothing undecided.
Status Gradients::catch_up(std::span<const std::uint8_t> decided, double scale) {
  std::lock_guard lock(mutex_);
  for (const Fate fate : {Fate::kUsed, Fate::kSkipped, Fate::kDropped}) {
    std::vector<int> parameters;
    for (std::size_t parameter = 0; parameter < decided.size(); ++parameter) {
      if (decided[parameter] == number_of(fate)) parameters.push_back(static_cast<int>(parameter));
    }
    decide_all(parameters, fate);
  }
  fates_ = 0;
  return rescale_all(scale);
}

bool Gradients::is_undecided(std::span<const int> parameters) const {
  std::lock_guard lock(mutex_);
  return std::any_of(parameters.begin(), parameters.end(), [&](int parameter) {
    return states_[parameter].passes > 0 || pending_.is_undecided(parameter);
  });
}

std::vector<int> Gradients::dropped(std::span<const int> parameters) const {
  std::lock_guard lock(mutex_);
  std::vector<int> all;
  std::copy_if(parameters.begin(), parameters.end(), std::back_inserter(all),
               [&](int parameter) { return states_[parameter].dropped; });
  return all;
}

// A feedback of zeros.
void Gradients::give(Bucket& bucket, const Settings& settings) const {
  auto feedback = std::make_shared<Feedback>();
  feedback->residual.assign(bucket.part.elements, 0);
  if (settings.momentum > 0) feedback->momentum.assign(bucket.part.elements, 0);
  for (const Range& range : bucket.ranges) feedback->begins.push_back(range.place);
  bucket.feedback = std::move(feedback);
}

// Goes on where a checkpoint left off, if it knows such a bucket. What it says of the parameters'
// sums is then told already, but for what was pending.
bool Gradients::adopt(Bucket& bucket) {
  const auto found = std::find_if(saved_.begin(), saved_.end(), [&](const Saved& one) {
    return one.layout == bucket.layout && one.part == bucket.part;
  });
  if (found == saved_.end()) return false;
  give(bucket, settings_);
  bucket.feedback->residual = std::move(found->residual);
  if (found->momentum.size() == bucket.feedback->momentum.size()) {
    bucket.feedback->momentum = std::move(found->momentum);
  }
  saved_.erase(found);
  for (const int parameter : bucket.layout) pending_.clear(parameter);
  for (const Saved& other : saved_) {
    if (overlap(other.layout, bucket.layout)) add_to_pending(other);
  }
  return true;
}

// Their parameters have gradients under way, and take with them what is pending.
void Gradients::drop_saved_of(const Layout& layout) {
  std::erase_if(saved_, [&](const Saved& saved) { return overlap(saved.layout, layout); });
}

void Gradients::add_to_pending(const Saved& saved) {
  for (const Range& range : ranges_of(saved.layout, saved.part)) {
    pending_.add(range.parameter, range.from, copy_of(saved.residual, range.run()));
  }
}

// The part that undecided passes have sent of it may yet be taken back.
void Gradients::retire(Bucket& bucket) {
  if (!bucket.feedback) return;
  Feedback& feedback = *bucket.feedback;
  for (const Range& range : bucket.ranges) {
    State& state = states_[range.parameter];
    state.may_pend = true;
    std::vector<float> used = copy_of(feedback.residual, range.run());
    if (state.passes == 0) {
      pending_.add(range.parameter, range.from, std::move(used));
      continue;
    }
    restore(feedback, range.run());
    pending_.add(range.parameter, {.from = range.from,
                                   .elements = range.elements,
                                   .if_used = std::move(used),
                                   .if_kept = copy_of(feedback.residual, range.run()),
                                   .if_dropped = copy_of(feedback.before.residual, range.run())});
  }
  for (const int parameter : bucket.layout) states_[parameter].may_pend = true;
  bucket.feedback.reset();
}

// These parameters are in another bucket from now on.
void Gradients::retire_all_of(const Layout& layout) {
  for (auto& [index, bucket] : buckets_) {
    if (overlap(bucket.layout, layout)) retire(bucket);
  }
}

void Gradients::retire_all() {
  for (auto& [index, bucket] : buckets_) retire(bucket);
  buckets_.clear();
  ways_.clear();
}

void Gradients::change(const Settings& settings) {
  std::lock_guard lock(mutex_);
  retire_all();
  settings_ = settings;
}

void Gradients::choose(std::map<std::size_t, Way> ways) {
  std::lock_guard lock(mutex_);
  ways_ = std::move(ways);
  for (auto& [index, bucket] : buckets_) {
    if (settings_of(index).compression != Compression::kTopK) retire(bucket);
  }
}

Settings Gradients::settings_of(std::size_t index) const {
  if (settings_.compression != Compression::kAuto) return settings_;
  const auto found = ways_.find(index);
  return by_way(settings_, found == ways_.end() ? Way::kExact : found->second);
}

void Gradients::move(int rank, int world, PartOf part_of) {
  std::lock_guard lock(mutex_);
  retire_all();
  pending_.scale(static_cast<float>(world) / static_cast<float>(world_));
  rank_ = rank;
  world_ = world;
  part_of_ = std::move(part_of);
}

std::vector<float> Gradients::owed(std::size_t first, std::size_t last, bool as_saved) const {
  std::lock_guard lock(mutex_);
  std::vector<std::uint64_t> begins;
  std::uint64_t total = 0;
  for (std::size_t parameter = first; parameter < last; ++parameter) {
    begins.push_back(total);
    total += parameters_[parameter].elements;
  }
  std::vector<float> sum(total);
  for (const auto& [index, bucket] : buckets_) {
    if (!bucket.feedback) continue;
    for (const Range& range : bucket.ranges) {
      const auto parameter = static_cast<std::size_t>(range.parameter);
      if (parameter < first || parameter >= last) continue;
      float* into = sum.data() + begins[parameter - first] + range.from;
      const float* owed = owed_of(bucket, range, as_saved);
      for (std::uint64_t i = 0; i < range.elements; ++i) into[i] += owed[i];
    }
  }
  for (std::size_t parameter = first; parameter < last; ++parameter) {
    pending_.add_to(parameter, std::span(sum).subspan(begins[parameter - first]),
                    as_saved ? &Pending::Undecided::if_dropped : &Pending::Undecided::if_used);
  }
  return sum;
}

const float* Gradients::owed_of(const Bucket& bucket, const Range& range, bool as_saved) const {
  const Feedback& feedback = *bucket.feedback;
  const bool before = as_saved && states_[range.parameter].passes > 0;
  return (before ? feedback.before.residual : feedback.residual).data() + range.place;
}

void Gradients::forget(std::size_t first, std::size_t last) {
  std::lock_guard lock(mutex_);
  const auto wanted = [=](std::size_t parameter) { return first <= parameter && parameter < last; };
  for (std::size_t parameter = first; parameter < last; ++parameter) {
    State& state = states_[parameter];
    pending_.move(parameter, !state.is_told);
    state.took = state.is_told;
  }
  for (auto& [index, bucket] : buckets_) {
    if (!bucket.feedback) continue;
    for (const Range& range : bucket.ranges) {
      if (wanted(range.parameter)) move_out(bucket, range);
    }
  }
  std::erase_if(saved_, [&](const Saved& saved) {
    return std::any_of(saved.layout.begin(), saved.layout.end(), wanted);
  });
}

// For a parameter with undecided passes, rewinding these gives it back.
void Gradients::move_out(Bucket& bucket, const Range& range) {
  std::vector<float>& residual = bucket.feedback->residual;
  const State& state = states_[range.parameter];
  const std::vector<float> values = copy_of(residual, range.run());
  std::fill_n(residual.begin() + static_cast<std::ptrdiff_t>(range.place), range.elements, 0.0F);
  if (!state.is_told) return;
  pending_.add(range.parameter, {.from = range.from,
                                 .elements = range.elements,
                                 .if_used = {},
                                 .if_kept = values,
                                 .if_dropped = state.passes > 0 ? std::vector<float>() : values});
}

std::vector<Saved> Gradients::save() const {
  std::lock_guard lock(mutex_);
  std::vector<Saved> all = saved_;
  for (const auto& [index, bucket] : buckets_) {
    if (!bucket.feedback) continue;
    Feedback decided = {.residual = bucket.feedback->residual,
                        .momentum = bucket.feedback->momentum,
                        .before = bucket.feedback->before};
    for (const Range& range : bucket.ranges) {
      if (states_[range.parameter].passes > 0) rewind(decided, range.run());
    }
    all.push_back(
        {bucket.layout, bucket.part, std::move(decided.residual), std::move(decided.momentum)});
  }
  for (std::size_t parameter = 0; parameter < parameters_.size(); ++parameter) {
    const auto number = static_cast<int>(parameter);
    // A parameter that has not been seen yet is in the list already.
    if (std::any_of(saved_.begin(), saved_.end(),
                    [&](const Saved& one) { return overlap(one.layout, {number}); })) {
      continue;
    }
    for (Pending::Chunk& chunk : pending_.saved(parameter)) {
      const std::uint64_t elements = chunk.values.size();
      all.push_back({{number, number}, {chunk.from, elements}, std::move(chunk.values), {}});
    }
  }
  for (Saved& saved : all) multiply(saved, 1 / scale_);
  return all;
}

Status Gradients::load(std::vector<Saved> saved, std::int64_t step) {
  std::lock_guard lock(mutex_);
  for (const Saved& one : saved) {
    const bool known = std::all_of(one.layout.begin(), one.layout.end(), [&](int parameter) {
      return parameter >= 0 && static_cast<std::size_t>(parameter) < parameters_.size();
    });
    if (!known || one.residual.size() != one.part.elements ||
        one.part.from > elements_of(one.layout) ||
        one.part.elements > elements_of(one.layout) - one.part.from) {
      return Status(Code::kInvalidArgument,
                    "the residuals of a bucket do not fit its parameters: " +
                        std::to_string(one.residual.size()) + " elements");
    }
  }
  buckets_.clear();
  pending_.clear();
  for (State& state : states_) state = {.is_told = state.is_told, .may_pend = true};
  fates_ = 0;
  saved_ = std::move(saved);
  for (Saved& one : saved_) multiply(one, scale_);
  step_ = step;
  return Status();
}

Status Gradients::add_average(std::size_t parameter, std::span<const float> average) {
  std::lock_guard lock(mutex_);
  const std::uint64_t elements = parameters_[parameter].elements;
  if (average.size() != elements) {
    return Status(Code::kInvalidArgument, "the residual of " + parameters_[parameter].name +
                                              " has " + std::to_string(average.size()) +
                                              " elements, the parameter has " +
                                              std::to_string(elements));
  }
  const auto share = [&](int rank) { return elements * static_cast<std::uint64_t>(rank) / world_; };
  states_[parameter].may_pend = true;
  const std::uint64_t from = share(rank_);
  std::vector<float> mine(average.begin() + static_cast<std::ptrdiff_t>(from),
                          average.begin() + static_cast<std::ptrdiff_t>(share(rank_ + 1)));
  const auto factor = static_cast<float>(world_ * scale_);
  for (float& value : mine) value *= factor;
  pending_.add(parameter, from, std::move(mine));
  return Status();
}

Settings Gradients::settings() const {
  std::lock_guard lock(mutex_);
  return settings_;
}

std::int64_t Gradients::step() const {
  std::lock_guard lock(mutex_);
  return step_;
}

double Gradients::scale() const {
  std::lock_guard lock(mutex_);
  return scale_;
}

int Gradients::world() const {
  std::lock_guard lock(mutex_);
  return world_;
}

double Gradients::norm() const {
  std::lock_guard lock(mutex_);
  double squares = pending_.squares();
  for (const auto& [index, bucket] : buckets_) {
    if (bucket.feedback) squares += sum_of_squares(bucket.feedback->residual);
  }
  return std::sqrt(squares) / world_ / scale_;
}

}  // namespace taco::pg::lightcc
