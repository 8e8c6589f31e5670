#include "base/random.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <vector>

namespace taco {
namespace {

TEST(Random, FillsAllOfWhatItIsGivenAndNothingElse) {
  std::vector<std::byte> bytes(5000, std::byte{0});
  fill_random(std::span(bytes).first(4096));
  // 64 bytes that are zero by chance: one in 2^512.
  for (std::size_t at = 0; at < 4096; at += 64) {
    EXPECT_TRUE(std::any_of(bytes.begin() + at, bytes.begin() + at + 64, [](std::byte byte) {
      return byte != std::byte{0};
    })) << at;
  }
  EXPECT_TRUE(std::all_of(bytes.begin() + 4096, bytes.end(),
                          [](std::byte byte) { return byte == std::byte{0}; }));
}

TEST(Random, GivesOtherValuesEachTime) {
  using Secret = std::array<std::byte, 32>;
  EXPECT_NE(random_value<Secret>(), random_value<Secret>());
}

// As a sandbox that forbids the call.
void refuse_random_numbers() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getrandom, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{std::size(filter), filter};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0);
}

TEST(Random, WhereThereIsNoneTheProcessEndsAndSaysSo) {
  EXPECT_DEATH(
      {
        refuse_random_numbers();
        (void)random_value<std::uint64_t>();
      },
      "gives this process no random numbers \\(getrandom: Operation not permitted\\)");
}

}  // namespace
}  // namespace taco
