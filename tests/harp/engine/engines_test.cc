// Several engines in a process: each is a Stack of its own, which groups of its number share.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "harp/address.h"
#include "harp/engine/held_stacks.h"
#include "harp/stat/stat_page.h"
#include "harp/tools/exchange.h"
#include "harp/tools/stat_processes.h"
#include "support/engine_pair.h"
#include "support/eventually.h"
#include "support/processes.h"
#include "support/stack_world.h"

namespace taco::harp {
namespace {

using ::taco::testing::EnginePair;
using ::taco::testing::Fellowship;
using ::taco::testing::hold;
using ::taco::testing::run_processes;
using Force = StackOptions::Force;

StackOptions engines(int count, Force transport = Force::kAuto) {
  StackOptions options;
  options.transport = transport;
  options.interfaces = {"lo"};
  options.engines = count;
  return options;
}

TEST(EngineOfGroup, IsItsNumberAndTheSameForAnyOtherNameEverywhere) {
  EXPECT_EQ(engine_of("0", 2), 0);
  EXPECT_EQ(engine_of("7", 2), 1);
  EXPECT_EQ(engine_of("7", 1), 0);
  EXPECT_EQ(engine_of("130", 64), 2);
  // The figures are of these names for good: ranks of two builds must agree.
  EXPECT_EQ(engine_of("data parallel", 64), 34);
  EXPECT_EQ(engine_of("12a", 64), 11);
  EXPECT_EQ(engine_of("", 64), 19);
  std::set<int> chosen;
  for (int i = 0; i < 64; ++i) chosen.insert(engine_of("group " + std::to_string(i), 4));
  EXPECT_EQ(chosen.size(), 4u);
}

// In one of its own, since a process reads its environment once.
void in_a_process(const std::function<void()>& body) {
  const auto statuses = run_processes({1, 60 * kSecond, {}}, [&](Fellowship&) { body(); });
  EXPECT_EQ(statuses, std::vector<int>{0});
}

TEST(Engines, AreHeldByTheGroupsOfTheirNumberAndEndWithTheLast) {
  in_a_process([] {
    const StackOptions options = engines(2);
    const HeldStack zero = hold(options, "0"), two = hold(options, "2"), one = hold(options, "1");
    EXPECT_EQ(zero.stack, two.stack);
    EXPECT_NE(zero.stack, one.stack);
    EXPECT_FALSE(one.shares_process);
    EXPECT_NE(zero.stack->incarnation(), one.stack->incarnation());
    EXPECT_NE(zero.stack->address(), one.stack->address());
    EXPECT_EQ(live_stacks().size(), 2u);
    const std::string threads = ::taco::testing::thread_names();
    EXPECT_NE(threads.find("taco-engine-0"), std::string::npos) << threads;
    EXPECT_NE(threads.find("taco-engine-1"), std::string::npos) << threads;
    drop_stack(zero.stack, {"0", 2, 0});
    EXPECT_TRUE(zero.stack->usable().ok());
    drop_stack(two.stack, {"2", 2, 0});
    EXPECT_FALSE(two.stack->usable().ok());
    EXPECT_TRUE(one.stack->usable().ok());
    const HeldStack next = hold(options, "4");
    EXPECT_NE(next.stack, one.stack);
    drop_stack(next.stack, {"4", 2, 0});
    drop_stack(one.stack, {"1", 2, 0});
    EXPECT_TRUE(live_stacks().empty());
  });
}

// Ranks that are threads: each has a Stack of the group's engine, and all have numbers of their
// own.
TEST(Engines, OfRanksThatAreThreadsHaveNumbersOfTheirOwn) {
  in_a_process([] {
    const StackOptions options = engines(2);
    std::vector<HeldStack> held;
    for (int rank = 0; rank < 2; ++rank) held.push_back(hold(options, "1", rank));
    EXPECT_NE(held[0].stack, held[1].stack);
    EXPECT_TRUE(held[1].shares_process);
    auto looks = statistics::look_at(getpid());
    ASSERT_TRUE(looks.ok()) << looks.status().message();
    ASSERT_EQ(looks->looks.size(), 2u);
    EXPECT_EQ(looks->looks[0].engine, 1);
    EXPECT_EQ(looks->looks[1].engine, 3);
    for (int rank = 0; rank < 2; ++rank) drop_stack(held[rank].stack, {"1", 2, rank});
  });
}

const std::vector<int> kBothFine = {0, 0};

class EnginePairs : public ::testing::TestWithParam<Force> {};

TEST_P(EnginePairs, CarryMessagesSideBySide) {
  const auto statuses = run_processes({2, 60 * kSecond, {}}, [](Fellowship& fellowship) {
    EnginePair pair(fellowship, engines(2, GetParam()));
    for (std::uint64_t tag = 0; tag < 20; ++tag) pair.exchange(tag, tag * 40'000 + 8);
    fellowship.barrier();
  });
  EXPECT_EQ(statuses, kBothFine);
}

TEST_P(EnginePairs, BothNoticeADeath) {
  const auto statuses = run_processes({2, 60 * kSecond, {}}, [](Fellowship& fellowship) {
    StackOptions options = engines(2, GetParam());
    options.peer_timeout = 5 * kSecond;
    EnginePair pair(fellowship, options);
    pair.exchange(1, 100'000);
    fellowship.barrier();
    if (fellowship.rank() == 1) raise(SIGKILL);
    std::uint64_t in = 0;
    for (int i = 0; i < 2; ++i) {
      Exchange never(*pair.stacks[i]);
      never.recv(pair.peers[i], {1, 2}, Sink::place(&in), sizeof in);
      EXPECT_EQ(never.run(30 * kSecond).code(), Code::kPeerLost) << i;
      EXPECT_EQ(pair.notes[i].lost, 1) << i;
    }
  });
  EXPECT_EQ(statuses[0], 0);
  EXPECT_EQ(WTERMSIG(statuses[1]), SIGKILL);
}

TEST_P(EnginePairs, AForkedChildHasNoneOfThem) {
  const auto statuses = run_processes({2, 60 * kSecond, {}}, [](Fellowship& fellowship) {
    EnginePair pair(fellowship, engines(2, GetParam()));
    const pid_t child = fork();
    if (child == 0) {
      for (const auto& stack : pair.stacks) {
        EXPECT_EQ(stack->usable().code(), Code::kAborted);
        Event never;
        EXPECT_FALSE(stack->engine().wait(never, kNever));
      }
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    pair.exchange(1, 1000);
    fellowship.barrier();
  });
  EXPECT_EQ(statuses, kBothFine);
}

std::vector<int> cores_of_this_process() {
  cpu_set_t set;
  EXPECT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

// By the name of a thread: the cores it may run on, as the kernel writes them.
std::string allowed_cores_of(const std::string& thread) {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name, line;
    std::ifstream(task.path() / "comm") >> name;
    if (name != thread) continue;
    std::ifstream status(task.path() / "status");
    while (std::getline(status, line)) {
      if (line.starts_with("Cpus_allowed_list:")) return line.substr(line.find('\t') + 1);
    }
  }
  return "no thread " + thread;
}

TEST_P(EnginePairs, WithCoresHaveTheirThreadsPinnedAndCarryTheSame) {
  const auto statuses = run_processes({2, 60 * kSecond, {}}, [](Fellowship& fellowship) {
    const std::vector<int> cores = cores_of_this_process();
    StackOptions options = engines(2, GetParam());
    options.cores = {cores.front(), cores.back()};
    {
      EnginePair pair(fellowship, options);
      for (int i = 0; i < 2; ++i) {
        EXPECT_EQ(allowed_cores_of("taco-engine-" + std::to_string(i)),
                  std::to_string(options.cores[i]));
      }
      EXPECT_EQ(cores_of_this_process(), cores) << "the program's threads are left alone";
      for (std::uint64_t tag = 0; tag < 20; ++tag) pair.exchange(tag, tag * 40'000 + 8);
      fellowship.barrier();
    }
    fellowship.barrier();
  });
  EXPECT_EQ(statuses, kBothFine);
}

TEST(Engines, TakeTheNextFreePorts) {
  in_a_process([] {
    constexpr int kFirst = 28'600;
    setenv("TACO_PORT", std::to_string(kFirst).c_str(), 1);
    std::set<int> ports;
    std::vector<HeldStack> held;
    for (const char* group : {"0", "1"}) {
      held.push_back(hold(engines(2), group));
      const auto address = decode(held.back().stack->address());
      ASSERT_TRUE(address.ok());
      const int port = port_of(address.value().paths.front().endpoint);
      EXPECT_GE(port, kFirst);
      EXPECT_LT(port, kFirst + 1'024);
      ports.insert(port);
    }
    EXPECT_EQ(ports.size(), 2u);
  });
}

TEST(Engines, AreRefusedByADriverWhoseInterfacesBelongToOne) {
  in_a_process([] {
    setenv("TACO_HARP_ENGINES", "2", 1);
    setenv("TACO_HARP_DRIVER", "dpdk", 1);
    setenv("TACO_HARP_DPDK", "net_ring0 10.5.0.1/24", 1);
    const Status status = StackOptions::from_env().status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find("TACO_HARP_ENGINES=\"2\" with TACO_HARP_DRIVER=dpdk: the "
                                    "device net_ring0 belongs to one engine"),
              std::string::npos)
        << status.message();
  });
}

TEST(Engines, AreAllowedByADriverThatHasAnInterfaceForEach) {
  in_a_process([] {
    setenv("TACO_HARP_ENGINES", "2", 1);
    setenv("TACO_HARP_DRIVER", "dpdk", 1);
    setenv("TACO_HARP_DPDK", "net_memif0,role=client 10.5.0.1/24", 1);
    const auto options = StackOptions::from_env();
    ASSERT_TRUE(options.ok()) << options.status().message();
    EXPECT_EQ(options.value().engines, 2);
  });
}

TEST(Engines, AreAllowedByADriverWhoseInterfacesHaveQueues) {
  in_a_process([] {
    setenv("TACO_HARP_ENGINES", "2", 1);
    setenv("TACO_HARP_DRIVER", "xdp", 1);
    const auto options = StackOptions::from_env();
    ASSERT_TRUE(options.ok()) << options.status().message();
    EXPECT_EQ(options.value().engines, 2);
  });
}

TEST(Engines, HaveTheirNumberAndCoresFromTheEnvironment) {
  in_a_process([] {
    setenv("TACO_HARP_ENGINES", "2", 1);
    setenv("TACO_HARP_CORES", "4-7", 1);
    setenv("LOCAL_RANK", "1", 1);
    setenv("LOCAL_WORLD_SIZE", "2", 1);
    const auto options = StackOptions::from_env();
    ASSERT_TRUE(options.ok()) << options.status().message();
    EXPECT_EQ(options.value().engines, 2);
    EXPECT_EQ(options.value().cores, (std::vector<int>{6, 7}));
  });
}

// The thread that closes a Stack sleeps until the goodbye has been heard, and has to be woken then.
TEST(Engines, WithCoresPartAsSoonAsTheirGoodbyeIsHeard) {
  const auto statuses = run_processes({2, 60 * kSecond, {}}, [](Fellowship& fellowship) {
    StackOptions options = engines(2, Force::kUdp);
    const std::vector<int> cores = cores_of_this_process();
    options.cores = {cores.front(), cores.back()};
    const pid_t other = std::stoi(fellowship.all_gather(std::to_string(getpid()))[1]);
    Duration shortest = kNever;
    for (std::uint64_t i = 0; i < 10; ++i) {
      auto pair = std::make_unique<EnginePair>(fellowship, options);
      pair->exchange(i, 100'000);
      fellowship.barrier();
      if (fellowship.rank() == 0) {
        kill(other, SIGSTOP);
        std::thread waker([other] {
          usleep(100'000);
          kill(other, SIGCONT);
        });
        const Time begin = monotonic_now();
        drop_stack(pair->stacks[0], {"0", 2, 0});
        shortest = std::min(shortest, monotonic_now() - begin);
        waker.join();
      }
      fellowship.barrier();
    }
    if (fellowship.rank() == 0) {
      EXPECT_LT(shortest, kSecond);
    }
  });
  EXPECT_EQ(statuses, kBothFine);
}

TEST(Engines, AreRefusedACoreThatDoesNotExist) {
  if (sysconf(_SC_NPROCESSORS_CONF) >= CPU_SETSIZE) GTEST_SKIP() << "there are all of them";
  in_a_process([] {
    StackOptions options = engines(1);
    options.cores = {CPU_SETSIZE - 1};
    const auto made = hold_stack(options, {"0", 2, 0});
    EXPECT_EQ(made.status().code(), Code::kInvalidArgument);
    EXPECT_NE(made.status().message().find("core 1023, which does not exist"), std::string::npos)
        << made.status().message();
    // One that has been joined stays listed until the kernel has taken it down.
    EXPECT_TRUE(::taco::testing::eventually(
        [] { return ::taco::testing::thread_names().find("taco-engine") == std::string::npos; }));
    EXPECT_TRUE(live_stacks().empty());
  });
}

INSTANTIATE_TEST_SUITE_P(Transports, EnginePairs, ::testing::Values(Force::kUdp, Force::kShm),
                         [](const auto& instance) {
                           return instance.param == Force::kUdp ? "udp" : "shm";
                         });

}  // namespace
}  // namespace taco::harp
