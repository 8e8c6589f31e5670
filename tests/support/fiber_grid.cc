#include "support/fiber_grid.h"

#include <ucontext.h>

#include <algorithm>
#include <numeric>
#include <random>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace taco::testing {
namespace {

constexpr unsigned kLanes = 32;
constexpr std::size_t kStackBytes = std::size_t{128} << 10;
constexpr std::size_t kBlocksAtOnce = 3;

#if defined(__SANITIZE_ADDRESS__)
// AddressSanitizer has to be told which stack is in use.
void leave(void** keep, const void* stack, std::size_t bytes) {
  __sanitizer_start_switch_fiber(keep, stack, bytes);
}
void arrive(void* kept, const void** from, std::size_t* bytes) {
  __sanitizer_finish_switch_fiber(kept, from, bytes);
}
// Frames that never returned leave their marks on a stack.
void clean(void* stack) { __asan_unpoison_memory_region(stack, kStackBytes); }
#else
void clean(void*) {}
void leave(void**, const void*, std::size_t) {}
void arrive(void*, const void**, std::size_t*) {}
#endif

std::string numbered(const char* what, std::size_t number) {
  return std::string(what) + " " + std::to_string(number);
}

}  // namespace

class FiberScheduler {
 public:
  FiberScheduler(std::uint64_t seed, KernelMistake mistake) : random_(seed), mistake_(mistake) {}

  Status run(const FiberGrid::Program& program, std::size_t blocks) {
    program_ = program;
    launches_.emplace_back();
    waiting_blocks_.resize(blocks);
    std::iota(waiting_blocks_.begin(), waiting_blocks_.end(), 0u);
    std::shuffle(waiting_blocks_.begin(), waiting_blocks_.end(), random_);
    runnable_.clear();
    failure_.clear();
    blocks_.assign(std::min(blocks, kBlocksAtOnce), Block());
    if (fibers_.size() < blocks_.size() * program.threads) {
      fibers_.resize(blocks_.size() * program.threads);
    }
    for (std::size_t slot = 0; slot < blocks_.size(); ++slot) begin_block(slot);
    while (failure_.empty() && !runnable_.empty()) take_turn();
    if (failure_.empty()) check_all_ended();
    return failure_.empty() ? Status() : Status(Code::kInternal, failure_);
  }

  const std::vector<KernelCalls>& launches() const { return launches_; }

  void barrier(FiberExec& exec) {
    const unsigned call = exec.barriers_++;
    launches_.back().barriers = std::max(launches_.back().barriers, exec.barriers_);
    if (mistaken(KernelMistake::Kind::kBarrierLeftOut, call)) return;
    Block& block = block_of(exec);
    if (++block.at_barrier < program_.threads) return wait(State::kAtBarrier);
    block.at_barrier = 0;
    const std::size_t first = exec.fiber_ / program_.threads * program_.threads;
    for (std::size_t i = first; i < first + program_.threads; ++i) {
      if (i != exec.fiber_) make_runnable(i);
    }
    yield();
  }

  // One operation of a warp at a time: `word` of each lane, what it asks for of another (`lane`),
  // or with lane kLanes the bits of all.
  std::uint64_t together(FiberExec& exec, std::uint32_t lanes, std::uint64_t word, unsigned lane) {
    const unsigned call = exec.warp_calls_++;
    launches_.back().warp_calls = std::max(launches_.back().warp_calls, exec.warp_calls_);
    if (mistaken(KernelMistake::Kind::kLaneLeftOut, call)) lanes &= ~(1u << call % kLanes);
    const unsigned own = exec.thread_ % kLanes;
    if ((lanes >> own & 1) == 0) fail(exec, "calls an operation of its warp without itself");
    Warp& warp = block_of(exec).warps[exec.thread_ / kLanes];
    const bool ballot = lane == kLanes;
    if (warp.arrived == 0) {
      warp.lanes = lanes;
      warp.ballot = ballot;
    } else if (warp.lanes != lanes || warp.ballot != ballot) {
      fail(exec, "comes to another operation than the rest of its warp");
    }
    warp.words[own] = word;
    warp.from[own] = lane;
    warp.arrived |= 1u << own;
    if (warp.arrived != warp.lanes) {
      wait(State::kInWarp);
      return fibers_[exec.fiber_].result;
    }
    answer_warp(exec, warp);
    yield();
    return fibers_[exec.fiber_].result;
  }

  void perhaps_yield() {
    if (random_() % 4 == 0) yield();
  }
  // The fiber is left where it is, so it holds nothing that would have to be freed.
  [[noreturn]] void fail(const FiberExec& exec, const char* what) {
    failure_ = numbered("block", exec.block_) + ", " + numbered("thread", exec.thread_);
    failure_ += std::string(" ") + what;
    for (;;) wait(State::kAtBarrier);
  }
  [[noreturn]] void fail(const FiberExec& exec, const char* what, std::size_t number) {
    failure_ = numbered("block", exec.block_) + ", " + numbered("thread", exec.thread_) + " ";
    failure_ += numbered(what, number);
    for (;;) wait(State::kAtBarrier);
  }

 private:
  enum class State { kRunnable, kAtBarrier, kInWarp, kEnded };
  struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    void* kept = nullptr;  // AddressSanitizer's
    FiberExec exec;
    State state = State::kEnded;
    std::uint64_t result = 0;
  };
  struct Warp {
    std::uint32_t lanes = 0, arrived = 0;
    bool ballot = false;
    std::uint64_t words[kLanes] = {};
    unsigned from[kLanes] = {};
  };
  struct Block {
    unsigned at_barrier = 0, ended = 0;
    std::vector<Warp> warps;
    std::vector<std::uint64_t> shared;
  };

  Block& block_of(const FiberExec& exec) { return blocks_[exec.fiber_ / program_.threads]; }
  bool mistaken(KernelMistake::Kind kind, unsigned call) const {
    return mistake_.kind == kind && mistake_.launch + 1 == launches_.size() &&
           mistake_.call == call;
  }

  void begin_block(std::size_t slot) {
    if (waiting_blocks_.empty()) return;
    const unsigned number = waiting_blocks_.back();
    waiting_blocks_.pop_back();
    Block& block = blocks_[slot];
    block = Block();
    block.warps.resize(program_.threads / kLanes);
    block.shared.resize(program_.shared_bytes / sizeof(std::uint64_t) + 2);
    for (std::uint64_t& word : block.shared) word = random_();
    for (unsigned thread = 0; thread < program_.threads; ++thread) {
      const std::size_t i = slot * program_.threads + thread;
      Fiber& fiber = fibers_[i];
      fiber.exec = FiberExec();
      fiber.exec.scheduler_ = this;
      fiber.exec.fiber_ = i;
      fiber.exec.thread_ = thread;
      fiber.exec.block_ = number;
      if (fiber.stack == nullptr) {
        fiber.stack = std::make_unique_for_overwrite<char[]>(kStackBytes);
      }
      clean(fiber.stack.get());
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.get();
      fiber.context.uc_stack.ss_size = kStackBytes;
      fiber.context.uc_link = nullptr;
      makecontext(&fiber.context, &FiberScheduler::begin_fiber, 0);
      fiber.kept = nullptr;
      make_runnable(i);
    }
  }

  void make_runnable(std::size_t fiber) {
    fibers_[fiber].state = State::kRunnable;
    runnable_.push_back(fiber);
  }

  void take_turn() {
    std::swap(runnable_[random_() % runnable_.size()], runnable_.back());
    current_ = runnable_.back();
    runnable_.pop_back();
    beginning_ = this;
    void* kept = nullptr;
    leave(&kept, fibers_[current_].stack.get(), kStackBytes);
    swapcontext(&scheduler_, &fibers_[current_].context);
    arrive(kept, nullptr, nullptr);
    if (!failure_.empty() || fibers_[current_].state != State::kEnded) return;
    const std::size_t slot = current_ / program_.threads;
    if (++blocks_[slot].ended == program_.threads) begin_block(slot);
  }

  static void begin_fiber() { beginning_->run_fiber(); }
  void run_fiber() {
    Fiber& fiber = fibers_[current_];
    arrive(nullptr, &scheduler_stack_, &scheduler_stack_bytes_);
    auto* const words = block_of(fiber.exec).shared.data();
    // 16 bytes is as aligned as a kernel's memory has to be.
    const auto place = (reinterpret_cast<std::uintptr_t>(words) + 15) / 16 * 16;
    program_.call(program_.kernel, fiber.exec, reinterpret_cast<void*>(place));
    fiber.state = State::kEnded;
    leave(nullptr, scheduler_stack_, scheduler_stack_bytes_);
    setcontext(&scheduler_);
  }

  void wait(State state) {
    Fiber& fiber = fibers_[current_];
    fiber.state = state;
    leave(&fiber.kept, scheduler_stack_, scheduler_stack_bytes_);
    swapcontext(&fiber.context, &scheduler_);
    arrive(fiber.kept, &scheduler_stack_, &scheduler_stack_bytes_);
  }
  void yield() {
    make_runnable(current_);
    wait(State::kRunnable);
  }

  void answer_warp(FiberExec& exec, Warp& warp) {
    std::uint64_t bits = 0;
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      if ((warp.lanes >> lane & 1) != 0 && warp.words[lane] != 0) bits |= 1u << lane;
    }
    const std::size_t first = exec.fiber_ - exec.thread_ % kLanes;
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      if ((warp.lanes >> lane & 1) == 0) continue;
      const unsigned from = warp.from[lane];
      if (!warp.ballot && (from >= kLanes || (warp.lanes >> from & 1) == 0)) {
        fail(exec, "is in a shuffle from a lane that takes no part in it: lane", from);
      }
      fibers_[first + lane].result = warp.ballot ? bits : warp.words[from];
      if (first + lane != exec.fiber_) make_runnable(first + lane);
    }
    warp.arrived = 0;
  }

  void check_all_ended() {
    std::size_t at_barrier = 0, in_warp = 0;
    const std::size_t all = blocks_.size() * program_.threads;
    for (std::size_t i = 0; i < all; ++i) {
      at_barrier += fibers_[i].state == State::kAtBarrier ? 1 : 0;
      in_warp += fibers_[i].state == State::kInWarp ? 1 : 0;
    }
    if (at_barrier + in_warp == 0) return;
    failure_ = "nobody can go on: " + std::to_string(at_barrier) + " threads wait at a barrier, " +
               std::to_string(in_warp) + " for the rest of their warp, and " +
               std::to_string(all - at_barrier - in_warp) + " have ended";
  }

  // The scheduler whose fiber begins; a context takes no argument of a pointer's size.
  static thread_local FiberScheduler* beginning_;

  std::mt19937_64 random_;
  KernelMistake mistake_;
  FiberGrid::Program program_{};
  std::vector<KernelCalls> launches_;
  std::vector<unsigned> waiting_blocks_;
  std::vector<Block> blocks_;  // that run
  std::vector<Fiber> fibers_;  // those of the first block, those of the second, ...
  std::vector<std::size_t> runnable_;
  std::size_t current_ = 0;
  std::string failure_;
  ucontext_t scheduler_{};
  const void* scheduler_stack_ = nullptr;
  std::size_t scheduler_stack_bytes_ = 0;
};

thread_local FiberScheduler* FiberScheduler::beginning_ = nullptr;

void FiberExec::barrier() { scheduler_->barrier(*this); }
std::uint32_t FiberExec::ballot(std::uint32_t lanes, bool condition) {
  return static_cast<std::uint32_t>(scheduler_->together(*this, lanes, condition ? 1 : 0, kLanes));
}
std::uint64_t FiberExec::exchange(std::uint32_t lanes, std::uint64_t word, unsigned lane) {
  if (lane >= kLanes) scheduler_->fail(*this, "shuffles from lane", lane);
  return scheduler_->together(*this, lanes, word, lane);
}
void FiberExec::perhaps_yield() { scheduler_->perhaps_yield(); }
void FiberExec::check_aligned(const void* place, std::size_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(place) % bytes == 0) return;
  scheduler_->fail(*this, "reads or writes at an address that is no multiple of", bytes);
}

FiberGrid::FiberGrid(std::uint64_t seed, KernelMistake mistake)
    : scheduler_(std::make_unique<FiberScheduler>(seed, mistake)) {}
FiberGrid::~FiberGrid() = default;

Status FiberGrid::run(const Program& program, std::size_t blocks) const {
  return blocks == 0 ? Status() : scheduler_->run(program, blocks);
}
const std::vector<KernelCalls>& FiberGrid::launches() const { return scheduler_->launches(); }

}  // namespace taco::testing
