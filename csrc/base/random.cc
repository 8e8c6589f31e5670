#include "base/random.h"

#include <sys/random.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace taco {

void fill_random(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = getrandom(bytes.data(), bytes.size(), 0);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(got));
    } else if (errno != EINTR) {
      std::fprintf(stderr,
                   "taco: the kernel gives this process no random numbers (getrandom: %s)\n",
                   std::strerror(errno));
      std::abort();
    }
  }
}

}  // namespace taco
