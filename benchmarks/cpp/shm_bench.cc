// Shared memory by itself: message rate, latency, bandwidth and a bare all-reduce between processes
// of one host, for pulls and for the arena, beside memcpy of the same bytes in the same run.
//
//   shm_bench [--quick] [--processes 4]
//
// Each process polls, and sleeps when nothing comes, as the engine does; processes that have to
// share cores yield between polls.
#include <sched.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "base/clock.h"
#include "harp/matching/matcher.h"
#include "harp/shm/endpoint.h"
#include "kernels/kernels.h"

using namespace taco;
using namespace taco::harp;

namespace {

constexpr int kMaxRanks = 8;
constexpr std::size_t kChunk = std::size_t{1} << 20;

struct Board {
  ShmAddress addresses[kMaxRanks];
  std::atomic<int> posted{0};
  std::atomic<int> arrived{0};
  std::atomic<std::int64_t> cpu_ns{0};  // of all processes, in the measured parts
  double figure[16] = {};
};

void fail(const std::string& what) {
  std::fprintf(stderr, "shm_bench: %s\n", what.c_str());
  _exit(1);
}

// A rank with links to all others and the loop that turns them.
class Rank {
 public:
  Rank(int rank, int ranks, bool pull, Board& board) : rank(rank), ranks(ranks), board_(board) {
    ShmOptions options;
    options.pull = pull ? ShmPull::kAlways : ShmPull::kNever;
    if (getrandom(options.secret.data(), 16, 0) != 16 || getrandom(&options.incarnation, 8, 0) != 8)
      fail("no randomness");
    auto made = ShmEndpoint::create(options);
    if (!made.ok()) fail(made.status().message());
    endpoint = std::move(made).value();
    board.addresses[rank] = endpoint->address();
    board.posted++;
    while (board.posted < ranks) sched_yield();
    for (int other = 0; other < ranks; other++) {
      matchers.push_back(std::make_unique<Matcher>(static_cast<PeerId>(other), host_));
      ShmLink* link = endpoint->open(board.addresses[other]);
      matchers.back()->attach(*link);
      link->attach(*matchers.back());
      links_.push_back(link);
    }
    epoll_ = epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{};
    event.events = EPOLLIN | EPOLLET;
    epoll_ctl(epoll_, EPOLL_CTL_ADD, endpoint->doorbell_fd(), &event);
    event.events = EPOLLIN;
    epoll_ctl(epoll_, EPOLL_CTL_ADD, endpoint->events_fd(), &event);
  }

  void run_until(const std::function<bool()>& done) {
    int idle = 0;
    while (!done()) {
      if (endpoint->poll(monotonic_now()) | (host_.completions.run(nullptr) != 0)) {
        idle = 0;
      } else if (++idle < 20) {
        sched_yield();
      } else if (endpoint->prepare_sleep()) {
        epoll_event event;
        epoll_wait(epoll_, &event, 1, 100);
        endpoint->cancel_sleep();
        idle = 0;
      }
    }
  }

  void barrier() {  // outside the measured part
    const int target = (board_.arrived.fetch_add(1) / ranks + 1) * ranks;
    run_until([&] { return board_.arrived.load() >= target; });
  }

  void leave() {
    for (ShmLink* link : links_) link->leave();
    run_until([&] {
      return std::none_of(links_.begin(), links_.end(), [](ShmLink* l) { return l->busy(); });
    });
  }

  const int rank, ranks;
  std::unique_ptr<ShmEndpoint> endpoint;
  std::vector<std::unique_ptr<Matcher>> matchers;

 private:
  Board& board_;
  MatcherHost host_;
  std::vector<ShmLink*> links_;
  int epoll_ = -1;
};

// Requests by the dozen, with one count of those still open.
class Batch {
 public:
  void send(Rank& self, int to, MessageKey key, const void* data, std::size_t bytes,
            Staging* staging = nullptr) {
    auto& request = *sends_.emplace_back(std::make_unique<SendRequest>());
    request.key = key;
    request.data = data;
    request.bytes = bytes;
    request.staging = staging;
    request.context = this;
    request.on_done = [](SendRequest& r, const Status& status) { done(r.context, status); };
    open_++;
    self.matchers[to]->send(request);
  }
  void receive(Rank& self, int from, MessageKey key, Sink sink, std::size_t bytes,
               std::function<void()> then = {}) {
    auto& request = *receives_.emplace_back(std::make_unique<Receive>());
    request.key = key;
    request.sink = sink;
    request.max_bytes = bytes;
    request.context = this;
    request.then = std::move(then);
    request.on_done = [](RecvRequest& r, const Status& status) {
      done(r.context, status);
      if (auto& next = static_cast<Receive&>(r).then) next();
    };
    open_++;
    self.matchers[from]->recv(request);
  }
  void wait(Rank& self) {
    self.run_until([&] { return open_ == 0; });
    sends_.clear();
    receives_.clear();
  }

 private:
  struct Receive : RecvRequest {
    std::function<void()> then;
  };
  static void done(void* context, const Status& status) {
    if (!status.ok()) fail(status.message());
    static_cast<Batch*>(context)->open_--;
  }
  std::vector<std::unique_ptr<SendRequest>> sends_;
  std::vector<std::unique_ptr<Receive>> receives_;
  int open_ = 0;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Time cpu_now() {
  timespec ts;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
  return ts.tv_sec * kSecond + ts.tv_nsec;
}

double seconds_since(Time start) { return static_cast<double>(monotonic_now() - start) / kSecond; }

// ---- two processes

// Half a round trip, us.
void latency(Rank& self, int rounds, double* figure) {
  std::byte out[64]{}, in[64]{};
  std::vector<double> times;
  for (int i = 0; i < rounds; i++) {
    const MessageKey key{1, static_cast<std::uint64_t>(i)};
    Batch receive, send;
    const Time start = monotonic_now();
    receive.receive(self, 1 - self.rank, key, Sink::place(in), 64);
    if (self.rank == 1) receive.wait(self);
    send.send(self, 1 - self.rank, key, out, 64);
    if (self.rank == 0) receive.wait(self);
    send.wait(self);
    times.push_back(seconds_since(start) * 1e6 / 2);
  }
  if (self.rank == 0) *figure = median(times);
}

// Million messages of 64 bytes a second, one way, 32 open at a time.
void rate(Rank& self, int rounds, double* figure) {
  std::byte data[64]{};
  constexpr int kBatch = 32;
  const Time start = monotonic_now();
  for (int i = 0; i < rounds; i++) {
    Batch batch;
    for (int j = 0; j < kBatch; j++) {
      const MessageKey key{2, static_cast<std::uint64_t>(i * kBatch + j)};
      if (self.rank == 0)
        batch.send(self, 1, key, data, 64);
      else
        batch.receive(self, 0, key, Sink::place(data), 64);
    }
    batch.wait(self);
  }
  self.barrier();
  if (self.rank == 0) *figure = rounds * kBatch / seconds_since(start) / 1e6;
}

// GB/s of messages of 1 MiB, four open at a time, out of and into memory larger than the caches.
void bandwidth(Rank& self, int rounds, bool reduce, double* figure) {
  constexpr int kOpen = 4;
  constexpr std::size_t kSlots = 64;
  std::vector<std::byte> memory(kSlots * kChunk, std::byte{1});
  const auto add = kernels::reduce_function(kernels::ReduceOp::kSum, kernels::Dtype::kF32);
  self.barrier();
  const Time start = monotonic_now();
  for (int i = 0; i < rounds; i++) {
    Batch batch;
    for (int j = 0; j < kOpen; j++) {
      const MessageKey key{reduce ? 4u : 3u, static_cast<std::uint64_t>(i * kOpen + j)};
      std::byte* slot = memory.data() + (key.tag % kSlots) * kChunk;
      if (self.rank == 0) {
        batch.send(self, 1, key, slot, kChunk);
      } else {
        batch.receive(self, 0, key,
                      reduce ? Sink::reduce_into(slot, slot, add, 4) : Sink::place(slot), kChunk);
      }
    }
    batch.wait(self);
  }
  if (self.rank == 1) *figure = rounds * kOpen * kChunk / seconds_since(start) / 1e9;
}

double copy_bandwidth() {
  std::vector<std::byte> from(64 * kChunk, std::byte{1}), to(64 * kChunk, std::byte{2});
  const Time start = monotonic_now();
  for (int i = 0; i < 4; i++) std::memcpy(to.data(), from.data(), from.size());
  return 4 * static_cast<double>(from.size()) / seconds_since(start) / 1e9;
}

// ---- all processes

// us for a round in which everybody sends 64 bytes to everybody.
void exchange(Rank& self, int rounds, double* figure) {
  std::byte out[64]{}, in[kMaxRanks][64];
  std::vector<double> times;
  self.barrier();
  for (int i = 0; i < rounds; i++) {
    const MessageKey key{5, static_cast<std::uint64_t>(i)};
    Batch batch;
    const Time start = monotonic_now();
    for (int other = 0; other < self.ranks; other++) {
      if (other == self.rank) continue;
      batch.receive(self, other, key, Sink::place(in[other]), 64);
      batch.send(self, other, key, out, 64);
    }
    batch.wait(self);
    times.push_back(seconds_since(start) * 1e6);
  }
  if (self.rank == 0) *figure = median(times);
}

// One direct all-reduce: every rank adds the others' parts of its share, chunk by chunk, and sends
// each finished chunk to all.
void all_reduce(Rank& self, float* data, std::size_t share, std::uint64_t run) {
  const auto add = kernels::reduce_function(kernels::ReduceOp::kSum, kernels::Dtype::kF32);
  const std::size_t per_chunk = kChunk / sizeof(float);
  const std::size_t chunks = (share + per_chunk - 1) / per_chunk;
  std::vector<Staging> stagings(chunks);
  std::vector<int> missing(chunks, self.ranks - 1);
  Batch batch;
  const auto part = [&](int owner, std::size_t c) { return data + owner * share + c * per_chunk; };
  const auto bytes = [&](std::size_t c) {
    return std::min(per_chunk, share - c * per_chunk) * sizeof(float);
  };
  // One reducing receive at a time is open on a chunk.
  std::function<void(std::size_t, int)> add_next = [&](std::size_t c, int step) {
    if (step < self.ranks) {
      const int from = (self.rank + step) % self.ranks;
      float* mine = part(self.rank, c);
      batch.receive(self, from, {run, c}, Sink::reduce_into(mine, mine, add, 4), bytes(c),
                    [&, c, step] { add_next(c, step + 1); });
      return;
    }
    for (int other = 0; other < self.ranks; other++) {
      if (other == self.rank) continue;
      batch.send(self, other, {run, 1000 + c}, part(self.rank, c), bytes(c), &stagings[c]);
    }
  };
  for (std::size_t c = 0; c < chunks; c++) {
    for (int step = 1; step < self.ranks; step++) {
      const int other = (self.rank + self.ranks - step) % self.ranks;
      batch.send(self, other, {run, c}, part(other, c), bytes(c));
    }
    add_next(c, 1);
  }
  // The finished parts overwrite what was sent from there, once those sends are over: the
  // receivers of the first half own these chunks, so by the time they are finished they are read.
  for (std::size_t c = 0; c < chunks; c++) {
    for (int step = 1; step < self.ranks; step++) {
      const int other = (self.rank + step) % self.ranks;
      batch.receive(self, other, {run, 1000 + c}, Sink::place(part(other, c)), bytes(c));
    }
  }
  batch.wait(self);
  for (Staging& staging : stagings) self.matchers[(self.rank + 1) % self.ranks]->release(staging);
}

void all_reduces(Rank& self, int rounds, Board& board, double* figure) {
  const std::size_t share = 10'000'000 / self.ranks;
  std::vector<float> data(share * self.ranks, 1.0f);
  std::vector<double> times;
  for (int i = 0; i < rounds; i++) {
    std::fill(data.begin(), data.end(), static_cast<float>(self.rank + 1));
    self.barrier();
    const Time start = monotonic_now(), cpu = cpu_now();
    all_reduce(self, data.data(), share, 100 + i);
    times.push_back(seconds_since(start) * 1e3);
    board.cpu_ns += cpu_now() - cpu;
    self.barrier();
    const float expected = self.ranks * (self.ranks + 1) / 2.0f;
    if (std::any_of(data.begin(), data.end(), [&](float x) { return x != expected; }))
      fail("wrong sum");
  }
  if (self.rank != 0) return;
  figure[0] = median(times);
  figure[1] = *std::min_element(times.begin(), times.end());
  figure[2] = static_cast<double>(board.cpu_ns) / 1e6 / rounds;
}

// The same by hand, without messages: what the arena way is measured against. Chunk by chunk, copy
// in, add the own share of everybody's chunk, copy out, with a barrier between.
void bare_all_reduces(int rank, int ranks, int rounds, Board& board, std::byte* shared) {
  const auto add = kernels::reduce_function(kernels::ReduceOp::kSum, kernels::Dtype::kF32);
  const std::size_t count = 10'000'000 / ranks * ranks, per_chunk = kChunk / sizeof(float);
  std::vector<float> data(count, 1.0f);
  const auto slot = [&](int r) { return reinterpret_cast<float*>(shared + r * kChunk); };
  const auto barrier = [&] {
    const int target = (board.arrived.fetch_add(1) / ranks + 1) * ranks;
    while (board.arrived.load() < target) sched_yield();
  };
  std::vector<double> times;
  for (int i = 0; i < rounds; i++) {
    barrier();
    const Time start = monotonic_now();
    Time working = 0;
    const auto work = [&](auto&& step) {
      const Time before = cpu_now();
      step();
      working += cpu_now() - before;
      barrier();
    };
    for (std::size_t at = 0; at < count; at += per_chunk) {
      const std::size_t here = std::min(per_chunk, count - at), share = here / ranks;
      work([&] { std::memcpy(slot(rank), data.data() + at, here * sizeof(float)); });
      work([&] {
        float* mine = slot(0) + rank * share;
        for (int r = 1; r < ranks; r++) add(mine, mine, slot(r) + rank * share, share);
      });
      work([&] { std::memcpy(data.data() + at, slot(0), here * sizeof(float)); });
    }
    times.push_back(seconds_since(start) * 1e3);
    board.cpu_ns += working;
  }
  barrier();
  if (rank != 0) return;
  board.figure[5] = median(times);
  board.figure[6] = *std::min_element(times.begin(), times.end());
  board.figure[7] = static_cast<double>(board.cpu_ns) / 1e6 / rounds;
}

void run(int ranks, const std::function<void(int, Board&)>& body, Board* result) {
  void* memory =
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  Board& board = *new (memory) Board;
  std::vector<pid_t> children;
  std::fflush(nullptr);
  for (int rank = 0; rank < ranks; rank++) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    body(rank, board);
    _exit(0);
  }
  bool good = true;
  for (pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    good = good && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  if (!good) fail("a process failed");
  std::memcpy(result->figure, board.figure, sizeof board.figure);
  munmap(memory, sizeof(Board));
}

}  // namespace

int main(int argc, char** argv) {
  int scale = 10, ranks = 4;
  for (int i = 1; i < argc; i++) {
    if (std::strcmp(argv[i], "--quick") == 0) scale = 1;
    if (std::strcmp(argv[i], "--processes") == 0 && i + 1 < argc) ranks = std::atoi(argv[++i]);
  }
  ranks = std::clamp(ranks, 2, kMaxRanks);
  Board figures[3];
  for (int pull = 0; pull < 2; pull++) {
    Board two, all;
    run(
        2,
        [&](int rank, Board& board) {
          Rank self(rank, 2, pull, board);
          latency(self, 500 * scale, &board.figure[0]);
          rate(self, 500 * scale, &board.figure[1]);
          bandwidth(self, 30 * scale, false, &board.figure[2]);
          bandwidth(self, 30 * scale, true, &board.figure[3]);
          self.leave();
        },
        &two);
    run(
        ranks,
        [&](int rank, Board& board) {
          Rank self(rank, ranks, pull, board);
          exchange(self, 200 * scale, &board.figure[4]);
          all_reduces(self, 3 * scale, board, &board.figure[5]);
          self.leave();
        },
        &all);
    std::copy(two.figure, two.figure + 4, figures[pull].figure);
    std::copy(all.figure + 4, all.figure + 8, figures[pull].figure + 4);
  }
  auto* shared = static_cast<std::byte*>(
      mmap(nullptr, kMaxRanks * kChunk, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  run(
      ranks,
      [&](int rank, Board& board) { bare_all_reduces(rank, ranks, 3 * scale, board, shared); },
      &figures[2]);
  const double copy = copy_bandwidth();
  const char* names[] = {"64 B, half a round trip, us",
                         "64 B one way, million/s",
                         "1 MiB place, GB/s",
                         "1 MiB add f32, GB/s",
                         "64 B to everybody, us",
                         "all-reduce of 40 MB, ms",
                         "  fastest, ms",
                         "  CPU of all processes, ms"};
  std::printf("%-30s %10s %10s %10s\n", "", "arena", "pull", "bare");
  for (int i = 0; i < 8; i++) {
    std::printf("%-30s %10.2f %10.2f %10.2f\n", names[i], figures[0].figure[i],
                figures[1].figure[i], figures[2].figure[i]);
  }
  std::printf(
      "limit: memcpy of one core %.1f GB/s; %d processes from the fifth line on, %ld cores\n", copy,
      ranks, sysconf(_SC_NPROCESSORS_ONLN));
  return 0;
}
