// How near a step of an optimizer comes to the memory's own speed. Each row stands beside a pass
// over the same arrays without arithmetic (the better of one that writes through the caches and one
// that passes by them). Both go over the arrays by turns, a Mi parameters at a time, and of each Mi
// the fastest turn counts.
//
//   optimizer_bench [--millions N] [--threads N] [--repeat N] [--only TEXT] [--json]
//
// --only leaves out the rows whose "optimizer form isa" does not contain TEXT, as
// "AdamW float32 avx512". Bytes are those that a step has to read and to write.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>

#include "kernels/half.h"
#include "kernels/optimizers.h"
#include "kernels/variant.h"
#include "rounds.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace {

using namespace taco::kernels;  // NOLINT(google-build-using-namespace)
using taco::bench::allocate;
using taco::bench::by_turns;
using taco::bench::Memory;
using taco::bench::Seconds;

constexpr std::size_t kMi = std::size_t{1} << 20;

struct Options {
  std::size_t millions = 64;
  int threads = 1;
  int repeat = 7;
  std::string only;
  bool json = false;
};

using Word = std::uint32_t;
using Half = std::uint16_t;

// The arrays that a step touches, from one parameter on; null: not at all.
struct Touched {
  Word* updated[3];
  const Word* gradient;
  const Half* half_gradient;
  Half* half_parameter;
};

#if defined(__x86_64__)
#define TACO_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define TACO_CLONES
#endif
#if defined(__clang__)
#define TACO_INDEPENDENT_LOOP _Pragma("clang loop vectorize(assume_safety)")
#else
#define TACO_INDEPENDENT_LOOP _Pragma("GCC ivdep")
#endif

// `none` is 0, which no compiler knows: the arrays stay what they are.
TACO_CLONES void pass_of_three(const Touched& at, std::size_t count, Word none) {
  Word *const a = at.updated[0], *const b = at.updated[1], *const c = at.updated[2];
  const Word* const g = at.gradient;
  TACO_INDEPENDENT_LOOP
  for (std::size_t i = 0; i < count; ++i) {
    const Word mixed = g[i] & none;
    a[i] ^= mixed;
    b[i] ^= mixed;
    c[i] ^= mixed;
  }
}
TACO_CLONES void pass_of_two(const Touched& at, std::size_t count, Word none) {
  Word *const a = at.updated[0], *const b = at.updated[1];
  const Word* const g = at.gradient;
  TACO_INDEPENDENT_LOOP
  for (std::size_t i = 0; i < count; ++i) {
    const Word mixed = g[i] & none;
    a[i] ^= mixed;
    b[i] ^= mixed;
  }
}
TACO_CLONES void pass_of_halves(const Touched& at, std::size_t count, Word none) {
  Word *const a = at.updated[0], *const b = at.updated[1], *const c = at.updated[2];
  const Half* const g = at.half_gradient;
  Half* const p = at.half_parameter;
  TACO_INDEPENDENT_LOOP
  for (std::size_t i = 0; i < count; ++i) {
    const Word mixed = g[i] & none;
    a[i] ^= mixed;
    b[i] ^= mixed;
    c[i] ^= mixed;
    p[i] ^= static_cast<Half>(mixed);
  }
}
void plain_pass(const Touched& at, std::size_t count, Word none) {
  if (at.half_gradient != nullptr) return pass_of_halves(at, count, none);
  return at.updated[2] != nullptr ? pass_of_three(at, count, none) : pass_of_two(at, count, none);
}

#if defined(__SSE2__)
// One 64-byte line of each array after the other.
void pass_past_the_caches(const Touched& at, std::size_t count, Word none) {
  const __m128i zero = _mm_set1_epi32(static_cast<int>(none));
  const auto read = [](const void* from, std::size_t i) {
    return _mm_load_si128(static_cast<const __m128i*>(from) + i);
  };
  for (std::size_t line = 0; line < count / 16; ++line) {
    __m128i mixed = zero;
    for (std::size_t i = 0; i < 4 && at.gradient != nullptr; ++i) {
      mixed = _mm_or_si128(mixed, _mm_and_si128(read(at.gradient, 4 * line + i), zero));
    }
    for (std::size_t i = 0; i < 2 && at.half_gradient != nullptr; ++i) {
      mixed = _mm_or_si128(mixed, _mm_and_si128(read(at.half_gradient, 2 * line + i), zero));
    }
    for (Word* const array : at.updated) {
      if (array == nullptr) continue;
      __m128i* const to = reinterpret_cast<__m128i*>(array) + 4 * line;
      const __m128i a = read(to, 0), b = read(to, 1), c = read(to, 2), d = read(to, 3);
      _mm_stream_si128(to, _mm_xor_si128(a, mixed));
      _mm_stream_si128(to + 1, _mm_xor_si128(b, mixed));
      _mm_stream_si128(to + 2, _mm_xor_si128(c, mixed));
      _mm_stream_si128(to + 3, _mm_xor_si128(d, mixed));
    }
    for (std::size_t i = 0; i < 2 && at.half_parameter != nullptr; ++i) {
      __m128i* const to = reinterpret_cast<__m128i*>(at.half_parameter) + 2 * line + i;
      _mm_stream_si128(to, _mm_xor_si128(read(to, 0), mixed));
    }
  }
  _mm_sfence();
}
#else
void pass_past_the_caches(const Touched& at, std::size_t count, Word none) {
  plain_pass(at, count, none);
}
#endif

class Arrays {
 public:
  explicit Arrays(std::size_t count) : count_(count) {
    for (Memory& memory : floats_) memory = allocate(4 * count, 0);
    for (Memory& memory : halves_) memory = allocate(2 * count, 0);
    Word state = 1;
    for (std::size_t i = 0; i < count; ++i) {
      state = state * 1664525 + 1013904223;
      parameter()[i] = static_cast<float>(state >> 8) * 0x1p-24f - 0.5f;
      bf16()[i] = float_to_bf16(parameter()[i]);
    }
  }
  // Moments that are not 0, or such as underflow: every other gradient gives a denormal moment, the
  // others are denormals.
  void fill(bool fading) {
    const float even = fading ? 1e-37f : 1e-3f, odd = fading ? 1e-40f : -2e-3f;
    for (std::size_t i = 0; i < count_; ++i) {
      first()[i] = fading ? 0 : odd;
      second()[i] = fading ? 0 : 1e-6f;
      gradient()[i] = i % 2 == 0 ? even : odd;
      Word bits;
      std::memcpy(&bits, &gradient()[i], sizeof bits);
      bf16_gradient()[i] = static_cast<Half>(bits >> 16);
    }
  }
  float* parameter() { return at(0); }
  float* gradient() { return at(1); }
  float* first() { return at(2); }
  float* second() { return at(3); }
  Half* bf16() { return reinterpret_cast<Half*>(halves_[0].get()); }
  Half* bf16_gradient() { return reinterpret_cast<Half*>(halves_[1].get()); }

 private:
  float* at(int i) { return reinterpret_cast<float*>(floats_[i].get()); }
  std::size_t count_;
  Memory floats_[4], halves_[2];
};

struct Row {
  const char* optimizer;
  const char* form;  // of parameters and gradients
  int states;
  bool halves;
  bool fading;  // state and gradients that underflow
  std::function<void(const Optimizers&, const ParameterRange&, float*, float*)> step;
};

std::vector<Row> rows() {
  const auto adam_by = [](const AdamOptions& options) {
    const AdamStep constants = adam_step(options, 100);
    return [constants](const Optimizers& by, const ParameterRange& range, float* first,
                       float* second) { by.adam(constants, range, first, second); };
  };
  const auto adamw = adam_by({.lr = 1e-9, .weight_decay = 0.1});
  const SgdStep sgd_constants = sgd_step({.lr = 1e-9, .momentum = 0.9, .weight_decay = 0.01}, 2);
  const LionStep lion_constants = lion_step({.lr = 1e-9, .weight_decay = 0.1});
  return {
      {"AdamW", "float32", 2, false, false, adamw},
      {"AdamW", "bfloat16", 2, true, false, adamw},
      {"AdamW, fading", "float32", 2, false, true, adamw},
      {"AdamW, fading", "bfloat16", 2, true, true, adamw},
      {"Adam", "float32", 2, false, false,
       adam_by({.lr = 1e-9, .weight_decay = 0.1, .decoupled = false})},
      {"SGD", "float32", 1, false, false,
       [sgd_constants](const Optimizers& by, const ParameterRange& range, float* first, float*) {
         by.sgd(sgd_constants, range, first);
       }},
      {"Lion", "float32", 1, false, false,
       [lion_constants](const Optimizers& by, const ParameterRange& range, float* first, float*) {
         by.lion(lion_constants, range, first);
       }},
  };
}

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options), arrays_(options.millions * kMi) {}
  ~Bench() {
    if (options_.json) std::puts(first_ ? "[]" : "\n]");
  }

  void run(const Row& row, const Optimizers& by) {
    const std::string name = std::string(row.optimizer) + ' ' + row.form + ' ' + by.name;
    if (name.find(options_.only) == std::string::npos) return;
    arrays_.fill(row.fading);
    const std::size_t pieces = options_.millions / static_cast<std::size_t>(options_.threads);
    const auto place = [pieces](std::size_t piece, int thread) {
      return (static_cast<std::size_t>(thread) * pieces + piece) * kMi;
    };
    const auto step = [&](std::size_t piece, int thread) {
      const std::size_t at = place(piece, thread);
      ParameterRange range{.count = kMi, .parameter = arrays_.parameter() + at};
      if (row.halves) {
        range.bf16_parameter = arrays_.bf16() + at;
        range.bf16_gradient = arrays_.bf16_gradient() + at;
      } else {
        range.gradient = arrays_.gradient() + at;
      }
      row.step(by, range, arrays_.first() + at, arrays_.second() + at);
    };
    double limit = 1e30, seconds = 1e30;
    for (const auto pass : {plain_pass, pass_past_the_caches}) {
      const Seconds both = by_turns(options_.threads, options_.repeat, pieces, step,
                                    [&](std::size_t piece, int thread) {
                                      pass(touched(row, place(piece, thread)), kMi, none_);
                                    });
      seconds = std::min(seconds, both.row);
      limit = std::min(limit, both.limit);
    }
    print(row, by.name, seconds, limit);
  }

 private:
  Touched touched(const Row& row, std::size_t at) {
    const auto words = [at](float* array) { return reinterpret_cast<Word*>(array + at); };
    Touched all{{words(arrays_.parameter()), words(arrays_.first())}, nullptr, nullptr, nullptr};
    if (row.states > 1) all.updated[2] = words(arrays_.second());
    if (row.halves) {
      all.half_gradient = arrays_.bf16_gradient() + at;
      all.half_parameter = arrays_.bf16() + at;
    } else {
      all.gradient = words(arrays_.gradient());
    }
    return all;
  }

  void print(const Row& row, const char* isa, double seconds, double limit) {
    // Parameter and states are read and written, and so are halves, whose gradient has 2 bytes.
    const double bytes = 8.0 * (1 + row.states) + (row.halves ? 6 : 4);
    const double gigabytes =
        bytes * 1e-9 *
        static_cast<double>(options_.millions / static_cast<std::size_t>(options_.threads) *
                            static_cast<std::size_t>(options_.threads) * kMi);
    if (options_.json) {
      std::printf(
          "%s{\"optimizer\": \"%s\", \"form\": \"%s\", \"isa\": \"%s\", "
          "\"mi_parameters\": %zu, \"threads\": %d, \"ms\": %.3f, \"limit_ms\": %.3f, "
          "\"gb_s\": %.3f, \"ratio\": %.3f}",
          first_ ? "[\n" : ",\n", row.optimizer, row.form, isa, options_.millions, options_.threads,
          1e3 * seconds, 1e3 * limit, gigabytes / seconds, limit / seconds);
    } else {
      if (first_) {
        std::puts("optimizer      form      isa       threads      ms  limit ms   GB/s  ratio");
      }
      std::printf("%-14s %-9s %-9s %7d %7.2f  %8.2f %6.2f   %.3f\n", row.optimizer, row.form, isa,
                  options_.threads, 1e3 * seconds, 1e3 * limit, gigabytes / seconds,
                  limit / seconds);
    }
    std::fflush(stdout);
    first_ = false;
  }

  const Options& options_;
  Arrays arrays_;
  volatile Word none_ = 0;
  bool first_ = true;
};

[[noreturn]] void usage(int status) {
  std::fprintf(
      stderr, "optimizer_bench [--millions N] [--threads N] [--repeat N] [--only TEXT] [--json]\n");
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
      options.millions = std::strtoull(text().c_str(), nullptr, 10);
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
  const bool valid = options.threads >= 1 && options.repeat >= 1 &&
                     options.millions >= static_cast<std::size_t>(options.threads);
  if (!valid) usage(2);
  return options;
}

}  // namespace

int main(int count, char** arguments) {
  const Options options = parse(count, arguments);
  Bench bench(options);
  for (const Row& row : rows()) {
    for (const Optimizers* by : host_optimizers()) bench.run(row, *by);
  }
}
