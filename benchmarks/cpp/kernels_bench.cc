// How near the arithmetic comes to the memory's own speed. Every row stands beside the physical
// limit of the same run: the STREAM triad (a = b + s c, the same sizes and threads) for arrays
// beyond the caches, and memcpy for single packets.
//
//   kernels_bench [--megabytes N] [--threads N] [--repeat N] [--only TEXT] [--json]
//
// --only leaves out the rows whose "what dtype isa" does not contain TEXT, as "SUM in place
// bfloat16". Bytes are counted as the program asks for them: two reads and one write of each
// element.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>

#include "base/clock.h"
#include "kernels/variant.h"
#include "rounds.h"

namespace {

using namespace taco;           // a program, not a library
using namespace taco::kernels;  // NOLINT(google-build-using-namespace)
using taco::bench::allocate;
using taco::bench::fastest;
using taco::bench::Memory;
using taco::bench::triad;

struct Options {
  std::size_t megabytes = 512;  // of each array
  int threads = 2;
  int repeat = 7;
  std::string only;
  bool json = false;

  bool wants(const std::string& what, const char* dtype, const char* isa) const {
    return (what + " " + dtype + " " + isa).find(only) != std::string::npos;
  }
};

struct Line {
  std::string what, dtype, variant;
  int threads;
  double gigabytes_per_s, limit;
};

class Report {
 public:
  explicit Report(bool json) : json_(json) {}
  void add(const Line& line) {
    if (json_) {
      std::printf(
          "%s{\"what\": \"%s\", \"dtype\": \"%s\", \"isa\": \"%s\", \"threads\": %d, "
          "\"gb_per_s\": %.2f, \"limit_gb_per_s\": %.2f, \"ratio\": %.3f}",
          first_ ? "[\n" : ",\n", line.what.c_str(), line.dtype.c_str(), line.variant.c_str(),
          line.threads, line.gigabytes_per_s, line.limit, line.gigabytes_per_s / line.limit);
    } else {
      if (first_)
        std::puts("what             dtype       isa       threads     GB/s    limit  ratio");
      std::printf("%-16s %-11s %-9s %7d %8.2f %8.2f  %5.2f\n", line.what.c_str(),
                  line.dtype.c_str(), line.variant.c_str(), line.threads, line.gigabytes_per_s,
                  line.limit, line.gigabytes_per_s / line.limit);
    }
    std::fflush(stdout);
    first_ = false;
  }
  ~Report() {
    if (json_) std::puts(first_ ? "[]" : "\n]");
  }

 private:
  bool json_;
  bool first_ = true;
};

bool in_memory_table(ReduceOp op, Dtype dtype) {
  if (op == ReduceOp::kSum) return true;
  return dtype == Dtype::kF32 || dtype == Dtype::kF16 || dtype == Dtype::kBF16 ||
         dtype == Dtype::kI8 || dtype == Dtype::kC64;
}

// Arrays far beyond the caches, reduced in place as a collective does and into a third array. The
// triad of the same shape runs just before and just after each row, so that a neighbour's load on
// the machine falls on both.
void bench_memory(const Options& options, int threads, std::size_t bytes, Report& report) {
  const std::size_t share = bytes / static_cast<std::size_t>(threads) / 4096 * 4096;
  const Memory a = allocate(bytes, 0);
  const Memory b = allocate(bytes, 0);
  const Memory c = allocate(bytes, 0);
  const auto rate = [&](const std::function<void(std::size_t)>& at) {
    const double seconds = fastest(
        threads, options.repeat, [&](int thread) { at(static_cast<std::size_t>(thread) * share); });
    return 3e-9 * static_cast<double>(share) * threads / seconds;
  };
  const auto row = [&](const std::string& what, Dtype dtype, const Variant& variant,
                       ReduceFn function, unsigned char* out) {
    if (!options.wants(what, name_of(dtype), variant.name)) return;
    const auto limit = [&] {
      return rate([&](std::size_t start) {
        triad(reinterpret_cast<float*>(out + start), reinterpret_cast<float*>(a.get() + start),
              reinterpret_cast<float*>(b.get() + start), share / 4);
      });
    };
    const double before = limit();
    const double reached = rate([&](std::size_t start) {
      function(out + start, a.get() + start, b.get() + start, share / size_of(dtype));
    });
    report.add({what, name_of(dtype), variant.name, threads, reached, std::max(before, limit())});
  };
  for (const Variant* variant : host_variants()) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMax}) {
      for (int d = 0; d < kDtypes; ++d) {
        const auto function = variant->reduce[static_cast<int>(op)][d];
        const auto dtype = static_cast<Dtype>(d);
        if (function == nullptr || !in_memory_table(op, dtype)) continue;
        row(std::string(name_of(op)) + " in place", dtype, *variant, function, a.get());
        if (op == ReduceOp::kSum) row("SUM apart", dtype, *variant, function, c.get());
      }
    }
  }
}

// Nanoseconds a call, over many calls on the same packet.
double nanoseconds_a_call(const std::function<void()>& call) {
  constexpr int kCalls = 20'000;
  double best = 1e30;
  for (int round = 0; round < 9; ++round) {
    const Time start = monotonic_now();
    for (int i = 0; i < kCalls; ++i) call();
    best = std::min(best, static_cast<double>(monotonic_now() - start) / kCalls);
  }
  return best;
}

// One packet's payload, in the first cache: the unit in which a receiver works. The limit is
// memcpy of the same payload.
void bench_packets(const Options& options, Report& report) {
  constexpr std::size_t kPayload = 1440;
  constexpr std::size_t kChecked = 1472;
  const Memory a = allocate(8192, 0);
  const Memory b = allocate(8192, 0);
  volatile std::uint32_t sink = 0;
  const double copied = nanoseconds_a_call([&] {
    std::memcpy(a.get(), b.get(), kPayload);
    asm volatile("" : : : "memory");
  });
  report.add({"memcpy 1440 B", "-", "libc", 1, 2 * kPayload / copied, 2 * kPayload / copied});
  for (const Variant* variant : host_variants()) {
    for (int d = 0; d < kDtypes; ++d) {
      const auto function = variant->reduce[0][d];
      const std::size_t count = kPayload / size_of(static_cast<Dtype>(d));
      if (!options.wants("SUM 1440 B", name_of(static_cast<Dtype>(d)), variant->name)) continue;
      const double took =
          nanoseconds_a_call([&] { function(a.get(), a.get(), b.get() + 7, count); });
      report.add({"SUM 1440 B", name_of(static_cast<Dtype>(d)), variant->name, 1,
                  3 * kPayload / took, 2 * kPayload / copied});
    }
  }
  for (const Checksum* checksum : host_checksums()) {
    if (!options.wants("crc32c", "-", checksum->name)) continue;
    const double took =
        nanoseconds_a_call([&] { sink = checksum->crc32c(sink, b.get(), kChecked); });
    report.add({"crc32c 1472 B", "-", checksum->name, 1, kChecked / took, 2 * kPayload / copied});
  }
}

Options parse(int count, char** arguments) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string name = arguments[i];
    const auto number = [&] { return i + 1 < count ? std::atoi(arguments[++i]) : 0; };
    if (name == "--json") {
      options.json = true;
    } else if (name == "--megabytes") {
      options.megabytes = static_cast<std::size_t>(number());
    } else if (name == "--only") {
      options.only = i + 1 < count ? arguments[++i] : "";
    } else if (name == "--threads") {
      options.threads = number();
    } else if (name == "--repeat") {
      options.repeat = number();
    } else {
      std::fprintf(
          stderr,
          "kernels_bench [--megabytes N] [--threads N] [--repeat N] [--only TEXT] [--json]\n");
      std::exit(name == "--help" ? 0 : 2);
    }
  }
  if (options.threads < 1 || options.repeat < 1 || options.megabytes < 1) {
    std::fprintf(stderr, "--megabytes, --threads and --repeat take a number of at least 1\n");
    std::exit(2);
  }
  return options;
}

}  // namespace

int main(int count, char** arguments) {
  const Options options = parse(count, arguments);
  const std::size_t bytes = options.megabytes << 20;
  Report report(options.json);
  bench_packets(options, report);
  for (int threads = 1; threads <= options.threads; ++threads) {
    bench_memory(options, threads, bytes, report);
  }
}
