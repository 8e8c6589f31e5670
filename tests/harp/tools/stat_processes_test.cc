// The engines of other processes, as their pages in /proc show them.
#include "harp/tools/stat_processes.h"

#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "harp/tools/exchange.h"
#include "support/eventually.h"
#include "support/processes.h"
#include "support/stack_world.h"

namespace taco::harp::statistics {
namespace {

using ::taco::testing::eventually;
using ::taco::testing::Fellowship;
using ::taco::testing::run_processes;
using ::taco::testing::StackWorld;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void exchange_bytes(StackWorld& world, int other, std::uint64_t tag) {
  std::vector<std::byte> out(100'000), in(100'000);
  Exchange exchange(*world.stack);
  exchange.send(world.peer(other), {1, tag}, out.data(), out.size());
  exchange.recv(world.peer(other), {1, tag}, Sink::place(in.data()), in.size());
  ASSERT_TRUE(exchange.run().ok());
}

class Seen : public ::testing::TestWithParam<StackOptions::Force> {};

// Each rank looks at the other one.
TEST_P(Seen, an_engine_shows_its_peers_its_paths_and_its_traffic) {
  const auto statuses = run_processes({2, 60 * kSecond, {}}, [](Fellowship& fellowship) {
    const int other = 1 - fellowship.rank();
    const bool udp = GetParam() == StackOptions::Force::kUdp;
    const auto pids = fellowship.all_gather(std::to_string(getpid()));
    StackWorld world(fellowship, {.transport = GetParam()});
    exchange_bytes(world, other, 1);
    Look look;
    const Counter sent = udp ? Counter::kBytesSent : Counter::kShmBytesSent;
    EXPECT_TRUE(eventually([&] {
      auto looks = look_at(std::stoi(pids[other]));
      if (!looks.ok() || looks->looks.size() != 1) return false;
      look = looks->looks[0];
      return look.state.totals[sent] >= 100'000;
    }));
    EXPECT_EQ(text_of(look.about.driver), "udp");
    EXPECT_EQ(look.about.pid, static_cast<std::uint32_t>(std::stoi(pids[other])));
    const auto to_us = std::ranges::find(look.state.rows, std::uint32_t(getpid()), &Row::pid);
    ASSERT_NE(to_us, look.state.rows.end());
    EXPECT_EQ(to_us->reach, udp ? Reach::kNetwork : Reach::kMemory);
    EXPECT_EQ(to_us->standing, Standing::kLive);
    EXPECT_EQ(to_us->remote_port != 0, udp);
    EXPECT_EQ(look.state.totals[Counter::kSessions], udp ? 1u : 0u);
    fellowship.barrier();
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

INSTANTIATE_TEST_SUITE_P(Transports, Seen,
                         ::testing::Values(StackOptions::Force::kUdp, StackOptions::Force::kShm),
                         [](const auto& instance) {
                           return instance.param == StackOptions::Force::kUdp ? "udp" : "shm";
                         });

TEST(Looking, finds_every_engine_of_this_user_and_none_after_it_was_closed) {
  const auto statuses = run_processes({1, 60 * kSecond, {}}, [](Fellowship& fellowship) {
    const auto is_found = [] {
      return std::ranges::count(look_at_all().looks, getpid(), &Look::pid) == 1;
    };
    {
      StackWorld world(fellowship, {});
      EXPECT_TRUE(is_found());
      const pid_t child = fork();
      if (child == 0) {
        const Status status = look_at(getpid()).status();
        _exit(has(status.message(), "has no engine of HARP") ? 0 : 1);
      }
      int status = -1;
      waitpid(child, &status, 0);
      EXPECT_EQ(status, 0) << "a forked child kept its parent's page";
    }
    EXPECT_FALSE(is_found());
  });
  EXPECT_EQ(statuses, std::vector<int>{0});
}

TEST(Looking, says_by_name_why_a_process_cannot_be_shown) {
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  EXPECT_TRUE(has(look_at(child).status().message(),
                  "process " + std::to_string(child) + " (harp_stat_test) has no engine of HARP"));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(
      has(look_at(child).status().message(), "there is no process " + std::to_string(child)));
}

TEST(Looking, names_a_page_of_another_version_in_every_list) {
  auto other = memfd_create(kMemoryName, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  About about;
  about.version = 12;
  ASSERT_EQ(ftruncate(other, kPageBytes), 0);
  ASSERT_EQ(write(other, &about, sizeof about), ssize_t{sizeof about});
  ASSERT_EQ(fcntl(other, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  const std::string name = "process " + std::to_string(getpid()) + " (harp_stat_test)";
  EXPECT_EQ(look_at(getpid()).status().code(), Code::kVersionMismatch);
  EXPECT_TRUE(std::ranges::any_of(look_at_all().problems, [&](const std::string& each) {
    return has(each, name + " has statistics of layout 12");
  }));
  close(other);
}

std::unique_ptr<Page> page_of_engine(std::uint32_t engine) {
  About about;
  about.pid = static_cast<std::uint32_t>(getpid());
  about.engine = engine;
  auto page = Page::create(about);
  EXPECT_TRUE(page.ok()) << page.status().message();
  return page.ok() ? std::move(page).value() : nullptr;
}

// Anybody may dup the descriptor of a page, and whoever looks pays for each engine that it shows.
TEST(Looking, shows_an_engine_once_however_many_descriptors_its_page_has) {
  const auto page = page_of_engine(7);
  ASSERT_NE(page, nullptr);
  std::vector<OwnFd> more;
  for (int i = 0; i < 20; ++i) more.emplace_back(fcntl(page->fd(), F_DUPFD_CLOEXEC, 0));
  auto seen = look_at(getpid());
  ASSERT_TRUE(seen.ok()) << seen.status().message();
  ASSERT_EQ(seen->looks.size(), 1u);
  EXPECT_EQ(seen->looks[0].engine, 7);
  EXPECT_TRUE(seen->problems.empty());
}

TEST(Looking, shows_so_many_engines_of_a_process_and_says_that_there_are_more) {
  std::vector<std::unique_ptr<Page>> pages;
  for (std::uint32_t engine = 0; engine < 256; ++engine) {
    pages.push_back(page_of_engine(engine));
    ASSERT_NE(pages.back(), nullptr);
  }
  EXPECT_TRUE(look_at(getpid())->problems.empty());
  pages.push_back(page_of_engine(256));
  auto seen = look_at(getpid());
  ASSERT_TRUE(seen.ok()) << seen.status().message();
  EXPECT_EQ(seen->looks.size(), 256u);
  ASSERT_EQ(seen->problems.size(), 1u);
  const std::string name = "process " + std::to_string(getpid()) + " (harp_stat_test)";
  EXPECT_TRUE(has(seen->problems[0], name + " has more than 256 engines")) << seen->problems[0];
  const auto all = look_at_all();
  EXPECT_EQ(std::ranges::count(all.problems, seen->problems[0]), 1);
}

TEST(Looking, of_somebody_else_names_the_process_and_who_may) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become somebody else";
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    const bool changed = setgroups(0, nullptr) == 0 && setgid(65534) == 0 && setuid(65534) == 0;
    const std::string said = look_at(parent).status().message();
    const bool named = has(said, "this user may not look into process " + std::to_string(parent)) &&
                       has(said, "runs as root: run harp-stat as that user, or as root");
    _exit(changed && named ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

// A pipe whose link in /proc reads like that of a page: an open that waited for its writer would
// never end.
TEST(Statistics, AreNotWaitedForWhereAPipeBearsTheirName) {
  const std::string place = std::string("/memfd:") + kMemoryName;
  if (mkfifo(place.c_str(), 0600) != 0) GTEST_SKIP() << "no right to make " << place;
  const OwnFd pipe(open(place.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  unlink(place.c_str());
  ASSERT_TRUE(pipe);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    _exit(look_at(getppid()).ok() ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "it waited for the pipe";
}

}  // namespace
}  // namespace taco::harp::statistics
