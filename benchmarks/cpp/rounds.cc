#include "rounds.h"

#include <algorithm>
#include <barrier>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "base/clock.h"

namespace taco::bench {

double fastest(int threads, int repeat, const std::function<void(int)>& part) {
  Time started = 0;
  double best = 1e30;
  bool starting = true;
  std::barrier line_up(threads, [&]() noexcept {
    const Time now = monotonic_now();
    if (!starting) best = std::min(best, static_cast<double>(now - started) * 1e-9);
    starting = !starting;
    started = now;
  });
  const auto work = [&](int index) {
    for (int round = 0; round < repeat; ++round) {
      line_up.arrive_and_wait();
      part(index);
      line_up.arrive_and_wait();
    }
  };
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(work, i);
  work(0);
  for (std::thread& other : others) other.join();
  return best;
}

Memory allocate(std::size_t bytes, unsigned char value) {
  Memory memory(static_cast<unsigned char*>(std::aligned_alloc(4096, bytes)));
  if (!memory) {
    std::fprintf(stderr, "cannot allocate %zu bytes\n", bytes);
    std::exit(1);
  }
  std::memset(memory.get(), value, bytes);
  return memory;
}

#if defined(__x86_64__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
void triad(float* a, const float* b, const float* c, std::size_t count) {
#if defined(__clang__)
#pragma clang loop vectorize(assume_safety)
#else
#pragma GCC ivdep
#endif
  for (std::size_t i = 0; i < count; ++i) a[i] = b[i] + 3.0f * c[i];
}

}  // namespace taco::bench
