// A page of statistics from both sides: what its engine writes, and what others may make of it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <thread>

#include "harp/stat/stat_page.h"

namespace taco::harp::statistics {
namespace {

About about() {
  About made;
  made.pid = 77;
  set_text(made.driver, "udp");
  set_text(made.transport, "shm+udp(eth0)");
  return made;
}

std::unique_ptr<Page> page() {
  auto made = Page::create(about());
  EXPECT_TRUE(made.ok()) << made.status().message();
  return std::move(made).value();
}

State state_of(std::uint64_t value, std::size_t rows) {
  State state;
  state.totals.time = value;
  for (std::uint64_t& each : state.totals.counters) each = value;
  for (std::size_t i = 0; i < rows; ++i) {
    Row& row = state.rows.emplace_back();
    row.peer = static_cast<std::uint32_t>(i);
    row.bytes_sent = row.packets_sent = row.window = value;
    set_text(row.name, "10.0.0.2:4123 (pid 5 on nodeb)");
  }
  return state;
}

TEST(StatPage, shows_who_writes_it_and_what_was_written_last) {
  const auto made = page();
  made->publish(state_of(3, 2));
  made->publish(state_of(4, 1));
  auto view = View::open(made->fd());
  ASSERT_TRUE(view.ok()) << view.status().message();
  EXPECT_EQ(view->about().pid, 77u);
  EXPECT_EQ(text_of(view->about().driver), "udp");
  EXPECT_EQ(text_of(view->about().transport), "shm+udp(eth0)");
  const auto state = view->read();
  ASSERT_TRUE(state.ok());
  EXPECT_EQ(state.value().totals[Counter::kRetransmits], 4u);
  ASSERT_EQ(state.value().rows.size(), 1u);
  EXPECT_EQ(text_of(state.value().rows[0].name), "10.0.0.2:4123 (pid 5 on nodeb)");
}

TEST(StatPage, counts_the_rows_that_it_has_no_room_for) {
  const auto made = page();
  State state = state_of(1, kMaxRows + 7);
  state.totals.rows_left_out = 2;
  made->publish(state);
  const auto read = View::open(made->fd())->read();
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read.value().rows.size(), kMaxRows);
  EXPECT_EQ(read.value().totals.rows_left_out, 9u);
}

// All numbers of a state are the same here, so one that is put together of two would show.
TEST(StatPage, is_read_as_it_stood_at_one_moment) {
  const auto made = page();
  made->publish(state_of(0, 40));
  auto view = View::open(made->fd());
  ASSERT_TRUE(view.ok());
  constexpr std::uint64_t kLast = 200;
  std::thread writer([&] {
    for (std::uint64_t value = 1; value <= kLast; ++value) {
      made->publish(state_of(value, 40));
      std::this_thread::yield();
    }
  });
  for (std::uint64_t value = 0; value < kLast && !::testing::Test::HasFailure();) {
    const auto state = view->read();
    if (!state.ok()) continue;  // written at every look: told so, not shown
    value = state.value().totals.time;
    EXPECT_EQ(state.value().totals[Counter::kCreditOutstanding], value);
    for (const Row& row : state.value().rows) {
      EXPECT_EQ(row.bytes_sent, value);
      EXPECT_EQ(row.window, value);
    }
  }
  writer.join();
}

TEST(StatPage, cannot_be_made_shorter_or_longer_or_be_written_by_others) {
  const auto made = page();
  EXPECT_NE(ftruncate(made->fd(), 0), 0);
  EXPECT_NE(ftruncate(made->fd(), 2 * kPageBytes), 0);
  const std::string place = "/proc/self/fd/" + std::to_string(made->fd());
  const int fd = open(place.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return;  // the mode of the file is enough for users other than root
  EXPECT_NE(write(fd, "x", 1), 1);
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  close(fd);
}

TEST(StatPage, is_closed_in_a_forked_child) {
  const auto made = page();
  const pid_t child = fork();
  if (child == 0) _exit(fcntl(made->fd(), F_GETFD) < 0 ? 0 : 1);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

// Memory of the same name that somebody else has made: `bytes` of what a page begins with.
int memory_with(const About& content, std::size_t bytes, int seals) {
  const int fd = memfd_create(kMemoryName, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  EXPECT_EQ(ftruncate(fd, static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(pwrite(fd, &content, std::min(bytes, sizeof content), 0),
            static_cast<ssize_t>(std::min(bytes, sizeof content)));
  EXPECT_EQ(fcntl(fd, F_ADD_SEALS, seals), 0);
  return fd;
}

constexpr int kFixed = F_SEAL_SHRINK | F_SEAL_GROW;

TEST(StatView, names_a_layout_of_another_version) {
  About other = about();
  other.version = 9;
  const int fd = memory_with(other, kPageBytes, kFixed);
  const auto view = View::open(fd);
  EXPECT_EQ(view.status().code(), Code::kVersionMismatch);
  EXPECT_NE(view.status().message().find("layout 9"), std::string::npos);
  EXPECT_NE(view.status().message().find("reads layout 2"), std::string::npos);
  close(fd);
}

TEST(StatView, refuses_memory_that_may_shrink_is_short_or_is_something_else) {
  About blank = about();
  blank.magic = {};
  const struct {
    About content;
    std::size_t bytes;
    int seals;
  } cases[] = {{about(), kPageBytes, F_SEAL_GROW},
               {about(), sizeof(About) - 1, kFixed},
               {about(), sizeof(About), kFixed},
               {about(), 0, kFixed},
               {blank, kPageBytes, kFixed}};
  for (const auto& each : cases) {
    const int fd = memory_with(each.content, each.bytes, each.seals);
    EXPECT_FALSE(View::open(fd).ok()) << each.bytes << " bytes, seals " << each.seals;
    close(fd);
  }
}

// Written by hand: a sequence that stays odd, and numbers that no engine writes.
TEST(StatView, reads_nothing_beyond_the_page_and_names_one_that_is_never_finished) {
  const int fd = memory_with(about(), kPageBytes, kFixed);
  auto view = View::open(fd);
  ASSERT_TRUE(view.ok());
  Totals totals;
  totals.rows = UINT64_MAX;
  ASSERT_EQ(pwrite(fd, &totals, sizeof totals, kTotalsAt), ssize_t{sizeof totals});
  Row row;
  row.reach = static_cast<Reach>(200);
  row.standing = static_cast<Standing>(200);
  row.name.fill('x');
  row.name[3] = '\033';
  ASSERT_EQ(pwrite(fd, &row, sizeof row, kRowsAt), ssize_t{sizeof row});
  const auto state = view->read();
  ASSERT_TRUE(state.ok());
  ASSERT_EQ(state.value().rows.size(), kMaxRows);
  EXPECT_STREQ(name_of(state.value().rows[0].reach), "?");
  EXPECT_STREQ(name_of(state.value().rows[0].standing), "?");
  const std::string name = text_of(state.value().rows[0].name);
  EXPECT_EQ(name.size(), row.name.size());
  EXPECT_EQ(name.substr(0, 5), "xxx?x");
  const std::uint64_t odd = 1;
  ASSERT_EQ(pwrite(fd, &odd, sizeof odd, kSequenceAt), ssize_t{sizeof odd});
  EXPECT_EQ(view->read().status().code(), Code::kTimeout);
  close(fd);
}

}  // namespace
}  // namespace taco::harp::statistics
