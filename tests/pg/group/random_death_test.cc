// A rank dies at a random moment of a random collective, on real transports between real processes:
// everybody else raises kPeerLost naming it, soon, and the survivors can start again. Every trial
// follows from its seed. DEATH_TRIALS sets how many there are (default 40), DEATH_SEED the
// first.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "harp/engine/stack.h"
#include "pg/communicator.h"
#include "support/number_from.h"
#include "support/processes.h"

namespace taco::pg {
namespace {

using harp::Stack;
using harp::StackOptions;
using testing::Fellowship;
using testing::run_processes;

constexpr int kMaxWorld = 5;

enum class Death { kKill, kExit, kSegfault, kKillWithWorker };
const char* const kDeathNames[] = {"SIGKILL", "_exit", "segmentation fault", "SIGKILL, worker"};

struct Trial {
  explicit Trial(unsigned seed) : seed(seed) {
    std::mt19937 random(seed);
    world = 2 + static_cast<int>(random() % (kMaxWorld - 1));
    victim = static_cast<int>(random() % world);
    force = random() % 2 == 0 ? StackOptions::Force::kShm : StackOptions::Force::kUdp;
    const Kind kinds[] = {Kind::kAllReduce,     Kind::kAllGather, Kind::kBroadcast, Kind::kAllToAll,
                          Kind::kReduceScatter, Kind::kBarrier,   Kind::kRecv};
    kind = kinds[random() % std::size(kinds)];
    const std::size_t sizes[] = {8, 1000, 40'000, 1'000'000};
    count = sizes[random() % std::size(sizes)] / world * world;
    if (count == 0) count = world;
    death = static_cast<Death>(random() % 4);
    delay_us = static_cast<int>(random() % 15'000);
  }
  std::string describe() const {
    return "DEATH_SEED=" + std::to_string(seed) + ": " + name_of(kind) + " of " +
           std::to_string(count) + " floats, " + std::to_string(world) + " ranks, " +
           (force == StackOptions::Force::kShm ? "shm" : "udp") + ", rank " +
           std::to_string(victim) + " dies by " + kDeathNames[static_cast<int>(death)] + " after " +
           std::to_string(delay_us) + " us";
  }
  unsigned seed;
  int world, victim, delay_us;
  StackOptions::Force force;
  Kind kind;
  std::size_t count;
  Death death;
};

struct Board {
  std::atomic<Time> died{0};
  std::atomic<Time> noticed[kMaxWorld];
  std::atomic<pid_t> worker{0};
};

// A Stack and a group of those that are still there, by their first ranks.
struct World {
  World(Fellowship& fellowship, const Trial& trial, std::uint64_t id) {
    StackOptions options;
    options.transport = trial.force;
    auto made = Stack::acquire(options);
    EXPECT_TRUE(made.ok()) << made.status().message();
    stack = std::move(made).value();
    const auto addresses = fellowship.all_gather(stack->address());
    GroupOptions group_options;
    group_options.id = id;
    group_options.name = "deaths";
    group_options.timeout = 20 * kSecond;
    group_options.host_gbits = {0};
    group_options.world = 0;
    for (int rank = 0; rank < fellowship.world(); ++rank) {
      if (addresses[rank].empty()) continue;
      if (rank == fellowship.rank()) {
        group_options.rank = group_options.world;
        group_options.peers.push_back(0);
      } else {
        const auto added = stack->add_peer(addresses[rank]);
        EXPECT_TRUE(added.ok()) << added.status().message();
        group_options.peers.push_back(added.ok() ? added.value() : 0);
      }
      group_options.global_ranks.push_back(rank);
      group_options.host_of_rank.push_back(0);
      ++group_options.world;
    }
    auto created = Communicator::create(stack, group_options);
    EXPECT_TRUE(created.ok()) << created.status().message();
    group = std::move(created).value();
    fellowship.barrier();
  }
  ~World() {
    (void)group->close(kSecond);
    group.reset();
    stack->close();
  }
  std::shared_ptr<Stack> stack;
  std::shared_ptr<Communicator> group;
};

// One operation's memory. Blocks are slices of two arrays of `count` floats a rank.
class Call {
 public:
  Call(const Trial& trial, int rank, int world)
      : in_(trial.count * world, 1.0f), out_(trial.count * world) {
    const auto whole = [&](std::vector<float>& of) { return piece(of, 0, trial.count); };
    spec_.kind = trial.kind;
    spec_.dtype = kernels::Dtype::kF32;
    switch (trial.kind) {
      case Kind::kBarrier:
        break;
      case Kind::kBroadcast:
        spec_.outputs = {whole(out_)};
        break;
      case Kind::kReduceScatter:
      case Kind::kAllToAll:
        for (int r = 0; r < world; ++r) {
          spec_.inputs.push_back(piece(in_, r * trial.count, trial.count));
          spec_.outputs.push_back(piece(out_, r * trial.count, trial.count));
        }
        if (trial.kind == Kind::kReduceScatter) spec_.outputs.resize(1);
        break;
      case Kind::kAllGather:
        spec_.inputs = {whole(in_)};
        for (int r = 0; r < world; ++r)
          spec_.outputs.push_back(piece(out_, r * trial.count, trial.count));
        break;
      case Kind::kRecv:  // a chain: everybody waits for its predecessor, so for the victim
        spec_.root = (rank + world - 1) % world;
        spec_.outputs = {whole(out_)};
        break;
      default:
        spec_.inputs = {whole(in_)};
        spec_.outputs = {whole(out_)};
    }
  }
  Status run(Communicator& group) {
    auto operation = group.start(spec_);
    return operation.ok() ? (*operation)->wait(0) : operation.status();
  }
  float first() const { return out_[0]; }

 private:
  static Piece piece(std::vector<float>& of, std::size_t from, std::size_t count) {
    return {reinterpret_cast<std::byte*>(of.data() + from), count * sizeof(float)};
  }
  std::vector<float> in_, out_;
  OperationSpec spec_;
};

[[noreturn]] void die(const Trial& trial, Board& board) {
  std::this_thread::sleep_for(std::chrono::microseconds(trial.delay_us));
  board.died = monotonic_now();
  if (trial.death == Death::kExit) _exit(9);
  if (trial.death == Death::kSegfault) {
    signal(SIGSEGV, SIG_DFL);
    raise(SIGSEGV);
  }
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

void start_worker(Board& board) {
  const pid_t worker = fork();
  if (worker == 0) {
    alarm(30);  // should the test end without it
    for (;;) pause();
  }
  board.worker = worker;
}

void live_and_die(Fellowship& fellowship, const Trial& trial, Board& board) {
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  const int rank = fellowship.rank();
  {
    World world(fellowship, trial, trial.seed * 2 + 1);
    std::thread end;
    if (rank == trial.victim) {
      if (trial.death == Death::kKillWithWorker) start_worker(board);
      end = std::thread([&] { die(trial, board); });
    }
    Call call(trial, rank, trial.world);
    Status status;
    while (status.ok()) {
      if (trial.kind == Kind::kRecv && rank == trial.victim) pause();
      status = call.run(*world.group);
    }
    if (rank == trial.victim) end.join();  // it may hear of a failure first, but dies all the same
    board.noticed[rank] = monotonic_now();
    EXPECT_EQ(status.code(), Code::kPeerLost) << status.message();
    ASSERT_NE(status.peer_loss(), nullptr) << status.message();
    EXPECT_EQ(status.peer_loss()->rank, trial.victim) << status.message();
    EXPECT_NE(status.message().find("rank " + std::to_string(trial.victim)), std::string::npos)
        << status.message();
  }
  // Again, with those who are left.
  World survivors(fellowship, trial, trial.seed * 2 + 2);
  Trial again = trial;
  again.kind = Kind::kAllReduce;
  Call call(again, survivors.group->options().rank, trial.world - 1);
  const Status status = call.run(*survivors.group);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(call.first(), static_cast<float>(trial.world - 1));
  fellowship.barrier();
}

// Runs one trial; the delays between the death and each survivor's error are appended, in ms.
void run_trial(const Trial& trial, std::vector<double>* delays) {
  SCOPED_TRACE(trial.describe());
  void* memory =
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  Board& board = *new (memory) Board;
  const auto statuses = run_processes({trial.world, 30 * kSecond, {}}, [&](Fellowship& fellowship) {
    live_and_die(fellowship, trial, board);
  });
  for (int rank = 0; rank < trial.world; ++rank) {
    if (rank == trial.victim) {
      EXPECT_NE(statuses[rank], 0) << "the victim lived";
      continue;
    }
    EXPECT_EQ(statuses[rank], 0) << "rank " << rank;
    if (board.noticed[rank] != 0)
      delays->push_back(static_cast<double>(board.noticed[rank] - board.died) / kMillisecond);
  }
  if (board.worker != 0) kill(board.worker, SIGKILL);
  munmap(memory, sizeof(Board));
}

TEST(RandomDeath, EverySurvivorNamesTheVictimAndStartsAgain) {
  const auto first =
      static_cast<unsigned>(number_from("DEATH_SEED", std::random_device{}() % 1'000'000));
  const auto trials = static_cast<unsigned>(number_from("DEATH_TRIALS", 40));
  setenv("TACO_LOG", "off", 0);  // every death is worth a line otherwise
  std::vector<double> delays;
  for (unsigned i = 0; i < trials && !HasFailure(); ++i) run_trial(Trial(first + i), &delays);
  ASSERT_FALSE(delays.empty());
  std::sort(delays.begin(), delays.end());
  std::printf("%zu errors after %u deaths: median %.1f ms, p90 %.1f ms, longest %.1f ms\n",
              delays.size(), trials, delays[delays.size() / 2], delays[delays.size() * 9 / 10],
              delays.back());
  EXPECT_LT(delays.back(), 9000) << "far beyond what a busy machine explains";
}

}  // namespace
}  // namespace taco::pg
