// Residuals that no bucket holds: of a layout that is no more, or loaded from a checkpoint. They
// are kept by parameter and range until that parameter's gradient is reduced the next time, and
// then added to it: each rank that holds a part adds it, so the sum over the ranks is right
// wherever it lies.
//
// One model's on one rank; guarded by its owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace taco::pg::lightcc {

class Pending {
 public:
  struct Chunk {
    std::uint64_t from = 0;
    std::vector<float> values;
  };

  explicit Pending(std::size_t parameters) : chunks_(parameters) {}

  // `values` of the elements from `from` on. Added to what is pending there already.
  void add(std::size_t parameter, std::uint64_t from, std::vector<float> values);
  // Adds to the parameter's whole `gradient` what is pending of it, which then lies in `sent`;
  // null: nowhere. Nothing where the gradient is zero everywhere: nobody might use what is added to
  // it, as of a parameter that no rank has used in this step.
  void move_into(std::size_t parameter, std::span<float> gradient, Pending* sent);
  void move(std::size_t parameter, Pending* sent);
  // Takes all of `other` over.
  void take(Pending& other);

  // Adds what is pending to `sum`, which holds the parameter's elements.
  void add_to(std::size_t parameter, std::span<float> sum) const;
  const std::vector<Chunk>& of(std::size_t parameter) const { return chunks_[parameter]; }
  void clear(std::size_t parameter) { chunks_[parameter].clear(); }
  void clear();
  void scale(float factor);
  bool empty() const;
  double squares() const;  // the sum of the squares of all values

 private:
  std::vector<std::vector<Chunk>> chunks_;  // by parameter
};

// Is every element zero? Of a gradient: it was not used, or might as well not have been.
bool all_zero(std::span<const float> values);
double sum_of_squares(std::span<const float> values);

}  // namespace taco::pg::lightcc
