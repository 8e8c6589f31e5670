// Whole Stacks in processes of their own, over real sockets and real shared memory.
#include "harp/engine/stack.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "harp/drivers/kernel/kernel_interfaces.h"
#include "harp/engine/stacks.h"
#include "harp/tools/exchange.h"
#include "support/eventually.h"
#include "support/processes.h"
#include "support/stack_world.h"

namespace taco::harp {
namespace {

using ::taco::testing::eventually;
using ::taco::testing::Fellowship;
using ::taco::testing::pattern;
using ::taco::testing::run_processes;
using ::taco::testing::StackWorld;
using Force = StackOptions::Force;

const std::vector<int> kBothFine = {0, 0};
const std::vector<std::size_t> kSizes = {0,       1,         8,       100,       1'000,
                                         1'440,   1'441,     4'096,   10'000,    65'536,
                                         100'001, 1'048'576, 3 << 20, 10'000'019};

StackOptions options(Force force) {
  StackOptions made;
  made.transport = force;
  return made;
}

class StackTest : public ::testing::TestWithParam<Force> {};

TEST_P(StackTest, messages_of_every_size_arrive_unchanged_in_both_directions) {
  const auto statuses = run_processes({2, 60 * kSecond, {}}, [](Fellowship& fellowship) {
    StackWorld world(fellowship, options(GetParam()));
    const int me = fellowship.rank(), other = 1 - me;
    std::vector<std::vector<std::byte>> out, in;
    Exchange exchange(*world.stack);
    for (std::size_t i = 0; i < kSizes.size(); ++i) {
      out.push_back(pattern(kSizes[i], me * 100 + i));
      in.emplace_back(kSizes[i]);
      exchange.send(world.peer(other), {1, i}, out[i].data(), kSizes[i]);
      exchange.recv(world.peer(other), {1, i}, Sink::place(in[i].data()), kSizes[i]);
    }
    const Status status = exchange.run(30 * kSecond);
    ASSERT_TRUE(status.ok()) << status.message();
    for (std::size_t i = 0; i < kSizes.size(); ++i) {
      EXPECT_EQ(in[i], pattern(kSizes[i], other * 100 + i)) << kSizes[i];
      EXPECT_EQ(exchange.received(i).bytes, kSizes[i]);
    }
    fellowship.barrier();
  });
  EXPECT_EQ(statuses, kBothFine);
}

// Also where the receive is posted so early that it asks for a large message and a small one comes.
TEST_P(StackTest, a_receive_takes_a_shorter_message_and_tells_its_length) {
  const auto statuses = run_processes({2, 60 * kSecond, {}}, [](Fellowship& fellowship) {
    StackWorld world(fellowship, options(GetParam()));
    const int me = fellowship.rank(), other = 1 - me;
    const std::vector<std::size_t> beyond = {1, 4'096, 1 << 20};
    for (const bool receives_first : {true, false}) {
      Exchange sends(*world.stack), receives(*world.stack);
      std::vector<std::vector<std::byte>> out, in;
      for (std::size_t i = 0; i < kSizes.size(); ++i) {
        const MessageKey key{3, i * 2 + receives_first};
        out.push_back(pattern(kSizes[i], me * 100 + i));
        in.emplace_back(kSizes[i] + beyond[i % beyond.size()], std::byte{0xee});
        sends.send(world.peer(other), key, out[i].data(), out[i].size());
        receives.recv(world.peer(other), key, Sink::place(in[i].data()), in[i].size());
      }
      (receives_first ? receives : sends).start();
      fellowship.barrier();
      (receives_first ? sends : receives).start();
      ASSERT_TRUE(receives.finish(30 * kSecond).ok());
      ASSERT_TRUE(sends.finish(30 * kSecond).ok());
      for (std::size_t i = 0; i < kSizes.size(); ++i) {
        EXPECT_EQ(receives.received(i).bytes, kSizes[i]);
        std::vector<std::byte> expected = pattern(kSizes[i], other * 100 + i);
        expected.resize(in[i].size(), std::byte{0xee});
        EXPECT_EQ(in[i], expected) << kSizes[i];
      }
    }
    fellowship.barrier();
  });
  EXPECT_EQ(statuses, kBothFine);
}

TEST_P(StackTest, four_ranks_all_to_all_lose_and_resend_nothing) {
  const auto statuses = run_processes({4, 60 * kSecond, {}}, [](Fellowship& fellowship) {
    StackWorld world(fellowship, options(GetParam()));
    const int me = fellowship.rank();
    constexpr std::size_t kBytes = 2'000'000;
    for (std::uint64_t round = 0; round < 5; ++round) {
      Exchange exchange(*world.stack);
      std::vector<std::vector<std::byte>> out(4), in(4);
      for (int rank = 0; rank < 4; ++rank) {
        if (rank == me) continue;
        out[rank] = pattern(kBytes, me * 4 + rank + round * 16);
        in[rank].resize(kBytes);
        exchange.send(world.peer(rank), {9, round}, out[rank].data(), kBytes);
        exchange.recv(world.peer(rank), {9, round}, Sink::place(in[rank].data()), kBytes);
      }
      const Status status = exchange.run(30 * kSecond);
      ASSERT_TRUE(status.ok()) << status.message();
      for (int rank = 0; rank < 4; ++rank) {
        if (rank == me) continue;
        ASSERT_EQ(in[rank], pattern(kBytes, rank * 4 + me + round * 16)) << "from " << rank;
      }
    }
    fellowship.barrier();
    const StackStats stats = world.stack->stats();
    EXPECT_EQ(stats.retransmits, 0u);
    EXPECT_EQ(stats.socket_overflows, 0u);
    EXPECT_EQ(stats.bytes_copied, 0u);
    EXPECT_EQ(stats.checksum_failures, 0u);
    fellowship.barrier();
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0, 0, 0}));
}

TEST_P(StackTest, small_messages_pass_back_and_forth_in_order_of_their_keys) {
  const auto statuses = run_processes({2, 60 * kSecond, {}}, [](Fellowship& fellowship) {
    StackWorld world(fellowship, options(GetParam()));
    const int me = fellowship.rank(), other = 1 - me;
    for (std::uint64_t i = 0; i < 3'000; ++i) {
      const std::uint64_t out = i * 2 + static_cast<std::uint64_t>(me);
      std::uint64_t in = 0;
      Exchange exchange(*world.stack);
      exchange.send(world.peer(other), {2, i}, &out, sizeof out);
      exchange.recv(world.peer(other), {2, i}, Sink::place(&in), sizeof in);
      const Status status = exchange.run(20 * kSecond);
      ASSERT_TRUE(status.ok()) << i << ": " << status.message();
      ASSERT_EQ(in, i * 2 + static_cast<std::uint64_t>(other));
    }
    fellowship.barrier();
    EXPECT_EQ(world.stack->stats().retransmits, 0u);
  });
  EXPECT_EQ(statuses, kBothFine);
}

// Whatever the survivor has open towards the dead peer ends with its name, soon.
void check_death(Force force, bool survivor_sends, bool with_forked_child) {
  const auto statuses = run_processes({2, 60 * kSecond, {}}, [=](Fellowship& fellowship) {
    StackWorld world(fellowship, options(force));
    std::vector<std::byte> buffer(64 << 20);
    Exchange hello(*world.stack);
    char there = 'x', here = 0;
    hello.send(world.peer(1 - fellowship.rank()), {1, 0}, &there, 1);
    hello.recv(world.peer(1 - fellowship.rank()), {1, 0}, Sink::place(&here), 1);
    ASSERT_TRUE(hello.run().ok());
    if (fellowship.rank() == 1) {
      // A DataLoader worker that outlives its parent and would keep its sockets open. It ends
      // when the test's process does.
      if (with_forked_child && fork() == 0) {
        for (int i = 0; i < 150; ++i) usleep(100'000);
        _exit(0);
      }
      fellowship.barrier();
      for (;;) pause();
    }
    fellowship.barrier();
    Exchange doomed(*world.stack);
    if (survivor_sends) {
      doomed.send(world.peer(1), {1, 1}, buffer.data(), buffer.size());
    } else {
      doomed.recv(world.peer(1), {1, 1}, Sink::place(buffer.data()), buffer.size());
    }
    doomed.start();
    usleep(20'000);
    const Time killed = monotonic_now();
    kill(world.pids[1], SIGKILL);
    const Status status = doomed.finish(10 * kSecond);
    const double after = static_cast<double>(monotonic_now() - killed) / kSecond;
    EXPECT_EQ(status.code(), Code::kPeerLost) << status.message();
    ASSERT_NE(status.peer_loss(), nullptr);
    EXPECT_NE(status.peer_loss()->address.find("pid " + std::to_string(world.pids[1])),
              std::string::npos)
        << status.message();
    EXPECT_FALSE(status.peer_loss()->may_have_left);
    EXPECT_LT(after, 9.0) << "neither its child's end nor silence may be needed";
    EXPECT_EQ(world.notes.lost, 1);
    fprintf(stderr, "[ seen after %.1f ms: %s ]\n", after * 1e3, status.message().c_str());
  });
  EXPECT_EQ(statuses[0], 0);
  EXPECT_TRUE(WIFSIGNALED(statuses[1]) && WTERMSIG(statuses[1]) == SIGKILL);
}

TEST_P(StackTest, a_killed_peer_fails_a_waiting_receive) { check_death(GetParam(), false, false); }
TEST_P(StackTest, a_killed_peer_fails_an_open_send) { check_death(GetParam(), true, false); }
TEST_P(StackTest, a_killed_peer_is_missed_although_its_forked_child_lives_on) {
  check_death(GetParam(), false, true);
}

TEST_P(StackTest, a_stopped_peer_is_not_dead) {
  const auto statuses = run_processes({2, 60 * kSecond, {}}, [](Fellowship& fellowship) {
    StackOptions patient = options(GetParam());
    patient.peer_timeout = 10 * kSecond;
    StackWorld world(fellowship, patient);
    const int other = 1 - fellowship.rank();
    std::vector<std::byte> out = pattern(8'000'000, 1), in(out.size());
    Exchange exchange(*world.stack);
    exchange.send(world.peer(other), {1, 1}, out.data(), out.size());
    exchange.recv(world.peer(other), {1, 1}, Sink::place(in.data()), in.size());
    fellowship.barrier();
    if (fellowship.rank() == 0) {
      kill(world.pids[1], SIGSTOP);
      exchange.start();
      usleep(2'000'000);
      kill(world.pids[1], SIGCONT);
    } else {
      exchange.start();
    }
    const Status status = exchange.finish(20 * kSecond);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(in, out);
    fellowship.barrier();
  });
  EXPECT_EQ(statuses, kBothFine);
}

// Lingering takes a second each time; a busy machine takes as long now and then.
constexpr int kTries = 10;

TEST_P(StackTest, leaving_says_goodbye_and_is_no_failure) {
  const auto statuses = run_processes({2, 120 * kSecond, {}}, [](Fellowship& fellowship) {
    Duration took = kSecond;
    for (int i = 0; i < kTries && took >= kSecond; ++i) {
      StackWorld world(fellowship, options(GetParam()));
      const int me = fellowship.rank();
      std::uint64_t out = 5, in = 0;
      Exchange exchange(*world.stack);
      exchange.send(world.peer(1 - me), {1, 1}, &out, 8);
      exchange.recv(world.peer(1 - me), {1, 1}, Sink::place(&in), 8);
      ASSERT_TRUE(exchange.run().ok());
      const Time start = monotonic_now();
      if (me == 1) world.stack->close();
      took = std::stoll(fellowship.all_gather(std::to_string(monotonic_now() - start))[1]);
      if (me == 1) continue;
      eventually([&] { return world.notes.left != 0; });
      EXPECT_EQ(world.notes.left, 1);
      EXPECT_EQ(world.notes.lost, 0);
      // But whoever needs the one that left is told.
      Exchange late(*world.stack);
      late.recv(world.peer(1), {1, 2}, Sink::place(&in), 8);
      EXPECT_EQ(late.run(5 * kSecond).code(), Code::kPeerLost);
    }
    EXPECT_LT(took, kSecond) << "a goodbye is acknowledged";
  });
  EXPECT_EQ(statuses, kBothFine);
}

// Nobody can tell whether it left or died: it had nobody to say goodbye to.
TEST_P(StackTest, who_leaves_before_anybody_has_met_it_is_missed_at_once_and_may_have_left) {
  const auto statuses = run_processes({2, 60 * kSecond, {}}, [](Fellowship& fellowship) {
    StackWorld world(fellowship, options(GetParam()));
    fellowship.barrier();  // both know where the other is
    if (fellowship.rank() == 1) world.stack->close();
    fellowship.barrier();
    if (fellowship.rank() == 0) {
      std::uint64_t in = 0;
      Exchange exchange(*world.stack);
      exchange.recv(world.peer(1), {1, 1}, Sink::place(&in), 8);
      const Status status = exchange.run(5 * kSecond);
      EXPECT_EQ(status.code(), Code::kPeerLost) << status.message();
      ASSERT_NE(status.peer_loss(), nullptr);
      EXPECT_TRUE(status.peer_loss()->may_have_left) << status.message();
      EXPECT_LT(status.peer_loss()->last_heard_s, 0);
    }
    fellowship.barrier();
  });
  EXPECT_EQ(statuses, kBothFine);
}

TEST_P(StackTest, waiting_costs_no_processor_time) {
  const auto statuses = run_processes({2, 60 * kSecond, {}}, [](Fellowship& fellowship) {
    StackWorld world(fellowship, options(GetParam()));
    fellowship.barrier();
    if (fellowship.rank() == 1) {
      usleep(2'000'000);
      const char out = 1;
      Exchange exchange(*world.stack);
      exchange.send(world.peer(0), {1, 1}, &out, 1);
      EXPECT_TRUE(exchange.run().ok());
    } else {
      char in = 0;
      Exchange exchange(*world.stack);
      exchange.recv(world.peer(1), {1, 1}, Sink::place(&in), 1);
      const double before = ::taco::testing::processor_seconds();
      EXPECT_TRUE(exchange.run().ok());
      const double used = ::taco::testing::processor_seconds() - before;
      fprintf(stderr, "[ %.4f s of processor in 2 s of waiting ]\n", used);
      EXPECT_LT(used, 0.5);  // generous: about 0.002 in quiet, and who polls takes 2
    }
    fellowship.barrier();
  });
  EXPECT_EQ(statuses, kBothFine);
}

// A thread that has been joined stays listed until the kernel has taken it down.
bool engine_thread_is_gone() {
  return eventually(
      [] { return ::taco::testing::thread_names().find("taco-engine") == std::string::npos; });
}

TEST_P(StackTest, fifty_stacks_one_after_another_leave_nothing_behind) {
  const auto statuses = run_processes({2, 180 * kSecond, {}}, [](Fellowship& fellowship) {
    int descriptors = 0, threads = 0;
    for (int i = 0; i < 50; ++i) {
      {
        StackWorld world(fellowship, options(GetParam()));
        EXPECT_NE(::taco::testing::thread_names().find("taco-engine-0"), std::string::npos);
        std::uint64_t out = 5, in = 0;
        Exchange exchange(*world.stack);
        exchange.send(world.peer(1 - fellowship.rank()), {1, 1}, &out, 8);
        exchange.recv(world.peer(1 - fellowship.rank()), {1, 1}, Sink::place(&in), 8);
        ASSERT_TRUE(exchange.run(10 * kSecond).ok()) << i;
        fellowship.barrier();
      }
      fellowship.barrier();
      if (i == 0) {
        ASSERT_TRUE(engine_thread_is_gone());
        descriptors = ::taco::testing::count_descriptors();
        threads = ::taco::testing::count_threads();
      }
    }
    EXPECT_TRUE(engine_thread_is_gone());
    EXPECT_EQ(::taco::testing::count_descriptors(), descriptors);
    EXPECT_EQ(::taco::testing::count_threads(), threads);
  });
  EXPECT_EQ(statuses, kBothFine);
}

INSTANTIATE_TEST_SUITE_P(Transports, StackTest, ::testing::Values(Force::kUdp, Force::kShm),
                         [](const auto& instance) {
                           return instance.param == Force::kUdp ? "udp" : "shm";
                         });

// Waits until the engine's thread sleeps, so that a task submitted now would have to wake it.
void wait_for_sleep() {
  const Time limit = monotonic_now() + 10 * kSecond;
  while (monotonic_now() < limit) {
    for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
      std::ifstream file(thread.path() / "stat");
      std::string line;
      std::getline(file, line);
      if (line.find("(taco-engine-0) S") != std::string::npos) return;
    }
    std::this_thread::yield();
  }
  FAIL() << "the engine's thread never sleeps";
}

// The number of what would wake the engine belongs to some other file of the child by now.
TEST(StackForkTest, a_task_submitted_in_a_forked_child_touches_nobodys_files) {
  const auto statuses = run_processes({1, 60 * kSecond, {}}, [](Fellowship& fellowship) {
    StackWorld world(fellowship, options(Force::kAuto));
    wait_for_sleep();
    const pid_t child = fork();
    if (child == 0) {
      std::vector<int> files(64);
      for (int& file : files) file = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
      struct Never final : Task {
        void run_st(Transport&) override { ADD_FAILURE() << "there is no engine here"; }
      } never;
      world.stack->engine().submit(never, false);
      for (const int file : files) {
        std::uint64_t count = 0;
        EXPECT_LT(read(file, &count, sizeof count), 0) << "somebody wrote to " << file;
      }
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    world.stack->close();
  });
  EXPECT_EQ(statuses, std::vector<int>{0});
}

TEST(StackForkTest, a_forked_child_finds_the_stack_disabled_and_may_make_its_own) {
  const auto statuses = run_processes({2, 60 * kSecond, {}}, [](Fellowship& fellowship) {
    StackWorld world(fellowship, options(Force::kAuto));
    const int descriptors = ::taco::testing::count_descriptors();
    const pid_t child = fork();
    if (child == 0) {
      EXPECT_LT(::taco::testing::count_descriptors(), descriptors - 5);
      EXPECT_EQ(world.stack->usable().code(), Code::kAborted);
      EXPECT_EQ(world.stack->add_peer(world.stack->address()).status().code(), Code::kAborted);
      Event never;
      EXPECT_FALSE(world.stack->engine().wait(never, kNever));
      world.stack->close();
// A forked child may have no threads under TSan; under ASan one can find the allocator locked.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
      {
        auto own = Stack::acquire(options(Force::kAuto));
        EXPECT_TRUE(own.ok()) << own.status().message();
        EXPECT_NE(own.value()->incarnation(), world.stack->incarnation());
        EXPECT_NE(own.value(), world.stack);
        own.value()->close();
      }
#endif
      world.stack.reset();
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    // The parent is as before.
    std::uint64_t out = 5, in = 0;
    Exchange exchange(*world.stack);
    exchange.send(world.peer(1 - fellowship.rank()), {1, 1}, &out, 8);
    exchange.recv(world.peer(1 - fellowship.rank()), {1, 1}, Sink::place(&in), 8);
    EXPECT_TRUE(exchange.run(10 * kSecond).ok());
    fellowship.barrier();
  });
  EXPECT_EQ(statuses, kBothFine);
}

TEST(StackSingletonTest, a_process_has_one_stack_at_a_time) {
  auto first = Stack::acquire(options(Force::kUdp));
  ASSERT_TRUE(first.ok()) << first.status().message();
  auto second = Stack::acquire(options(Force::kUdp));
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(first.value(), second.value());
  first.value()->close();
  EXPECT_EQ(first.value()->usable().code(), Code::kAborted);
  auto third = Stack::acquire(options(Force::kUdp));
  ASSERT_TRUE(third.ok());
  EXPECT_NE(first.value(), third.value());
  EXPECT_TRUE(third.value()->usable().ok());
}

// 1,024 by default, for the sake of old programs: too few for the ranks of a large host.
TEST(StackSingletonTest, a_process_of_few_descriptors_takes_as_many_as_it_may) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = 512;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  auto stack = Stack::acquire(options(Force::kUdp));
  rlimit after{};
  EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &after), 0);
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_TRUE(stack.ok()) << stack.status().message();
  EXPECT_EQ(after.rlim_cur, std::min<rlim_t>(before.rlim_max, 65'536));
  EXPECT_EQ(after.rlim_max, before.rlim_max);
}

class StackSelfTest : public ::testing::TestWithParam<Force> {};

TEST_P(StackSelfTest, a_process_sends_to_itself) {
  auto stack = Stack::acquire(options(GetParam())).value();
  auto self = stack->add_peer(stack->address());
  ASSERT_TRUE(self.ok()) << self.status().message();
  EXPECT_TRUE(stack->is_local(*self));
  EXPECT_EQ(stack->host_of(*self), stack->host());
  EXPECT_EQ(stack->incarnation_of(*self), stack->incarnation());
  std::vector<std::vector<std::byte>> out, in;
  Exchange exchange(*stack);
  for (std::size_t i = 0; i < kSizes.size(); ++i) {
    out.push_back(pattern(kSizes[i], i));
    in.emplace_back(kSizes[i]);
    exchange.send(*self, {1, i}, out[i].data(), kSizes[i]);
    exchange.recv(*self, {1, i}, Sink::place(in[i].data()), kSizes[i]);
  }
  const Status status = exchange.run(30 * kSecond);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(in, out);
  const StackStats stats = stack->stats();
  EXPECT_EQ(stats.packets_sent, 0u);
  EXPECT_EQ(stats.shm_messages, 0u);
  EXPECT_EQ(stats.bytes_copied, 0u);
  stack->close();
}

TEST_P(StackSelfTest, what_it_sends_itself_ends_with_the_stack) {
  Duration shortest = kNever;
  for (int i = 0; i < kTries && shortest >= kSecond; ++i) {
    auto stack = Stack::acquire(options(GetParam())).value();
    auto self = stack->add_peer(stack->address());
    ASSERT_TRUE(self.ok()) << self.status().message();
    std::uint64_t in = 0;
    Exchange exchange(*stack);
    exchange.recv(*self, {1, 1}, Sink::place(&in), 8);
    exchange.start();
    const Time begin = monotonic_now();
    stack->close();
    shortest = std::min(shortest, monotonic_now() - begin);
    ASSERT_TRUE(exchange.done());
    EXPECT_EQ(exchange.finish().code(), Code::kAborted);
  }
  EXPECT_LT(shortest, kSecond) << "there is nobody to linger for";
}

INSTANTIATE_TEST_SUITE_P(Transports, StackSelfTest,
                         ::testing::Values(Force::kUdp, Force::kShm, Force::kAuto),
                         [](const auto& instance) {
                           if (instance.param == Force::kAuto) return "automatic";
                           return instance.param == Force::kUdp ? "udp" : "shm";
                         });

// Ranks that are threads of one process.
TEST(StackSingletonTest, a_process_that_is_several_ranks_has_a_stack_for_each) {
  auto first = Stack::acquire(options(Force::kAuto)).value();
  auto second = acquire_beside({first.get()}, options(Force::kAuto)).value();
  EXPECT_NE(first, second);
  EXPECT_NE(first->incarnation(), second->incarnation());
  EXPECT_EQ(first->host(), second->host());
  EXPECT_EQ(acquire_beside({second.get()}, options(Force::kAuto)).value(), first);
  EXPECT_EQ(Stack::acquire(options(Force::kAuto)).value(), first);
  first->close();
  EXPECT_EQ(Stack::acquire(options(Force::kAuto)).value(), second);
  second->close();
}

// As a group does that ends while its Stack is being closed.
TEST(StackClosingTest, the_observer_may_be_taken_away_on_the_engine_meanwhile) {
  struct Detach final : Task {
    std::shared_ptr<Stack> stack;
    std::atomic<bool> begun{false}, done{false};
    void run_st(Transport&) override {
      begun = true;
      while (stack->usable().ok()) std::this_thread::yield();  // until close() has got going
      stack->set_observer(Service::kCollectives, nullptr);
      done = true;
    }
  };
  const auto statuses = run_processes({1, 20 * kSecond, {}}, [](Fellowship&) {
    Detach detach;
    detach.stack = Stack::acquire(options(Force::kAuto)).value();
    detach.stack->engine().submit(detach, false);
    while (!detach.begun) std::this_thread::yield();
    detach.stack->close();
    EXPECT_TRUE(detach.done);
  });
  EXPECT_EQ(statuses, std::vector<int>{0});
}

TEST(StackAddressTest, bad_addresses_are_refused_with_their_reason) {
  auto stack = Stack::acquire(options(Force::kAuto));
  ASSERT_TRUE(stack.ok()) << stack.status().message();
  EXPECT_LT(stack.value()->address().size(), 1024u);
  EXPECT_EQ(stack.value()->add_peer("nonsense").status().code(), Code::kInvalidArgument);
  std::string other = stack.value()->address();
  other[5] = 9;
  EXPECT_EQ(stack.value()->add_peer(other).status().code(), Code::kVersionMismatch);
}

TEST(StackOptionsTest, speed_and_device_of_the_interface_in_use_are_what_the_kernel_says) {
  const auto all = list_interfaces();
  ASSERT_TRUE(all.ok()) << all.status().message();
  for (const Interface& interface : all.value()) {
    if (!interface.up || is_link_local(interface.address)) continue;
    StackOptions named;
    named.interfaces = {interface.name};
    const auto made = Stack::acquire(named);
    ASSERT_TRUE(made.ok()) << made.status().message();
    const std::vector<UsedInterface> used = made.value()->interfaces();
    ASSERT_EQ(used.size(), 1u) << interface.name;
    EXPECT_EQ(used.front().name, interface.name);
    EXPECT_EQ(used.front().mbits, interface.mbits) << interface.name;
    EXPECT_EQ(used.front().pci, interface.pci) << interface.name;
    EXPECT_EQ(used.front().hardware_address, interface.hardware_address) << interface.name;
    made.value()->close();
  }
}

// The environment is read once in a process: a new one asks.
TEST(StackOptionsTest, an_unknown_interface_is_an_error_that_lists_the_known) {
  StackOptions wrong;
  wrong.interfaces = {"nosuch0"};
  const auto made = Stack::acquire(wrong);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), Code::kInvalidArgument);
  EXPECT_NE(made.status().message().find("nosuch0"), std::string::npos);
  EXPECT_NE(made.status().message().find("lo"), std::string::npos);
}

}  // namespace
}  // namespace taco::harp
