#include "pg/lightcc/pending.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace taco::pg::lightcc {

bool all_zero(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float value) { return value == 0; });
}

double sum_of_squares(std::span<const float> values) {
  return std::transform_reduce(values.begin(), values.end(), 0.0, std::plus<>(),
                               [](double value) { return value * value; });
}

void Pending::add(std::size_t parameter, std::uint64_t from, std::vector<float> values) {
  if (all_zero(values)) return;
  for (Chunk& chunk : chunks_[parameter]) {
    if (chunk.from != from || chunk.values.size() != values.size()) continue;
    std::transform(values.begin(), values.end(), chunk.values.begin(), chunk.values.begin(),
                   std::plus<>());
    return;
  }
  chunks_[parameter].push_back({from, std::move(values)});
}

void Pending::move_into(std::size_t parameter, std::span<float> gradient, Pending* sent) {
  if (chunks_[parameter].empty() || all_zero(gradient)) return;
  add_to(parameter, gradient);
  move(parameter, sent);
}

void Pending::move(std::size_t parameter, Pending* sent) {
  for (Chunk& chunk : std::exchange(chunks_[parameter], {})) {
    if (sent) sent->add(parameter, chunk.from, std::move(chunk.values));
  }
}

void Pending::take(Pending& other) {
  for (std::size_t parameter = 0; parameter < chunks_.size(); ++parameter) {
    other.move(parameter, this);
  }
}

void Pending::add_to(std::size_t parameter, std::span<float> sum) const {
  for (const Chunk& chunk : chunks_[parameter]) {
    float* place = sum.data() + chunk.from;
    for (std::size_t i = 0; i < chunk.values.size(); ++i) place[i] += chunk.values[i];
  }
}

void Pending::clear() {
  for (std::vector<Chunk>& chunks : chunks_) chunks.clear();
}

void Pending::scale(float factor) {
  for (std::vector<Chunk>& chunks : chunks_) {
    for (Chunk& chunk : chunks) {
      for (float& value : chunk.values) value *= factor;
    }
  }
}

bool Pending::empty() const {
  return std::all_of(chunks_.begin(), chunks_.end(),
                     [](const std::vector<Chunk>& chunks) { return chunks.empty(); });
}

double Pending::squares() const {
  double sum = 0;
  for (const std::vector<Chunk>& chunks : chunks_) {
    for (const Chunk& chunk : chunks) sum += sum_of_squares(chunk.values);
  }
  return sum;
}

}  // namespace taco::pg::lightcc
