// How long a cache line takes from one core to another: two threads on two cores hand one back and
// forth. The host of a virtual machine may move its cores apart, or together, within seconds; a
// byte between two processes then costs 1.7 times as much, or as little: figures of two runs are
// comparable only where this one was the same.
//
//   cores_bench [CORE CORE]
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "base/clock.h"

namespace {

using namespace taco;  // a program, not a library

constexpr int kTurns = 400, kBatches = 80;

alignas(256) std::atomic<int> line{0};

void stay_on(int core) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  if (sched_setaffinity(0, sizeof one, &one) == 0) return;
  std::fprintf(stderr, "this process may not run on core %d\n", core);
  std::exit(1);
}

// Waits until the other side has taken its turn, then takes this one's.
void answer(int turn) {
  while (line.load(std::memory_order_acquire) != turn) {
  }
  line.store(turn + 1, std::memory_order_release);
}

}  // namespace

int main(int argc, char** argv) {
  const int own = argc == 3 ? std::atoi(argv[1]) : 0, other = argc == 3 ? std::atoi(argv[2]) : 1;
  std::thread peer([other] {
    stay_on(other);
    for (int turn = 0; turn < kTurns * kBatches; ++turn) answer(2 * turn + 1);
  });
  stay_on(own);
  std::vector<double> one_way;
  for (int batch = 0; batch < kBatches; ++batch) {
    const Time start = monotonic_now();
    for (int turn = batch * kTurns; turn < (batch + 1) * kTurns; ++turn) answer(2 * turn);
    one_way.push_back(static_cast<double>(monotonic_now() - start) / (2 * kTurns));
  }
  peer.join();
  std::ranges::sort(one_way);
  std::printf("a cache line from core %d to core %d: %.0f ns (a tenth), %.0f ns (half)\n", own,
              other, one_way[kBatches / 10], one_way[kBatches / 2]);
  return 0;
}
