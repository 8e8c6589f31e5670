// Digests and keys in a process and in its forked children.
#include "harp/secret.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <thread>

#include "base/fork.h"
#include "harp/session/sealing.h"

namespace taco::harp {
namespace {

constexpr unsigned kDeadlineSeconds = 20;

void make_digest() {
  const Digest key{};
  hmac_sha256(key, key);
}

void make_keys() {
  for (const PacketKey::Use use : {PacketKey::Use::kSeal, PacketKey::Use::kOpen}) {
    const PacketKey key(Digest{}, use);
  }
}

// In a process that has computed nothing yet, since the library takes its locks for good reasons
// only at first, and as a thread ends. Fails unless its child computes, too.
[[noreturn]] void fork_beside_a_thread(void (*compute)(), int microseconds) {
  fork_generation();  // as engines do before they have threads: it installs the handler
  std::thread beside(compute);
  usleep(static_cast<useconds_t>(microseconds));
  const pid_t child = fork();
  if (child == 0) {
    alarm(kDeadlineSeconds);
    compute();
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  beside.join();
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

void expect_children_compute(void (*compute)()) {
  if (!kChildrenMayAllocate) GTEST_SKIP() << "a forked child can find the allocator locked";
  constexpr int kProcesses = 300;
  for (int i = 0; i < kProcesses; ++i) {
    const pid_t process = fork();
    if (process == 0) fork_beside_a_thread(compute, i * 10);
    int status = -1;
    ASSERT_EQ(waitpid(process, &status, 0), process);
    ASSERT_EQ(status, 0) << "forked after " << i * 10 << " us: its child has waited for a lock";
  }
}

TEST(Secret, AChildThatIsForkedBesideAThreadThatMakesADigestMakesItsOwn) {
  expect_children_compute(make_digest);
}

TEST(Secret, AChildThatIsForkedBesideAThreadThatMakesKeysMakesItsOwn) {
  expect_children_compute(make_keys);
}

// RFC 4231: test cases 1, 2, 6 and 7, with keys shorter and longer than a block.
TEST(Secret, HmacsAreThoseOfTheRfc) {
  const auto bytes = [](std::string_view text) { return std::as_bytes(std::span(text)); };
  const auto hex = [](const Digest& digest) {
    std::string text;
    for (const std::byte byte : digest) {
      char digits[3];
      std::snprintf(digits, sizeof digits, "%02x", std::to_integer<unsigned>(byte));
      text += digits;
    }
    return text;
  };
  const std::string short_key(20, '\x0b'), long_key(131, '\xaa');
  EXPECT_EQ(hex(hmac_sha256(bytes(short_key), bytes("Hi There"))),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hex(hmac_sha256(bytes("Jefe"), bytes("what do ya want for nothing?"))),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hex(hmac_sha256(bytes(long_key),
                            bytes("Test Using Larger Than Block-Size Key - Hash Key First"))),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  EXPECT_EQ(
      hex(hmac_sha256(bytes(long_key),
                      bytes("This is a test using a larger than block-size key and a larger than "
                            "block-size data. The key needs to be hashed before being used by the "
                            "HMAC algorithm."))),
      "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

}  // namespace
}  // namespace taco::harp
