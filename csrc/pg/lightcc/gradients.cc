#include "pg/lightcc/gradients.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "pg/codecs/feedback.h"

namespace taco::pg::lightcc {
namespace {

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
void Gradients::for_each_range(const Bucket& bucket, Take take) const {
  std::uint64_t begin = 0;
  for (const int parameter : bucket.layout) {
    const std::uint64_t end = begin + parameters_[parameter].elements;
    const std::uint64_t from = std::max(begin, bucket.part.from);
    const std::uint64_t to = std::min(end, bucket.part.from + bucket.part.elements);
    if (from < to) take(parameter, from - begin, from - bucket.part.from, to - from);
    begin = end;
  }
}

Status Gradients::begin_step(double scale, bool skipped) {
  std::lock_guard lock(mutex_);
  ++step_;
  for (auto& [index, bucket] : buckets_) {
    if (!bucket.feedback) continue;
    skipped ? restore(*bucket.feedback) : forget_sent(*bucket.feedback);
  }
  if (skipped) pending_.take(sent_);
  sent_.clear();
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
    retire(bucket);
    bucket = {.layout = layout, .part = part_of_(gradient.size())};
  }
  Result<std::shared_ptr<const Codec>> codec =
      codec_for(settings_of(index), gradient.size_bytes(), std::max<std::int64_t>(0, step_));
  if (!codec.ok()) return codec.status();
  bucket.codec = *codec;
  const bool remembers = bucket.codec && bucket.codec->has_memory();
  // What is pending goes into the gradient, and must come out again if the step is skipped: then it
  // has to travel whole.
  if (remembers && !seen) seen = adopt(bucket) || (at_once && !undoable_);
  drop_saved_of(layout);
  if (remembers && !seen) bucket.codec = nullptr;
  if (remembers && seen && !bucket.feedback) give(bucket, settings_);
  std::uint64_t from = 0;
  for (const int parameter : layout) {
    const std::uint64_t elements = parameters_[parameter].elements;
    pending_.move_into(parameter, gradient.subspan(from, elements), sent_);
    from += elements;
  }
  return Plan{bucket.codec, bucket.codec && remembers ? bucket.feedback : nullptr};
}

// A feedback of zeros.
void Gradients::give(Bucket& bucket, const Settings& settings) const {
  auto feedback = std::make_shared<Feedback>();
  feedback->residual.assign(bucket.part.elements, 0);
  if (settings.momentum > 0) feedback->momentum.assign(bucket.part.elements, 0);
  for_each_range(bucket, [&](int, std::uint64_t, std::uint64_t place, std::uint64_t) {
    feedback->begins.push_back(place);
  });
  feedback->undoable = undoable_;
  bucket.feedback = std::move(feedback);
}

// Goes on where a checkpoint left off, if it knows such a bucket. What it says of the parameters'
// sums is then told already.
bool Gradients::adopt(Bucket& bucket) {
  const auto saved = std::find_if(saved_.begin(), saved_.end(), [&](const Saved& one) {
    return one.layout == bucket.layout && one.part == bucket.part;
  });
  if (saved == saved_.end()) return false;
  give(bucket, settings_);
  bucket.feedback->residual = std::move(saved->residual);
  if (saved->momentum.size() == bucket.feedback->momentum.size()) {
    bucket.feedback->momentum = std::move(saved->momentum);
  }
  for (const int parameter : bucket.layout) pending_.clear(parameter);
  return true;
}

// Their parameters have gradients under way, and take with them what is pending.
void Gradients::drop_saved_of(const Layout& layout) {
  std::erase_if(saved_, [&](const Saved& saved) {
    return std::find_first_of(saved.layout.begin(), saved.layout.end(), layout.begin(),
                              layout.end()) != saved.layout.end();
  });
}

void Gradients::retire(Bucket& bucket) {
  if (!bucket.feedback) return;
  const std::vector<float>& residual = bucket.feedback->residual;
  for_each_range(
      bucket, [&](int parameter, std::uint64_t from, std::uint64_t place, std::uint64_t count) {
        const auto first = residual.begin() + static_cast<std::ptrdiff_t>(place);
        pending_.add(parameter, from, {first, first + static_cast<std::ptrdiff_t>(count)});
      });
  bucket.feedback.reset();
}

void Gradients::retire_all() {
  for (auto& [index, bucket] : buckets_) retire(bucket);
  buckets_.clear();
}

void Gradients::change(const Settings& settings) {
  std::lock_guard lock(mutex_);
  retire_all();
  ways_.clear();
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
    for_each_range(bucket, [&](std::size_t parameter, std::uint64_t from, std::uint64_t place,
                               std::uint64_t count) {
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
  for (auto& [index, bucket] : buckets_) {
    if (!bucket.feedback) continue;
    std::vector<float>& residual = bucket.feedback->residual;
    for_each_range(bucket, [&](std::size_t parameter, std::uint64_t, std::uint64_t place,
                               std::uint64_t count) {
      if (parameter < first || parameter >= last) return;
      std::fill_n(residual.begin() + static_cast<std::ptrdiff_t>(place), count, 0.0F);
    });
  }
  for (std::size_t parameter = first; parameter < last; ++parameter) pending_.clear(parameter);
}

std::vector<Saved> Gradients::save() const {
  std::lock_guard lock(mutex_);
  std::vector<Saved> all = saved_;
  for (const auto& [index, bucket] : buckets_) {
    if (!bucket.feedback) continue;
    all.push_back(
        {bucket.layout, bucket.part, bucket.feedback->residual, bucket.feedback->momentum});
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
