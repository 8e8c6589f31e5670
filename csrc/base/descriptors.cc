#include "base/descriptors.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

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

bool is_out_of_descriptors() {
  const int one = eventfd(0, EFD_CLOEXEC);
  if (one >= 0) close(one);
  return one < 0 && errno == EMFILE;
}

std::uint32_t descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  return static_cast<std::uint32_t>(std::min<rlim_t>(limit.rlim_cur, UINT32_MAX));
}

std::string descriptor_limit_text() {
  const std::uint32_t limit = descriptor_limit();
  return "the limit is " + (limit == 0 ? "unknown" : std::to_string(limit)) +
         " (ulimit -n), allow this process more";
}

bool says_no_descriptor(int error) { return error == EMFILE || error == ETOOMANYREFS; }

bool is_shortage(int error) {
  return says_no_descriptor(error) || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

std::string system_error_text(int error) {
  const std::string text = strerror(error);
  return says_no_descriptor(error) ? text + "; " + descriptor_limit_text() : text;
}

}  // namespace taco
