#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

namespace taco {

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

}  // namespace taco
