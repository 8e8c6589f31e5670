#include "rounds.h"

#include <algorithm>
#include <barrier>
#include <cstdio>
#include <cstring>
#include <numeric>
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

namespace {

using Best = std::vector<double>;  // seconds of each piece

void go_over(const Piece& piece, int thread, Best& best) {
  for (std::size_t i = 0; i < best.size(); ++i) {
    const Time start = monotonic_now();
    piece(i, thread);
    best[i] = std::min(best[i], static_cast<double>(monotonic_now() - start) * 1e-9);
  }
}

double slowest(const std::vector<Best>& threads) {
  double all = 0;
  for (const Best& best : threads) {
    all = std::max(all, std::accumulate(best.begin(), best.end(), 0.0));
  }
  return all;
}

}  // namespace

Seconds by_turns(int threads, int repeat, std::size_t pieces, const Piece& row,
                 const Piece& limit) {
  const Best never(pieces, 1e30);
  std::vector<Best> of_row(static_cast<std::size_t>(threads), never), of_limit = of_row;
  fastest(threads, repeat, [&](int thread) {
    go_over(limit, thread, of_limit[static_cast<std::size_t>(thread)]);
    go_over(row, thread, of_row[static_cast<std::size_t>(thread)]);
  });
  return {slowest(of_row), slowest(of_limit)};
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
