// Residuals that no bucket holds: of a layout that is no more, or loaded from a checkpoint. They
// are kept by parameter and range until that parameter's gradient is reduced the next time, and
// then added to it: each rank that holds a part adds it, so the sum over the ranks is right
// wherever it lies.
//
// The fate of a residual may depend on that of gradients that are there already: then it is
// undecided, and there are several answers to what is pending.
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
  // The pending values of the elements from `from` on: if the gradients are used, if they are not
  // but what they were made of is kept, and if they might as well not have been. Empty: zeros.
  struct Undecided {
    std::uint64_t from = 0, elements = 0;
    std::vector<float> if_used, if_kept, if_dropped;
  };
  using Answer = std::vector<float> Undecided::*;

  explicit Pending(std::size_t parameters) : chunks_(parameters), undecided_(parameters) {}

  // `values` of the elements from `from` on. Added to what is pending there already.
  void add(std::size_t parameter, std::uint64_t from, std::vector<float> values);
  void add(std::size_t parameter, Undecided undecided);
  // It is in the parameter's gradient now. `final`: whatever becomes of that; or else it is pending
  // again unless the gradient is used.
  void move(std::size_t parameter, bool final);
  // Adds to the parameter's whole `gradient` what is pending of it, and moves it.
  void move_into(std::size_t parameter, std::span<float> gradient, bool final);
  void decide(std::size_t parameter, Answer answer);

  // Adds what is pending to `sum`, which holds the parameter's elements.
  void add_to(std::size_t parameter, std::span<float> sum,
              Answer answer = &Undecided::if_used) const;
  // As it is if what is undecided is dropped.
  std::vector<Chunk> saved(std::size_t parameter) const;
  bool empty(std::size_t parameter) const;
  bool is_undecided(std::size_t parameter) const { return !undecided_[parameter].empty(); }
  bool empty() const;
  void clear(std::size_t parameter);
  void clear();
  void scale(float factor);
  double squares() const;  // the sum of the squares of all values, if all gradients are used

 private:
  std::vector<std::vector<Chunk>> chunks_;  // by parameter
  std::vector<std::vector<Undecided>> undecided_;
};

double sum_of_squares(std::span<const float> values);

}  // namespace taco::pg::lightcc
