#include "harp/engine/engine_cores.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include <future>
#include <string>
#include <vector>

namespace taco::harp {
namespace {

using Cores = std::vector<int>;

TEST(EngineCores, AreTheRanksPartOfTheHostsList) {
  EXPECT_EQ(engine_cores("", 2, {0, 1}).value(), Cores{});
  EXPECT_EQ(engine_cores("2,5", 2, {0, 1}).value(), (Cores{2, 5}));
  EXPECT_EQ(engine_cores("4-7", 2, {0, 2}).value(), (Cores{4, 5}));
  EXPECT_EQ(engine_cores("4-7", 2, {1, 2}).value(), (Cores{6, 7}));
  EXPECT_EQ(engine_cores("8,1", 1, {1, 2}).value(), Cores{1});
}

TEST(EngineCores, MustBeAsManyAsTheEnginesOfAllRanks) {
  const Status few = engine_cores("2,5", 2, {1, 4}).status();
  EXPECT_EQ(few.code(), Code::kInvalidArgument);
  EXPECT_NE(few.message().find("TACO_HARP_CORES=\"2,5\" names 2 cores, but 2 engines "
                               "(TACO_HARP_ENGINES) in each of 4 ranks of this host "
                               "(LOCAL_WORLD_SIZE) need 8"),
            std::string::npos)
      << few.message();
  EXPECT_FALSE(engine_cores("0-8", 2, {1, 4}).ok());
  EXPECT_FALSE(engine_cores("0,1", 1, {0, 1}).ok());
}

struct EngineCoresOfRank : ::testing::Test {
  ~EngineCoresOfRank() override {
    unsetenv("LOCAL_RANK");
    unsetenv("LOCAL_WORLD_SIZE");
  }
  static Result<LocalRank> with(const char* rank, const char* ranks) {
    rank == nullptr ? unsetenv("LOCAL_RANK") : setenv("LOCAL_RANK", rank, 1);
    ranks == nullptr ? unsetenv("LOCAL_WORLD_SIZE") : setenv("LOCAL_WORLD_SIZE", ranks, 1);
    return LocalRank::from_env("which cores are this rank's");
  }
};

TEST_F(EngineCoresOfRank, AreChosenAsTheLauncherNumbersIt) {
  EXPECT_EQ(with(nullptr, nullptr).value().ranks, 1);
  EXPECT_EQ(with("", "").value().ranks, 1);
  EXPECT_EQ(with("3", "4").value().rank, 3);
  EXPECT_EQ(with("3", "4").value().ranks, 4);
  EXPECT_EQ(with("0", nullptr).value().ranks, 1);
  EXPECT_EQ(with(nullptr, "1").value().rank, 0);
}

TEST_F(EngineCoresOfRank, NeedANumberThatMakesSense) {
  for (const auto& [rank, ranks, named] :
       {std::tuple{"x", "4", "LOCAL_RANK=\"x\""}, std::tuple{"1", "2x", "LOCAL_WORLD_SIZE=\"2x\""},
        std::tuple{"-1", "2", "LOCAL_RANK=\"-1\""}, std::tuple{"4", "4", "LOCAL_RANK=\"4\""},
        std::tuple{"0", "0", "LOCAL_WORLD_SIZE=\"0\""},
        std::tuple{"1", static_cast<const char*>(nullptr), "LOCAL_WORLD_SIZE is not"},
        std::tuple{static_cast<const char*>(nullptr), "2", "LOCAL_RANK is not"}}) {
    const Status status = with(rank, ranks).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << named;
    EXPECT_NE(status.message().find(named), std::string::npos) << status.message();
  }
}

// A thread that waits to be pinned.
struct Pinned {
  Pinned() : thread([this] { go.get_future().wait(); }) {}
  ~Pinned() {
    go.set_value();
    thread.join();
  }
  Cores allowed() {
    cpu_set_t set;
    EXPECT_EQ(pthread_getaffinity_np(thread.native_handle(), sizeof set, &set), 0);
    Cores cores;
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &set)) cores.push_back(core);
    }
    return cores;
  }
  std::promise<void> go;
  std::thread thread;
};

TEST(PinnedThread, RunsOnItsCoreAlone) {
  Pinned one;
  const int core = one.allowed().back();
  ASSERT_TRUE(pin_to_core(one.thread, core).ok());
  EXPECT_EQ(one.allowed(), Cores{core});
}

TEST(PinnedThread, IsRefusedACoreThatDoesNotExist) {
  Pinned one;
  const long cores = sysconf(_SC_NPROCESSORS_CONF);
  if (cores >= CPU_SETSIZE) GTEST_SKIP() << "a host of all cores that a mask can name";
  const Cores before = one.allowed();
  const Status status = pin_to_core(one.thread, static_cast<int>(cores));
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("names core " + std::to_string(cores) + ", which does not exist"),
            std::string::npos)
      << status.message();
  EXPECT_EQ(one.allowed(), before);
}

}  // namespace
}  // namespace taco::harp
