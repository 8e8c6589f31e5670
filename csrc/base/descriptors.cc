#include "base/descriptors.h"

#include <sys/resource.h>

#include <algorithm>

namespace taco {
namespace {

constexpr rlim_t kEnoughDescriptors = 65'536;

}  // namespace

void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = std::min(limit.rlim_max, kEnoughDescriptors);
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = wanted;
  setrlimit(RLIMIT_NOFILE, &limit);
}

std::string descriptor_limit_text() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return "the limit is unknown (ulimit -n)";
  return "the limit is " + std::to_string(limit.rlim_cur) + " (ulimit -n)";
}

}  // namespace taco
