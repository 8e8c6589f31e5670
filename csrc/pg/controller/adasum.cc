#include "pg/controller/adasum.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace taco::pg::controller {
namespace {

using kernels::Dtype;

// A norm below this counts as none: its gradient has no direction.
constexpr double kNoNorm = 1e-8;
constexpr std::size_t kHalvesAtOnce = 512;

struct Products {
  double ab = 0, aa = 0, bb = 0;
};

template <class T>
void add_products(const T* a, const T* b, std::size_t count, Products& sum) {
  for (std::size_t i = 0; i < count; ++i) {
    const double x = a[i], y = b[i];
    sum.ab += x * y;
    sum.aa += x * x;
    sum.bb += y * y;
  }
}

template <class T>
void add_weighted(T* out, const T* a, const T* b, std::size_t count, double of_a, double of_b) {
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = static_cast<T>(of_a * static_cast<double>(a[i]) + of_b * static_cast<double>(b[i]));
  }
}

// Types of 16 bits go through blocks of floats.
struct HalfBlocks {
  Dtype dtype;
  void load(float* to, const std::uint16_t* from, std::size_t count) const {
    dtype == Dtype::kF16 ? kernels::f16_to_f32(to, from, count)
                         : kernels::bf16_to_f32(to, from, count);
  }
  void store(std::uint16_t* to, const float* from, std::size_t count) const {
    dtype == Dtype::kF16 ? kernels::f32_to_f16(to, from, count)
                         : kernels::f32_to_bf16(to, from, count);
  }
  // visit(a, b, place, count) for each block of the two.
  template <class Visit>
  void each(const std::uint16_t* a, const std::uint16_t* b, std::size_t count,
            const Visit& visit) const {
    float x[kHalvesAtOnce], y[kHalvesAtOnce];
    for (std::size_t place = 0; place < count; place += kHalvesAtOnce) {
      const std::size_t n = std::min(kHalvesAtOnce, count - place);
      load(x, a + place, n);
      load(y, b + place, n);
      visit(x, y, place, n);
    }
  }
};

// The weights of two gradients.
std::pair<double, double> weights_of(const Products& products) {
  const auto weight = [&](double norm) {
    return norm < kNoNorm ? 1.0 : 1.0 - products.ab / norm / 2;
  };
  return {weight(products.aa), weight(products.bb)};
}

template <class T>
void combine_floats(T* out, const T* a, const T* b, std::size_t count) {
  Products products;
  add_products(a, b, count, products);
  const auto [of_a, of_b] = weights_of(products);
  add_weighted(out, a, b, count, of_a, of_b);
}

void combine_halves(Dtype dtype, std::uint16_t* out, const std::uint16_t* a, const std::uint16_t* b,
                    std::size_t count) {
  const HalfBlocks blocks{dtype};
  Products products;
  blocks.each(a, b, count, [&](const float* x, const float* y, std::size_t, std::size_t n) {
    add_products(x, y, n, products);
  });
  const std::pair<double, double> weights = weights_of(products);
  blocks.each(a, b, count, [&](float* x, const float* y, std::size_t place, std::size_t n) {
    add_weighted(x, x, y, n, weights.first, weights.second);
    blocks.store(out + place, x, n);
  });
}

template <class T>
T* elements_at(std::byte* memory) {
  return reinterpret_cast<T*>(memory);
}

}  // namespace

Adasum::Adasum(int rank, int world, Dtype dtype, std::vector<std::size_t> counts, std::byte* mine,
               std::byte* theirs)
    : rank_(rank),
      paired_(static_cast<int>(std::bit_floor(static_cast<unsigned>(world)))),
      world_(world),
      dtype_(dtype),
      counts_(std::move(counts)),
      mine_(mine),
      theirs_(theirs) {
  for (const std::size_t count : counts_) bytes_ += count * kernels::size_of(dtype);
}

bool Adasum::supports(Dtype dtype) {
  return dtype == Dtype::kF32 || dtype == Dtype::kF64 || dtype == Dtype::kF16 ||
         dtype == Dtype::kBF16;
}

Adasum::Exchange Adasum::exchange(int to, int from, bool replaces) const {
  return {.to = to,
          .from = from,
          .outgoing = {mine_, bytes_},
          .incoming = {replaces ? mine_ : theirs_, bytes_}};
}

void Adasum::combine(bool mine_first) {
  std::byte* mine = mine_;
  std::byte* theirs = theirs_;
  for (const std::size_t count : counts_) {
    std::byte* const a = mine_first ? mine : theirs;
    std::byte* const b = mine_first ? theirs : mine;
    switch (dtype_) {
      case Dtype::kF32:
        combine_floats(elements_at<float>(mine), elements_at<float>(a), elements_at<float>(b),
                       count);
        break;
      case Dtype::kF64:
        combine_floats(elements_at<double>(mine), elements_at<double>(a), elements_at<double>(b),
                       count);
        break;
      default:
        combine_halves(dtype_, elements_at<std::uint16_t>(mine), elements_at<std::uint16_t>(a),
                       elements_at<std::uint16_t>(b), count);
        break;
    }
    mine += count * kernels::size_of(dtype_);
    theirs += count * kernels::size_of(dtype_);
  }
}

std::optional<Adasum::Exchange> Adasum::next() {
  if (const auto mine_first = std::exchange(combines_, std::nullopt)) combine(*mine_first);
  const int beyond = world_ - paired_;
  if (stage_ == Stage::kFold) {
    stage_ = rank_ < paired_ ? Stage::kPairs : Stage::kUnfold;
    if (rank_ >= paired_) return exchange(rank_ - paired_, -1);
    if (rank_ < beyond) {
      combines_ = true;
      return exchange(-1, rank_ + paired_);
    }
  }
  if (stage_ == Stage::kPairs) {
    if (distance_ < paired_) {
      const int partner = rank_ ^ distance_;
      distance_ *= 2;
      combines_ = rank_ < partner;
      return exchange(partner, partner);
    }
    stage_ = Stage::kUnfold;
  }
  if (std::exchange(stage_, Stage::kDone) == Stage::kDone) return std::nullopt;
  if (rank_ >= paired_) return exchange(-1, rank_ - paired_, true);
  if (rank_ < beyond) return exchange(rank_ + paired_, -1);
  return std::nullopt;
}

}  // namespace taco::pg::controller
