// A selection from many blocks, with all its arrays, done by the host and by the kernels for GPUs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/cuda/select.h"
#include "kernels/select.h"

namespace taco::kernels::cuda::testing {

struct Outcome {
  std::vector<float> residual, momentum, values, taken_momentum;
  std::vector<std::uint32_t> indices, finite;
};

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

struct BlocksOfGradient {
  std::size_t count = 0;
  std::uint32_t block = 0, k = 0, last_k = 0;
  std::vector<float> residual, gradient, momentum;  // the latter may be empty
  float factor = 0.9f;

  std::size_t blocks() const { return (count + block - 1) / block; }
  std::size_t taken() const { return (blocks() - 1) * k + last_k; }

  SelectArguments arguments(Outcome& out, bool in_place, std::vector<float>& other_residual,
                            std::vector<float>& other_momentum) const {
    out = {residual, momentum, {}, {}, {}, {}};
    out.values.resize(taken());
    out.taken_momentum.resize(momentum.empty() ? 0 : taken());
    out.indices.resize(taken());
    out.finite.resize(blocks());
    other_residual.assign(count, -1);
    other_momentum.assign(momentum.size(), -1);
    SelectArguments of{.count = count, .block = block, .k = k, .last_k = last_k};
    of.residual = out.residual.data();
    of.gradient = gradient.empty() ? nullptr : gradient.data();
    of.new_residual = in_place ? out.residual.data() : other_residual.data();
    if (!momentum.empty()) {
      of.momentum = out.momentum.data();
      of.new_momentum = in_place ? out.momentum.data() : other_momentum.data();
      of.taken_momentum = out.taken_momentum.data();
    }
    of.factor = factor;
    of.values = out.values.data();
    of.indices = out.indices.data();
    of.finite = out.finite.data();
    return of;
  }

  template <class Launcher>
  Status select(const Launcher& launch, bool in_place, Outcome& out) const {
    std::vector<float> other_residual, other_momentum;
    const SelectArguments of = arguments(out, in_place, other_residual, other_momentum);
    std::vector<std::uint32_t> workspace(select_workspace_bytes(of) / 4 + 1, 0xABAB'ABAB);
    TACO_RETURN_IF_ERROR(select_on(launch, of, workspace.data()));
    if (workspace.back() != 0xABAB'ABAB) return invalid("wrote beyond the workspace");
    if (!in_place) {
      if (!same_bits(out.residual, residual)) return invalid("wrote to the old residual");
      out.residual = other_residual;
      out.momentum = other_momentum;
    }
    return Status();
  }

  // The elements that the host selects of each block. Blocks that are not finite stay as they were.
  Outcome by_host() const {
    Outcome out{residual, momentum, {}, {}, {}, {}};
    out.values.resize(taken());
    out.taken_momentum.resize(momentum.empty() ? 0 : taken());
    out.indices.resize(taken());
    SelectScratch scratch;
    for (std::size_t b = 0; b < blocks(); ++b) {
      const std::size_t start = b * block, n = std::min<std::size_t>(block, count - start);
      const std::size_t taken = b + 1 == blocks() ? last_k : k;
      const float* const added = gradient.empty() ? nullptr : gradient.data() + start;
      const bool finite =
          momentum.empty()
              ? select_largest(out.residual.data() + start, added, n, taken,
                               out.values.data() + b * k, out.indices.data() + b * k, scratch)
              : select_largest_momentum(out.residual.data() + start, out.momentum.data() + start,
                                        added, factor, n, taken, out.values.data() + b * k,
                                        out.indices.data() + b * k, scratch,
                                        out.taken_momentum.data() + b * k);
      out.finite.push_back(finite ? 1 : 0);
    }
    return out;
  }
};

// True when both outcomes are equal. Blocks that are not finite are compared in place only,
// by what they left in memory.
inline bool same(const BlocksOfGradient& of, const Outcome& a, const Outcome& b, bool in_place) {
  if (a.finite != b.finite) return false;
  const auto equal = [](const auto& left, const auto& right, std::size_t first, std::size_t n) {
    return left.empty() || std::memcmp(left.data() + first, right.data() + first, 4 * n) == 0;
  };
  for (std::size_t block = 0; block < of.blocks(); ++block) {
    const std::size_t start = block * of.block,
                      n = std::min<std::size_t>(of.block, of.count - start);
    const bool finite = a.finite[block] != 0;
    if ((finite || in_place) &&
        !(equal(a.residual, b.residual, start, n) && equal(a.momentum, b.momentum, start, n))) {
      return false;
    }
    const std::size_t taken = block + 1 == of.blocks() ? of.last_k : of.k, first = block * of.k;
    if (finite &&
        !(equal(a.values, b.values, first, taken) && equal(a.indices, b.indices, first, taken) &&
          equal(a.taken_momentum, b.taken_momentum, first, taken))) {
      return false;
    }
  }
  return true;
}

}  // namespace taco::kernels::cuda::testing
