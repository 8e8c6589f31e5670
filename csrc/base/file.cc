#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "base/own_fd.h"

namespace taco {

namespace {

constexpr timespec kBetweenLooks{0, 10'000'000};

}  // namespace

std::string read_file(const std::string& path, std::size_t most) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return "";
  std::string text;
  for (char part[16 * 1024];;) {
    const ssize_t got = read(fd, part, sizeof part);
    if (got < 0 && errno == EINTR) continue;
    if (got > 0) text.append(part, static_cast<std::size_t>(got));
    if (got < 0 || text.size() > most) text.clear();
    if (got <= 0 || text.empty()) break;
  }
  close(fd);
  return text;
}

bool write_file(const std::string& path, const std::string& text) {
  const std::string part = path + ".part";
  unlink(part.c_str());
  const OwnFd fd(open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  const bool is_written =
      fd && write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
  return is_written && rename(part.c_str(), path.c_str()) == 0;
}

std::string await_file(const std::string& path, Time limit) {
  for (;;) {
    std::string text = read_file(path);
    if (!text.empty() || monotonic_now() >= limit) return text;
    nanosleep(&kBetweenLooks, nullptr);
  }
}

}  // namespace taco
