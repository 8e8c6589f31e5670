// Digests in a process and in its forked children.
#include "harp/secret.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "base/fork.h"

namespace taco::harp {
namespace {

constexpr unsigned kDeadlineSeconds = 20;

void digest() {
  const Digest key{};
  hmac_sha256(key, key);
}

// In a process that has computed nothing yet, since the library takes its locks for good reasons
// only at first. Returns whether its child got a digest.
[[noreturn]] void fork_while_a_thread_begins(int microseconds) {
  fork_generation();  // as engines do before they have threads: it installs the handler
  std::thread beginning(digest);
  usleep(static_cast<useconds_t>(microseconds));
  const pid_t child = fork();
  if (child == 0) {
    alarm(kDeadlineSeconds);
    digest();
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  beginning.join();
  _exit(status == 0 ? 0 : 1);
}

// glibc's malloc is whole in a forked child, ASan's may be locked for good: by a thread that
// returns its memory as it ends, say. Then the child waits for that, before any lock of the
// library.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kChildrenMayAllocate = false;
#else
constexpr bool kChildrenMayAllocate = true;
#endif

TEST(Secret, AChildThatIsForkedWhileAThreadComputesADigestComputesItsOwn) {
  if (!kChildrenMayAllocate) GTEST_SKIP() << "a forked child can find the allocator locked";
  constexpr int kProcesses = 300;
  for (int i = 0; i < kProcesses; ++i) {
    const pid_t process = fork();
    if (process == 0) fork_while_a_thread_begins(i * 10);
    int status = -1;
    ASSERT_EQ(waitpid(process, &status, 0), process);
    ASSERT_EQ(status, 0) << "forked after " << i * 10 << " us: its child has waited for a lock";
  }
}

}  // namespace
}  // namespace taco::harp
