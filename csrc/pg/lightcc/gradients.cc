#include "pg/lightcc/gradients.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "pg/codecs/feedback.h"

namespace taco::pg::lightcc {
namespace {

bool overlap(const Layout& a, const Layout& b) {
  return std::find_first_of(a.begin(), a.end(), b.begin(), b.end()) != a.end();
}

void multiply(Saved& saved, double factor) {
  for (float& value : saved.residual) value = static_cast<float>(value * factor);
  for (float& value : saved.momentum) value = static_cast<float>(value * factor);
}

}  // namespace

Gradients::Gradients(std::vector<Parameter> parameters, const Settings& settings, int rank,
                     int world, PartOf part_of)
    : parameters_(std::move(parameters)),
      settings_(settings),
      rank_(rank),
      world_(world),
      part_of_(std::move(part_of)),
      pending_(parameters_.size()),
      sent_(parameters_.size()) {}

std::uint64_t Gradients::elements_of(const Layout& layout) const {
  std::uint64_t sum = 0;
  for (const int parameter : layout) sum += parameters_[parameter].elements;
  return sum;
}

template <class Take>
void Gradients::for_each_range(const Layout& layout, const Part& part, Take take) const {
  std::uint64_t begin = 0;
  for (const int parameter : layout) {
    const std::uint64_t end = begin + parameters_[parameter].elements;
    const std::uint64_t from = std::max(begin, part.from);
    const std::uint64_t to = std::min(end, part.from + part.elements);
    if (from < to) take(parameter, from - begin, from - part.from, to - from);
    begin = end;
  }
}

void Gradients::end_step(bool skipped) {
  std::lock_guard lock(mutex_);
  settle(skipped);
}

void Gradients::settle(bool skipped) {
  for (auto& [index, bucket] : buckets_) {
    if (!bucket.feedback) continue;
    skipped ? restore(*bucket.feedback) : forget_sent(*bucket.feedback);
  }
  if (skipped) {
    pending_.take(sent_);
    newest_was_skipped_ = true;
  }
  sent_.clear();
}

Status Gradients::begin_step(double scale, bool skipped) {
  std::lock_guard lock(mutex_);
  settle(skipped);
  after_skipped_ = std::exchange(newest_was_skipped_, false);
  ++step_;
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

void Gradients::expect_skips(bool expected) {
  std::lock_guard lock(mutex_);
  undoable_ = expected;
  for (auto& [index, bucket] : buckets_) {
    if (bucket.feedback) bucket.feedback->undoable = expected;
  }
}

Result<Gradients::Plan> Gradients::plan(std::size_t index, const Layout& layout,
                                        std::span<float> gradient, bool at_once) {
  std::lock_guard lock(mutex_);
  Bucket& bucket = buckets_[index];
  bool seen = bucket.layout == layout;
  if (!seen) {
    retire_all_of(layout);
    retire(bucket);
    bucket = {.layout = layout, .part = part_of_(gradient.size()), .since = step_};
  }
  Result<std::shared_ptr<const Codec>> codec =
      codec_for(settings_of(index), gradient.size_bytes(), std::max<std::int64_t>(0, step_));
  if (!codec.ok()) return codec.status();
  const bool remembers = *codec && (*codec)->has_memory();
  if (remembers && !seen) seen = adopt(bucket) || (at_once && !undoable_);
  drop_saved_of(layout);
  const bool in_part = remembers && seen && !must_travel_whole(bucket);
  if (in_part && !bucket.feedback) give(bucket, settings_);
  if (!(in_part && undoable_)) add_pending(layout, gradient);
  if (remembers) return Plan{in_part ? *codec : nullptr, in_part ? bucket.feedback : nullptr};
  return Plan{*codec, nullptr};
}

// A pending residual goes into the gradient, and must come out again if the step is skipped. What
// the codec takes back may be all of its block, or nothing where that was not finite, and only the
// owner of the block knows. So it has to travel whole: in the step after one that was skipped, and
// now and then for parameters that had no gradient whenever their bucket last did. All ranks must
// come to the same, though each has something else pending.
bool Gradients::must_travel_whole(const Bucket& bucket) const {
  constexpr std::int64_t kFirst = 16;
  const std::int64_t age = step_ - bucket.since;
  const bool now_and_then = age >= kFirst && std::has_single_bit(static_cast<std::uint64_t>(age));
  return undoable_ && (after_skipped_ || now_and_then);
}

void Gradients::add_pending(const Layout& layout, std::span<float> gradient) {
  std::uint64_t from = 0;
  for (const int parameter : layout) {
    const std::uint64_t elements = parameters_[parameter].elements;
    pending_.move_into(parameter, gradient.subspan(from, elements), undoable_ ? &sent_ : nullptr);
    from += elements;
  }
}

// A feedback of zeros.
void Gradients::give(Bucket& bucket, const Settings& settings) const {
  auto feedback = std::make_shared<Feedback>();
  feedback->residual.assign(bucket.part.elements, 0);
  if (settings.momentum > 0) feedback->momentum.assign(bucket.part.elements, 0);
  for_each_range(bucket.layout, bucket.part,
                 [&](int, std::uint64_t, std::uint64_t place, std::uint64_t) {
                   feedback->begins.push_back(place);
                 });
  feedback->undoable = undoable_;
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
    if (!overlap(other.layout, bucket.layout)) continue;
    add_to_pending(other.layout, other.part, other.residual, pending_);
  }
  return true;
}

// Their parameters have gradients under way, and take with them what is pending.
void Gradients::drop_saved_of(const Layout& layout) {
  std::erase_if(saved_, [&](const Saved& saved) { return overlap(saved.layout, layout); });
}

void Gradients::add_to_pending(const Layout& layout, const Part& part,
                               const std::vector<float>& values, Pending& pending) const {
  for_each_range(
      layout, part,
      [&](int parameter, std::uint64_t from, std::uint64_t place, std::uint64_t count) {
        const auto first = values.begin() + static_cast<std::ptrdiff_t>(place);
        pending.add(parameter, from, {first, first + static_cast<std::ptrdiff_t>(count)});
      });
}

// The part that the newest step has sent of it may yet be taken back.
void Gradients::retire(Bucket& bucket) {
  if (!bucket.feedback) return;
  std::vector<float>& residual = bucket.feedback->residual;
  add_to_pending(bucket.layout, bucket.part, residual, pending_);
  std::fill(residual.begin(), residual.end(), 0.0F);
  restore(*bucket.feedback);
  add_to_pending(bucket.layout, bucket.part, residual, sent_);
  bucket.feedback.reset();
  bucket.since = step_;
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
  const float factor = static_cast<float>(world) / static_cast<float>(world_);
  pending_.scale(factor);
  sent_.scale(factor);
  rank_ = rank;
  world_ = world;
  part_of_ = std::move(part_of);
}

std::vector<float> Gradients::owed(std::size_t first, std::size_t last) const {
  std::lock_guard lock(mutex_);
  std::vector<std::uint64_t> begins;
  std::uint64_t total = 0;
  for (std::size_t parameter = first; parameter < last; ++parameter) {
    begins.push_back(total);
    total += parameters_[parameter].elements;
  }
  std::vector<float> sum(total);
  const auto wanted = [&](std::size_t parameter) { return first <= parameter && parameter < last; };
  for (const auto& entry : buckets_) {
    const Bucket& bucket = entry.second;
    if (!bucket.feedback) continue;
    for_each_range(
        bucket.layout, bucket.part,
        [&](std::size_t parameter, std::uint64_t from, std::uint64_t place, std::uint64_t count) {
          if (!wanted(parameter)) return;
          float* into = sum.data() + begins[parameter - first] + from;
          const float* residual = bucket.feedback->residual.data() + place;
          for (std::uint64_t i = 0; i < count; ++i) into[i] += residual[i];
        });
  }
  for (std::size_t parameter = first; parameter < last; ++parameter) {
    pending_.add_to(parameter, std::span(sum).subspan(begins[parameter - first]));
  }
  return sum;
}

void Gradients::forget(std::size_t first, std::size_t last) {
  std::lock_guard lock(mutex_);
  if (newest_was_skipped_) return;
  const auto wanted = [=](std::size_t parameter) { return first <= parameter && parameter < last; };
  for (auto& [index, bucket] : buckets_) {
    if (!bucket.feedback) continue;
    const std::span<float> residual = bucket.feedback->residual;
    for_each_range(
        bucket.layout, bucket.part,
        [&](std::size_t parameter, std::uint64_t from, std::uint64_t place, std::uint64_t count) {
          if (!wanted(parameter)) return;
          const std::span<float> values = residual.subspan(place, count);
          if (undoable_) sent_.add(parameter, from, {values.begin(), values.end()});
          std::fill(values.begin(), values.end(), 0.0F);
        });
  }
  std::erase_if(saved_, [&](const Saved& saved) {
    return std::any_of(saved.layout.begin(), saved.layout.end(), wanted);
  });
  for (std::size_t parameter = first; parameter < last; ++parameter) {
    pending_.move(parameter, undoable_ ? &sent_ : nullptr);
  }
}

std::vector<Saved> Gradients::save() const {
  std::lock_guard lock(mutex_);
  std::vector<Saved> all = saved_;
  for (const auto& [index, bucket] : buckets_) {
    if (!bucket.feedback) continue;
    all.push_back(
        {bucket.layout, bucket.part, bucket.feedback->residual, bucket.feedback->momentum});
  }
  for (std::size_t parameter = 0; parameter < parameters_.size(); ++parameter) {
    const auto number = static_cast<int>(parameter);
    // A parameter that has not been seen yet is in the list already.
    if (std::any_of(saved_.begin(), saved_.end(),
                    [&](const Saved& one) { return overlap(one.layout, {number}); })) {
      continue;
    }
    for (const Pending::Chunk& chunk : pending_.of(parameter)) {
      all.push_back({{number, number}, {chunk.from, chunk.values.size()}, chunk.values, {}});
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
  sent_.clear();
  newest_was_skipped_ = false;
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
