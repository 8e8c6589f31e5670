// The passes of selection (kernels/select.cc) over the lanes of one instruction set. `Lanes` is
// ScalarLanes below, or has the same members for vectors:
//   Floats, Words                    kLanes floats, kLanes signed words
//   first()                          the words 0, 1, 2, ...
//   above(a, b), equal(a, b)         a bit for each lane in which a > b, a == b
//   how_many(bits)                   the bits that are set
//   compress(to, words, bits)        writes the words whose bit is set, one after the other, and
//   may
//                                    write anything in the rest of kLanes words
//
// A magnitude is a float's bits without its sign: an order of whole numbers, in which infinity and
// NaN come last.
//
// Included by files that are compiled for different instruction sets: everything is internal.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/elementwise.h"
#include "kernels/variant.h"
#include "kernels/vector_memory.h"

namespace taco::kernels {
namespace {

struct ScalarLanes {
  using Floats = float;
  using Words = std::int32_t;
  static constexpr std::size_t kLanes = 1;
  static Words first() { return 0; }
  static unsigned above(Words a, Words b) { return a > b ? 1 : 0; }
  static unsigned equal(Words a, Words b) { return a == b ? 1 : 0; }
  static unsigned how_many(unsigned bits) { return bits; }
  static void compress(std::uint32_t* to, Words words, unsigned) {
    *to = static_cast<std::uint32_t>(words);
  }
};

// u = fl(fl(factor * momentum) + gradient), of scalars or vectors.
template <class V>
inline V corrected(V momentum, V gradient, float factor) {
  return momentum * factor + gradient;
}

template <class Lanes>
struct SelectLoops {
  using Floats = typename Lanes::Floats;
  using Words = typename Lanes::Words;
  static constexpr std::size_t kLanes = Lanes::kLanes;
  static constexpr std::size_t kFloatsOfLine = kCacheLine / sizeof(float);
  static constexpr std::int32_t kMagnitude = 0x7FFF'FFFF;

  static Words splat(std::int32_t value) { return value - Words{}; }

  // `sum(load)` adds up what load(array) gives of each array.
  template <class Sum>
  static bool any_above(std::size_t first, Words limit, Sum sum) {
    std::int32_t any = 0;
    for (std::size_t i = first; i < first + kFloatsOfLine; ++i) {
      const float acc = sum([i](const float* array) { return load_vector<float>(array + i); });
      any |= (__builtin_bit_cast(std::int32_t, acc) & kMagnitude) > limit ? 1 : 0;
    }
    return any != 0;
  }
  template <class Sum>
  static std::size_t collect_sums(const Candidates& to, std::size_t first, std::size_t count,
                                  std::int32_t threshold, Sum sum) {
    const Words limit = splat(threshold);
    Words index = Lanes::first() + static_cast<std::int32_t>(first);
    std::size_t found = 0;
    const auto append = [&](Floats acc, unsigned valid) {
      const auto bits = __builtin_bit_cast(Words, acc);
      const unsigned chosen = Lanes::above(bits & kMagnitude, limit) & valid;
      Lanes::compress(to.bits + found, bits, chosen);
      Lanes::compress(to.indices + found, index, chosen);
      found += Lanes::how_many(chosen);
      index += static_cast<std::int32_t>(kLanes);
    };
    std::size_t i = first;
    const std::size_t end = first + count;
    for (; i + kFloatsOfLine <= end; i += kFloatsOfLine) {
      sum([i](const float* array) {
        prefetch_far<kCacheLine>(array + i);
        return Floats{};
      });
      // One at a time, most lines are passed over at once: compilers make vectors of this look.
      if constexpr (kLanes == 1) {
        if (!any_above(i, limit, sum)) {
          index += static_cast<std::int32_t>(kFloatsOfLine);
          continue;
        }
      }
      for (std::size_t j = i; j < i + kFloatsOfLine; j += kLanes) {
        append(sum([j](const float* array) { return load_vector<Floats>(array + j); }), ~0u);
      }
    }
    for (; i < end; i += kLanes) {
      const std::size_t rest = end - i < kLanes ? end - i : kLanes;
      append(sum([i, rest](const float* array) { return load_part<Floats>(array + i, 4 * rest); }),
             (1u << rest) - 1);
    }
    return found;
  }

  static std::size_t collect(const Candidates& to, const Addends& from, std::size_t first,
                             std::size_t count, std::int32_t threshold) {
    if (from.momentum != nullptr) {
      return collect_sums(to, first, count, threshold, [&from](auto load) {
        const auto update = corrected(load(from.momentum), load(from.gradient), from.factor);
        return load(from.residual) + update;
      });
    }
    if (from.gradient != nullptr) {
      return collect_sums(to, first, count, threshold,
                          [&from](auto load) { return load(from.residual) + load(from.gradient); });
    }
    return collect_sums(to, first, count, threshold,
                        [&from](auto load) { return load(from.residual); });
  }

  static std::size_t count_above(const std::uint32_t* bits, std::size_t count,
                                 std::int32_t threshold) {
    const Words limit = splat(threshold);
    std::size_t above = 0;
    std::size_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      above += Lanes::how_many(Lanes::above(load_vector<Words>(bits + i) & kMagnitude, limit));
    }
    if (const std::size_t rest = count - i; rest > 0) {
      const auto last = load_part<Words>(bits + i, 4 * rest) & kMagnitude;
      above += Lanes::how_many(Lanes::above(last, limit) & ((1u << rest) - 1));
    }
    return above;
  }

  static std::size_t keep_above(const Candidates& all, std::size_t count, std::int32_t threshold,
                                std::size_t ties) {
    const Words limit = splat(threshold);
    std::size_t kept = 0;
    // Never writes beyond what has been read: kept <= i.
    for (std::size_t i = 0; i < count; i += kLanes) {
      const std::size_t rest = count - i < kLanes ? count - i : kLanes;
      const unsigned valid = rest == 32 ? ~0u : (1u << rest) - 1;
      const Words bits = load_vector<Words>(all.bits + i);
      const Words indices = load_vector<Words>(all.indices + i);
      unsigned chosen = Lanes::above(bits & kMagnitude, limit) & valid;
      unsigned equal = ties > 0 ? Lanes::equal(bits & kMagnitude, limit) & valid : 0;
      for (; equal != 0 && ties > 0; --ties) {
        chosen |= equal & -equal;
        equal &= equal - 1;
      }
      Lanes::compress(all.bits + kept, bits, chosen);
      Lanes::compress(all.indices + kept, indices, chosen);
      kept += Lanes::how_many(chosen);
    }
    return kept;
  }

  static void add_momentum(float* residual, float* momentum, const float* gradient, float factor,
                           std::size_t count) {
    TACO_INDEPENDENT
    for (std::size_t i = 0; i < count; ++i) {
      const float update = corrected(load<float>(momentum, i), load<float>(gradient, i), factor);
      store<float>(momentum, i, update);
      store<float>(residual, i, load<float>(residual, i) + update);
    }
  }
};

}  // namespace
}  // namespace taco::kernels
