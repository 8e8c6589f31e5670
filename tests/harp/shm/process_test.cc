// Links between real processes: messages, sleep, death, permissions.
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "support/processes.h"
#include "support/shm_node.h"
#include "support/shm_processes.h"

namespace taco::harp {
namespace {

// Opens a link to everybody; peer ids are ranks, with this one's own left unused.
struct Rank {
  Rank(int rank, int count, ShmBoard& board, bool pull, bool watch = true)
      : node(pull, std::size_t{16} << 20, watch), rank(rank) {
    board.post(rank, node.address());
    for (int other = 0; other < count; other++) node.join(board.await(other));
  }
  Matcher& to(int other) { return node.matcher(static_cast<PeerId>(other)); }
  void part() {
    for (ShmLink* link : node.links) link->leave();
    EXPECT_TRUE(node.run_until([&] {
      return std::none_of(node.links.begin(), node.links.end(),
                          [](ShmLink* link) { return link->busy(); });
    }));
  }
  ShmNode node;
  int rank;
};

class ShmProcessTest : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Ways, ShmProcessTest, ::testing::Values(true, false),
                         [](const auto& info) { return info.param ? "Pull" : "Arena"; });

TEST_P(ShmProcessTest, TwoProcessesPlayPingPong) {
  ShmProcesses both(2, [&](int rank, ShmBoard& board) {
    Rank self(rank, 2, board, GetParam());
    self.node.spins = 0;
    for (std::size_t bytes : {std::size_t{8}, std::size_t{5000}, std::size_t{1'000'000}}) {
      for (std::uint64_t round = 0; round < 50; round++) {
        const auto data = shm_pattern(bytes, round);
        std::vector<std::byte> into(bytes);
        const MessageKey key{bytes, round};
        ShmSend send(key, data.data(), bytes);
        ShmReceive receive(key, Sink::place(into.data()), bytes);
        self.to(1 - rank).recv(receive);
        const bool answers = rank == 1;
        ASSERT_TRUE(self.node.run_until([&] { return !answers || receive.done; }));
        self.to(1 - rank).send(send);
        ASSERT_TRUE(self.node.run_until([&] { return receive.done && send.done; }));
        ASSERT_TRUE(receive.status.ok()) << receive.status.message();
        ASSERT_EQ(into, data);
      }
    }
    EXPECT_GT(self.node.endpoint->stats().sleeps, 0u);
    self.part();
  });
  EXPECT_TRUE(both.join());
}

TEST_P(ShmProcessTest, FourProcessesExchangeEverythingWithEverybody) {
  constexpr int kRanks = 4;
  ShmProcesses all(kRanks, [&](int rank, ShmBoard& board) {
    Rank self(rank, kRanks, board, GetParam());
    for (std::uint64_t round = 0; round < 20; round++) {
      const std::size_t bytes = round % 4 == 0 ? 900'000 + round : 200 * round;
      std::vector<std::vector<std::byte>> data(kRanks), into(kRanks);
      std::vector<std::unique_ptr<ShmSend>> sends;
      std::vector<std::unique_ptr<ShmReceive>> receives;
      for (int other = 0; other < kRanks; other++) {
        if (other == rank) continue;
        data[other] = shm_pattern(bytes, round * 100 + rank * 10 + other);
        into[other].resize(bytes);
        const MessageKey key{1, round};
        sends.push_back(std::make_unique<ShmSend>(key, data[other].data(), bytes));
        receives.push_back(
            std::make_unique<ShmReceive>(key, Sink::place(into[other].data()), bytes));
        self.to(other).recv(*receives.back());
        self.to(other).send(*sends.back());
      }
      ASSERT_TRUE(self.node.run_until([&] {
        return std::all_of(sends.begin(), sends.end(), [](auto& s) { return s->done; }) &&
               std::all_of(receives.begin(), receives.end(), [](auto& r) { return r->done; });
      }));
      for (int other = 0; other < kRanks; other++) {
        if (other == rank) continue;
        ASSERT_EQ(into[other], shm_pattern(bytes, round * 100 + other * 10 + rank));
      }
    }
    self.part();
    EXPECT_TRUE(self.node.heard.lost.empty());
  });
  EXPECT_TRUE(all.join());
}

// Rank 1 waits for rank 0, which is killed in the middle of a stream of messages.
void kill_in_the_middle(bool pull, bool watch, bool with_worker) {
  ShmProcesses both(2, [&](int rank, ShmBoard& board) {
    Rank self(rank, 2, board, pull, watch);
    const std::size_t bytes = 3'000'000;
    const auto data = shm_pattern(bytes, 1);
    if (rank == 0 && with_worker) {
      const pid_t worker = fork();
      if (worker == 0) {
        board.entries[2].pid = getpid();
        alarm(60);  // should the test fail to end it
        for (;;) pause();
      }
    }
    for (std::uint64_t round = 0;; round++) {
      std::vector<std::byte> into(bytes);
      ShmSend send({1, round}, data.data(), bytes);
      ShmReceive receive({1, round}, Sink::place(into.data()), bytes);
      if (rank == 0) {
        self.to(1).send(send);
        self.node.run_until([&] { return send.done; });
        continue;
      }
      if (round == 3) board.stage = 1;
      self.to(0).recv(receive);
      ASSERT_TRUE(self.node.run_until([&] { return receive.done; })) << "no verdict";
      if (receive.status.ok()) {
        ASSERT_EQ(into, data) << "garbage from a dead process";
        continue;
      }
      board.figures[0] = monotonic_now();
      EXPECT_EQ(receive.status.code(), Code::kPeerLost);
      ASSERT_NE(receive.status.peer_loss(), nullptr);
      const std::string pid = "pid " + std::to_string(board.entries[0].pid);
      EXPECT_NE(receive.status.peer_loss()->address.find(pid), std::string::npos)
          << receive.status.message();
      EXPECT_LT(receive.status.peer_loss()->last_heard_s, 5);
      EXPECT_EQ(self.node.endpoint->stats().links, 0u);
      return;
    }
  });
  both.board().await_stage(1);
  usleep(2000);
  both.kill(0);
  const Time killed = monotonic_now();
  EXPECT_TRUE(both.join());
  // At once, unless other work has the processors.
  EXPECT_LT(both.board().figures[0] - killed, 10 * kSecond);
  if (with_worker) {
    const pid_t worker = both.board().entries[2].pid;
    ASSERT_GT(worker, 0);
    EXPECT_EQ(::kill(worker, SIGKILL), 0) << "the worker outlived its parent, as intended";
  }
}

TEST_P(ShmProcessTest, AKilledPeerIsReportedWithItsPid) {
  for (int i = 0; i < 5; i++) kill_in_the_middle(GetParam(), true, false);
}
TEST_P(ShmProcessTest, AKilledPeerIsReportedWhereTheKernelGivesNoPidfd) {
  kill_in_the_middle(GetParam(), false, false);
}
TEST_P(ShmProcessTest, AForkedWorkerDoesNotHideADeath) {
  kill_in_the_middle(GetParam(), true, true);
}
TEST_P(ShmProcessTest, AForkedWorkerDoesNotHideADeathWithoutPidfd) {
  kill_in_the_middle(GetParam(), false, true);
}

TEST(ShmProcess, WhatAPeerPublishedBeforeItsDeathStillCounts) {
  const std::size_t bytes = 800'000;
  ShmProcesses both(2, [&](int rank, ShmBoard& board) {
    Rank self(rank, 2, board, /*pull=*/false);
    const auto data = shm_pattern(bytes, 1);
    std::vector<std::byte> into(bytes), small(100);
    ShmReceive large_receive({1, 1}, Sink::place(into.data()), bytes);
    ShmReceive small_receive({1, 2}, Sink::place(small.data()), 100);
    if (rank == 1) {
      self.to(0).recv(large_receive);
      self.to(0).recv(small_receive);
      self.node.run_until([&] { return self.node.links[0]->is_connected(); });
      for (int i = 0; i < 1000; i++) self.node.turn();  // the want is out
      board.stage = 1;
      board.await_stage(2);  // rank 0 is dead by then, and this rank has read nothing
      ASSERT_TRUE(self.node.run_until([&] { return small_receive.done && large_receive.done; }));
      EXPECT_TRUE(large_receive.status.ok()) << large_receive.status.message();
      EXPECT_TRUE(small_receive.status.ok()) << small_receive.status.message();
      EXPECT_EQ(into, data);
      ASSERT_TRUE(self.node.run_until([&] { return !self.node.heard.lost.empty(); }));
      return;
    }
    self.node.run_until([&] { return self.node.links[1]->is_connected(); });
    board.await_stage(1);
    ShmSend large({1, 1}, data.data(), bytes), little({1, 2}, data.data(), 100);
    self.to(1).send(large);
    self.to(1).send(little);
    ASSERT_TRUE(self.node.run_until([&] { return large.done && little.done; }));
    ::kill(getpid(), SIGKILL);
  });
  ASSERT_TRUE(both.await_death(0));
  both.board().stage = 2;
  EXPECT_TRUE(both.join());
}

// Rank 0 sends, says goodbye and is gone before rank 1 has opened its end.
TEST(ShmProcess, ACleanExitBeforeThePeerLooksIsNoDeath) {
  for (bool watch : {true, false}) {
    ShmProcesses both(2, [&](int rank, ShmBoard& board) {
      std::byte byte{7};
      if (rank == 0) {
        ShmNode node(true, 1 << 20, watch);
        board.post(0, node.address());
        const PeerId there = node.join(board.await(1));
        ShmSend send({1, 1}, &byte, 1);
        node.matcher(there).send(send);
        ASSERT_TRUE(node.run_until([&] { return send.done; }));
        node.links[there]->leave();
        node.turn();
        ::kill(getpid(), SIGKILL);
      }
      ShmNode node(true, 1 << 20, watch);
      board.post(1, node.address());
      board.await_stage(1);
      const PeerId there = node.join(board.await(0));
      std::byte into{};
      ShmReceive receive({1, 1}, Sink::place(&into), 1);
      node.matcher(there).recv(receive);
      node.links[there]->connect();
      ASSERT_TRUE(node.run_until([&] { return receive.done && !node.heard.left.empty(); }));
      EXPECT_TRUE(receive.status.ok()) << receive.status.message();
      EXPECT_EQ(into, byte);
      node.run_until_idle();
      EXPECT_TRUE(node.heard.lost.empty());
    });
    ASSERT_TRUE(both.await_death(0));
    both.board().stage = 1;
    EXPECT_TRUE(both.join());
  }
}

TEST(ShmProcess, AWaitingProcessSleeps) {
  ShmProcesses both(2, [&](int rank, ShmBoard& board) {
    Rank self(rank, 2, board, true);
    std::byte byte{};
    ShmSend send({1, 1}, &byte, 1);
    ShmReceive receive({1, 1}, Sink::place(&byte), 1);
    if (rank == 1) {
      self.to(0).send(send);
      self.node.run_until([&] { return self.node.links[0]->is_connected() && send.done; });
      usleep(1'000'000);
      ShmSend second({1, 2}, &byte, 1);
      self.to(0).send(second);
      self.node.run_until([&] { return second.done; });
      return self.part();
    }
    self.to(1).recv(receive);
    ASSERT_TRUE(self.node.run_until([&] { return receive.done; }));
    ShmReceive second({1, 2}, Sink::place(&byte), 1);
    self.to(1).recv(second);
    ASSERT_TRUE(self.node.run_until([&] { return second.done; }));
    board.figures[0] = static_cast<std::int64_t>(1e6 * ::taco::testing::processor_seconds());
    self.part();
  });
  EXPECT_TRUE(both.join());
  EXPECT_LT(both.board().figures[0], 500'000) << "us of CPU while it waited for a second";
}

// Where Yama is, it keeps a user's processes out of each other's memory until they say otherwise.
// The sandbox ends one that does.
bool lets_others_in(ShmPull pull) {
  const pid_t child = fork();
  if (child == 0) {
    sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_prctl, 0, 2),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PR_SET_PTRACER, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    const sock_fprog filter = {std::size(program), program};
    const rlimit no_core{};
    if (setrlimit(RLIMIT_CORE, &no_core) != 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
      _exit(2);
    ShmOptions options;
    options.pull = pull;
    _exit(ShmEndpoint::create(options).ok() ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0) << WEXITSTATUS(status);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS;
}

TEST(ShmProcess, OthersAreLetIntoItsMemoryOnlyWherePullsAreOn) {
  EXPECT_TRUE(lets_others_in(ShmPull::kAlways));
  EXPECT_FALSE(lets_others_in(ShmPull::kNever));
}

// Root is allowed everything; an ordinary user's process that is not dumpable may not be read.
TEST(ShmProcess, WherePullsAreForbiddenMessagesAreStaged) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become an ordinary user";
  for (bool from_the_start : {true, false}) {
    ShmProcesses both(2, [&](int rank, ShmBoard& board) {
      ASSERT_EQ(setgroups(0, nullptr), 0);
      ASSERT_EQ(setresgid(65534, 65534, 65534), 0);
      ASSERT_EQ(setresuid(65534, 65534, 65534), 0);
      ASSERT_EQ(prctl(PR_SET_DUMPABLE, from_the_start ? 0 : 1), 0);
      Rank self(rank, 2, board, true);
      const std::size_t bytes = 2'000'000;
      const auto data = shm_pattern(bytes, 1);
      std::vector<std::byte> into(bytes);
      for (std::uint64_t round = 0; round < 4; round++) {
        if (round == 2) {
          ASSERT_EQ(prctl(PR_SET_DUMPABLE, 0), 0);
        }
        ShmSend send({1, round}, data.data(), bytes);
        ShmReceive receive({1, round}, Sink::place(into.data()), bytes);
        std::fill(into.begin(), into.end(), std::byte{0});
        if (rank == 0)
          self.to(1).send(send);
        else
          self.to(0).recv(receive);
        ASSERT_TRUE(self.node.run_until([&] { return send.done || receive.done; }));
        ASSERT_TRUE(send.status.ok() && receive.status.ok());
        if (rank == 1) {
          ASSERT_EQ(into, data);
        }
      }
      if (rank == 1) {
        EXPECT_NE(self.node.endpoint->why_no_pull().find("permitted"), std::string::npos)
            << self.node.endpoint->why_no_pull();
        EXPECT_EQ(self.node.endpoint->stats().bytes_pulled > 0, !from_the_start);
      }
      self.part();
    });
    EXPECT_TRUE(both.join());
  }
}

}  // namespace
}  // namespace taco::harp
