// A descriptor's owner, and its copy in a forked child, where the number may be another file's.
#include "base/own_fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

namespace {

using taco::OwnFd;

int open_null() { return open("/dev/null", O_WRONLY | O_CLOEXEC); }
bool is_open(int number) { return fcntl(number, F_GETFD) >= 0; }

// The exit status of a child that runs `body`.
template <class Body>
int in_child(const Body& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(OwnFd, is_closed_with_its_owner_and_in_a_child) {
  int number = -1;
  {
    OwnFd one(open_null());
    OwnFd other = std::move(one);
    number = other.get();
    EXPECT_FALSE(one);
    EXPECT_TRUE(is_open(number));
    EXPECT_EQ(in_child([&] { return is_open(number) ? 1 : 0; }), 0);
  }
  EXPECT_FALSE(is_open(number));
}

TEST(OwnFd, of_a_parent_closes_no_file_of_a_forked_child) {
  OwnFd ended(open_null()), assigned(open_null()), reset(open_null());
  const int numbers[] = {ended.get(), assigned.get(), reset.get()};
  const int status = in_child([&] {
    const int own = open_null();
    for (const int number : numbers) dup2(own, number);
    { const OwnFd last = std::move(ended); }
    assigned = OwnFd();
    reset.reset();
    int closed = 0;
    for (const int number : numbers) closed += is_open(number) ? 0 : 1;
    return closed;
  });
  EXPECT_EQ(status, 0) << "files of the child's own were closed";
  for (const int number : numbers) EXPECT_TRUE(is_open(number)) << "the parent has lost its own";
}

// One of the child's own that has the number of its parent's is registered, and stays so.
TEST(OwnFd, of_a_child_survives_its_parents_of_the_same_number) {
  OwnFd parents(open_null());
  const int status = in_child([&] {
    const int number = parents.get();
    const int any = open_null();
    if (any != number) dup2(any, number);
    const OwnFd own(number);
    parents.reset();
    if (!is_open(number)) return 1;
    return in_child([&] { return is_open(number) ? 2 : 0; });
  });
  EXPECT_EQ(status, 0);
}

}  // namespace
