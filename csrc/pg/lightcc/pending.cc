#include "pg/lightcc/pending.h"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <utility>

namespace taco::pg::lightcc {
namespace {

using Values = std::vector<float>;
constexpr std::array kAnswers = {&Pending::Undecided::if_used, &Pending::Undecided::if_kept,
                                 &Pending::Undecided::if_dropped};

void add_values(std::span<const float> values, std::span<float> sum) {
  std::transform(values.begin(), values.end(), sum.begin(), sum.begin(), std::plus<>());
}

bool all_zero(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float value) { return value == 0; });
}

void multiply_by(float factor, Values& values) {
  for (float& value : values) value *= factor;
}

}  // namespace

double sum_of_squares(std::span<const float> values) {
  return std::transform_reduce(values.begin(), values.end(), 0.0, std::plus<>(),
                               [](double value) { return value * value; });
}

void Pending::add(std::size_t parameter, std::uint64_t from, Values values) {
  if (all_zero(values)) return;
  for (Chunk& chunk : chunks_[parameter]) {
    if (chunk.from != from || chunk.values.size() != values.size()) continue;
    add_values(values, chunk.values);
    return;
  }
  chunks_[parameter].push_back({from, std::move(values)});
}

void Pending::add(std::size_t parameter, Undecided undecided) {
  const auto is_nothing = [&](Answer answer) { return all_zero(undecided.*answer); };
  if (std::all_of(kAnswers.begin(), kAnswers.end(), is_nothing)) return;
  for (Undecided& there : undecided_[parameter]) {
    if (there.from != undecided.from || there.elements != undecided.elements) continue;
    for (const Answer answer : kAnswers) {
      if ((undecided.*answer).empty()) continue;
      (there.*answer).resize(there.elements);
      add_values(undecided.*answer, there.*answer);
    }
    return;
  }
  undecided_[parameter].push_back(std::move(undecided));
}

void Pending::move(std::size_t parameter, bool final) {
  for (Undecided& undecided : undecided_[parameter]) undecided.if_used.clear();
  for (Chunk& chunk : std::exchange(chunks_[parameter], {})) {
    if (final) continue;
    add(parameter, Undecided{.from = chunk.from,
                             .elements = chunk.values.size(),
                             .if_used = {},
                             .if_kept = chunk.values,
                             .if_dropped = chunk.values});
  }
}

void Pending::move_into(std::size_t parameter, std::span<float> gradient, bool final) {
  if (empty(parameter)) return;
  add_to(parameter, gradient);
  move(parameter, final);
}

void Pending::decide(std::size_t parameter, Answer answer) {
  for (Undecided& undecided : std::exchange(undecided_[parameter], {})) {
    add(parameter, undecided.from, std::move(undecided.*answer));
  }
}

void Pending::add_to(std::size_t parameter, std::span<float> sum, Answer answer) const {
  for (const Chunk& chunk : chunks_[parameter]) {
    add_values(chunk.values, sum.subspan(chunk.from, chunk.values.size()));
  }
  for (const Undecided& undecided : undecided_[parameter]) {
    const Values& values = undecided.*answer;
    add_values(values, sum.subspan(undecided.from, values.size()));
  }
}

std::vector<Pending::Chunk> Pending::saved(std::size_t parameter) const {
  std::vector<Chunk> all = chunks_[parameter];
  for (const Undecided& undecided : undecided_[parameter]) {
    if (!all_zero(undecided.if_dropped)) all.push_back({undecided.from, undecided.if_dropped});
  }
  return all;
}

bool Pending::empty(std::size_t parameter) const {
  return chunks_[parameter].empty() && undecided_[parameter].empty();
}

bool Pending::empty() const {
  for (std::size_t parameter = 0; parameter < chunks_.size(); ++parameter) {
    if (!empty(parameter)) return false;
  }
  return true;
}

void Pending::clear(std::size_t parameter) {
  chunks_[parameter].clear();
  undecided_[parameter].clear();
}

void Pending::clear() {
  for (std::size_t parameter = 0; parameter < chunks_.size(); ++parameter) clear(parameter);
}

void Pending::scale(float factor) {
  for (std::vector<Chunk>& chunks : chunks_) {
    for (Chunk& chunk : chunks) multiply_by(factor, chunk.values);
  }
  for (std::vector<Undecided>& all : undecided_) {
    for (Undecided& undecided : all) {
      for (const Answer answer : kAnswers) multiply_by(factor, undecided.*answer);
    }
  }
}

double Pending::squares() const {
  double sum = 0;
  for (const std::vector<Chunk>& chunks : chunks_) {
    for (const Chunk& chunk : chunks) sum += sum_of_squares(chunk.values);
  }
  for (const std::vector<Undecided>& all : undecided_) {
    for (const Undecided& undecided : all) sum += sum_of_squares(undecided.if_used);
  }
  return sum;
}

}  // namespace taco::pg::lightcc
