// How fast gradients are compressed: selection of the largest with its residual, and conversion to
// 16 bits and back. Each row stands beside its limit: both go over the arrays by turns, a Mi
// elements at a time, and of each Mi the fastest turn counts, so that others' work on the machine
// falls on neither.
//
//   compress_bench [--millions N,N] [--ratio R] [--threads N] [--repeat N] [--only TEXT] [--json]
//
// Selection is held to r += g, which reads and writes the same bytes and chooses nothing;
// std::nth_element shows what an exact selection costs without care. Conversions are held to the
// triad, in bytes as the program asks for them. Beside them, in Python, what torch needs:
//   python -m timeit -s "import torch; torch.set_num_threads(1); x = torch.randn(4 << 20)"
//     "torch.topk(x.abs(), 41943, sorted=False)"
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/scaled_half.h"
#include "kernels/select.h"
#include "kernels/variant.h"
#include "rounds.h"

namespace {

using namespace taco::kernels;  // NOLINT(google-build-using-namespace)
using taco::bench::allocate;
using taco::bench::Memory;
using taco::bench::triad;

constexpr std::size_t kMi = std::size_t{1} << 20;

struct Options {
  std::vector<std::size_t> millions = {4, 16, 64};  // Mi elements
  double ratio = 0.01;
  int threads = 1;
  int repeat = 9;
  std::string only;
  bool json = false;
};

class Report {
 public:
  explicit Report(const Options& options) : options_(options) {}
  bool wants(const std::string& what, const char* isa) const {
    return (what + " " + isa).find(options_.only) != std::string::npos;
  }
  // `rate` and `limit` in `unit`.
  void add(const std::string& what, const char* isa, std::size_t millions, int threads, double rate,
           double limit, const char* unit) {
    if (options_.json) {
      std::printf(
          "%s{\"what\": \"%s\", \"isa\": \"%s\", \"mi_elements\": %zu, \"threads\": %d, "
          "\"rate\": %.3f, \"limit\": %.3f, \"unit\": \"%s\", \"ratio\": %.3f}",
          first_ ? "[\n" : ",\n", what.c_str(), isa, millions, threads, rate, limit, unit,
          rate / limit);
    } else {
      if (first_) {
        std::puts(
            "what                          isa       Mi el.  threads     rate    limit  ratio");
      }
      std::printf("%-29s %-9s %6zu %8d %8.3f %8.3f  %5.2f  %s\n", what.c_str(), isa, millions,
                  threads, rate, limit, rate / limit, unit);
    }
    std::fflush(stdout);
    first_ = false;
  }
  ~Report() {
    if (options_.json) std::puts(first_ ? "[]" : "\n]");
  }

 private:
  const Options& options_;
  bool first_ = true;
};

// Arrays of one size, a share of them for each thread, and the rates of passes over them.
class Arrays {
 public:
  Arrays(std::size_t elements, const Options& options)
      : options_(options),
        elements_(elements),
        share_(elements / static_cast<std::size_t>(options.threads) / kMi * kMi),
        residual_(allocate(4 * elements, 0)),
        gradient_(allocate(4 * elements, 0)),
        third_(allocate(4 * elements, 0)) {
    // A sum of uniform numbers is close enough to normal, and quick to draw.
    std::minstd_rand random(1);
    for (std::size_t i = 0; i < elements; ++i) {
      double sum = 0;
      for (int draw = 0; draw < 4; ++draw) sum += static_cast<double>(random());
      gradient()[i] = static_cast<float>(sum / random.max() - 2);
    }
  }
  float* residual() { return reinterpret_cast<float*>(residual_.get()); }
  float* gradient() { return reinterpret_cast<float*>(gradient_.get()); }
  float* third() { return reinterpret_cast<float*>(third_.get()); }
  std::uint16_t* halves() { return reinterpret_cast<std::uint16_t*>(third_.get()); }
  std::size_t millions() const { return elements_ / kMi; }
  std::size_t share() const { return share_; }

  // Work on kMi elements from the given one on, by the given thread.
  using Pass = std::function<void(std::size_t, int)>;
  struct Rates {
    double row, limit;
  };
  // In elements a second.
  Rates compare(const Pass& row, const Pass& limit) const {
    const auto from = [this](std::size_t piece, int thread) {
      return static_cast<std::size_t>(thread) * share_ + piece * kMi;
    };
    const taco::bench::Seconds seconds = taco::bench::by_turns(
        options_.threads, options_.repeat, share_ / kMi,
        [&](std::size_t piece, int thread) { row(from(piece, thread), thread); },
        [&](std::size_t piece, int thread) { limit(from(piece, thread), thread); });
    const double elements = static_cast<double>(share_) * options_.threads;
    return {elements / seconds.row, elements / seconds.limit};
  }

 private:
  const Options& options_;
  const std::size_t elements_, share_;
  Memory residual_, gradient_, third_;
};

// An exact selection with the standard library's means: add, order the magnitudes, take.
void select_by_nth_element(float* residual, const float* gradient, std::size_t n, std::size_t k,
                           float* values, std::uint32_t* indices, std::vector<float>& magnitudes) {
  magnitudes.resize(n);
  for (std::size_t i = 0; i < n; ++i) {
    residual[i] += gradient[i];
    magnitudes[i] = std::fabs(residual[i]);
  }
  const auto nth = magnitudes.begin() + static_cast<std::ptrdiff_t>(k - 1);
  std::nth_element(magnitudes.begin(), nth, magnitudes.end(), std::greater<>());
  const float threshold = *nth;
  std::size_t ties = k - static_cast<std::size_t>(std::count_if(
                             magnitudes.begin(), nth, [&](float x) { return x > threshold; }));
  for (std::size_t i = 0, taken = 0; i < n && taken < k; ++i) {
    const float magnitude = std::fabs(residual[i]);
    if (magnitude < threshold || (magnitude == threshold && ties == 0)) continue;
    if (magnitude == threshold) --ties;
    values[taken] = residual[i];
    indices[taken++] = static_cast<std::uint32_t>(i);
    residual[i] = 0;
  }
}

std::size_t taken_of(std::size_t block, const Options& options) {
  const double taken = std::round(options.ratio * static_cast<double>(block));
  return static_cast<std::size_t>(std::max(1.0, taken));
}

void bench_selection(Arrays& arrays, const Options& options, Report& report) {
  const ReduceFn add =
      chosen_variant().reduce[static_cast<int>(ReduceOp::kSum)][static_cast<int>(Dtype::kF32)];
  const Arrays::Pass limit = [&](std::size_t at, int) {
    add(arrays.residual() + at, arrays.residual() + at, arrays.gradient() + at, kMi);
  };
  using Select = std::function<void(float*, const float*, std::size_t, std::size_t, int)>;
  const auto row = [&](const std::string& what, const char* isa, std::size_t block,
                       const Select& select) {
    if (!report.wants(what, isa)) return;
    std::memset(arrays.residual(), 0, 4 * arrays.millions() * kMi);
    const Arrays::Pass pass = [&](std::size_t start, int thread) {
      for (std::size_t at = start; at < start + kMi; at += block) {
        select(arrays.residual() + at, arrays.gradient() + at, block, taken_of(block, options),
               thread);
      }
    };
    const Arrays::Rates rates = arrays.compare(pass, limit);
    report.add(what, isa, arrays.millions(), options.threads, rates.row * 1e-9, rates.limit * 1e-9,
               "G elements/s");
  };
  const auto threads = static_cast<std::size_t>(options.threads);
  std::vector<SelectScratch> scratch(threads);
  std::vector<std::vector<float>> values(threads, std::vector<float>(kMi)), magnitudes(threads);
  std::vector<std::vector<std::uint32_t>> indices(threads, std::vector<std::uint32_t>(kMi));
  for (const Variant* variant : host_variants()) {
    for (const std::size_t block : {kQuickSelectable, 2 * kQuickSelectable, kMaxSelectable}) {
      row("select, blocks of " + std::to_string(block >> 10) + " Ki", variant->name, block,
          [&](float* r, const float* g, std::size_t n, std::size_t k, int thread) {
            select_with(*variant, r, nullptr, g, 0, n, k, values[thread].data(),
                        indices[thread].data(), scratch[thread]);
          });
    }
  }
  row("nth_element, blocks of 1024 Ki", "-", kMi,
      [&](float* r, const float* g, std::size_t n, std::size_t k, int thread) {
        select_by_nth_element(r, g, n, k, values[thread].data(), indices[thread].data(),
                              magnitudes[thread]);
      });
}

// Inputs that make careless selections slow, in blocks of the quickest length. Nothing is added but
// zeros, so that they stay what they are; what has been taken is 0 in the next round.
void bench_hard_inputs(Arrays& arrays, const Options& options, Report& report) {
  struct Shape {
    const char* name;
    float (*value)(std::size_t);
  };
  constexpr Shape kShapes[] = {
      {"select: ascending", [](std::size_t i) { return static_cast<float>(i % kQuickSelectable); }},
      {"select: all equal", [](std::size_t) { return 1.5f; }},
      {"select: two values", [](std::size_t i) { return i % 3 == 0 ? 1.0f : -2.0f; }},
      {"select: a few huge", [](std::size_t i) { return i % 9973 == 0 ? 1e30f : 1e-30f; }},
  };
  const Variant& variant = chosen_variant();
  const ReduceFn add =
      variant.reduce[static_cast<int>(ReduceOp::kSum)][static_cast<int>(Dtype::kF32)];
  std::vector<float> values(kQuickSelectable);
  std::vector<std::uint32_t> indices(kQuickSelectable);
  SelectScratch scratch;
  float* const zeros = arrays.third();
  std::memset(zeros, 0, 4 * arrays.share());
  for (const Shape& shape : kShapes) {
    if (options.threads > 1 || !report.wants(shape.name, variant.name)) continue;
    for (std::size_t i = 0; i < arrays.share(); ++i) arrays.residual()[i] = shape.value(i);
    const Arrays::Pass pass = [&](std::size_t start, int) {
      for (std::size_t at = start; at < start + kMi; at += kQuickSelectable) {
        select_with(variant, arrays.residual() + at, nullptr, zeros + at, 0, kQuickSelectable,
                    taken_of(kQuickSelectable, options), values.data(), indices.data(), scratch);
      }
    };
    const Arrays::Rates rates = arrays.compare(pass, [&](std::size_t at, int) {
      add(arrays.residual() + at, arrays.residual() + at, zeros + at, kMi);
    });
    report.add(shape.name, variant.name, arrays.millions(), 1, rates.row * 1e-9, rates.limit * 1e-9,
               "G elements/s");
  }
}

void bench_halves(Arrays& arrays, const Options& options, Report& report) {
  constexpr std::size_t kChunk = 16384;
  float* const a = arrays.residual();
  float* const b = arrays.gradient();
  // In GB/s as the program asks for bytes; the triad writes to an operand or to a third array, as
  // the row does.
  const auto row = [&](const std::string& what, const char* isa, double bytes, bool in_place,
                       const Arrays::Pass& pass) {
    if (!report.wants(what, isa)) return;
    float* const out = in_place ? a : arrays.third();
    const Arrays::Rates rates =
        arrays.compare(pass, [&](std::size_t at, int) { triad(out + at, a + at, b + at, kMi); });
    report.add(what, isa, arrays.millions(), options.threads, bytes * 1e-9 * rates.row,
               12e-9 * rates.limit, "GB/s");
  };
  std::uint16_t* const h = arrays.halves();
  for (const Variant* variant : host_variants()) {
    const Variant& v = *variant;
    row("encode f16 of known scale", v.name, 6, false,
        [&](std::size_t at, int) { v.f32_to_f16_scaled(h + at, b + at, kMi, 0x1p10f, 0); });
    row("encode f16, scale per 16 Ki", v.name, 6, false, [&](std::size_t start, int) {
      float largest = v.largest_finite(b + start, kChunk);
      for (std::size_t at = start; at < start + kMi; at += kChunk) {
        const std::size_t next = at + kChunk < start + kMi ? kChunk : 0;
        const float factor = std::ldexp(1.0f, f16_exponent(largest));
        largest = v.f32_to_f16_scaled(h + at, b + at, kChunk, factor, next);
      }
    });
    row("encode bf16", v.name, 6, false,
        [&](std::size_t at, int) { v.f32_to_bf16(h + at, b + at, kMi); });
    row("decode f16", v.name, 6, false,
        [&](std::size_t at, int) { v.f16_to_f32_scaled(a + at, h + at, kMi, 0x1p-10f); });
    row("decode bf16", v.name, 6, false,
        [&](std::size_t at, int) { v.bf16_to_f32(a + at, h + at, kMi); });
    std::memset(a, 0, 4 * arrays.millions() * kMi);
    row("decode and add f16", v.name, 10, true, [&](std::size_t at, int) {
      v.accumulate_f16_scaled(a + at, a + at, h + at, kMi, 0x1p-10f);
    });
    row("decode and add bf16", v.name, 10, true,
        [&](std::size_t at, int) { v.accumulate_bf16(a + at, h + at, kMi); });
  }
}

[[noreturn]] void usage(int status) {
  std::fprintf(stderr,
               "compress_bench [--millions N,N] [--ratio R] [--threads N] [--repeat N] "
               "[--only TEXT] [--json]\n");
  std::exit(status);
}

Options parse(int count, char** arguments) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string name = arguments[i];
    const auto text = [&] { return std::string(i + 1 < count ? arguments[++i] : ""); };
    if (name == "--json") {
      options.json = true;
    } else if (name == "--millions") {
      options.millions.clear();
      const std::string list = text();
      for (const char* at = list.c_str(); *at != 0; at += *at == ',' ? 1 : 0) {
        char* end = nullptr;
        options.millions.push_back(std::strtoull(at, &end, 10));
        if (end == at || options.millions.back() == 0) usage(2);
        at = end;
      }
    } else if (name == "--ratio") {
      options.ratio = std::atof(text().c_str());
    } else if (name == "--threads") {
      options.threads = std::atoi(text().c_str());
    } else if (name == "--repeat") {
      options.repeat = std::atoi(text().c_str());
    } else if (name == "--only") {
      options.only = text();
    } else {
      usage(name == "--help" ? 0 : 2);
    }
  }
  const bool valid = options.threads >= 1 && options.repeat >= 1 && options.ratio > 0 &&
                     options.ratio <= 1 && !options.millions.empty();
  if (!valid) usage(2);
  return options;
}

}  // namespace

int main(int count, char** arguments) {
  const Options options = parse(count, arguments);
  Report report(options);
  for (const std::size_t millions : options.millions) {
    if (millions < static_cast<std::size_t>(options.threads)) usage(2);
    Arrays arrays(millions * kMi, options);
    bench_selection(arrays, options, report);
    bench_hard_inputs(arrays, options, report);
    bench_halves(arrays, options, report);
  }
}
