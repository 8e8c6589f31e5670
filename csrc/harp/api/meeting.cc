#include "harp/api/meeting.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/own_fd.h"

namespace harp {
namespace {

using taco::Code;
using taco::Status;

constexpr timespec kBetweenLooks{0, 10'000'000};

Status write_whole(const std::string& place, const std::string& text) {
  const std::string part = place + ".part";
  unlink(part.c_str());
  const taco::OwnFd fd(open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  const bool is_written =
      fd && write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (is_written && rename(part.c_str(), place.c_str()) == 0) return {};
  return Status(Code::kRendezvous, place + " cannot be written: " + strerror(errno));
}

}  // namespace

taco::Result<std::string> exchange_by_files(const std::string& own, const std::string& theirs,
                                            const std::string& said, taco::Duration timeout) {
  TACO_RETURN_IF_ERROR(write_whole(own, said));
  const taco::Time now = taco::monotonic_now();
  const taco::Time limit = timeout < taco::kNever - now ? now + timeout : taco::kNever;
  for (;;) {
    std::string heard = taco::read_file(theirs);
    if (!heard.empty()) return heard;
    if (taco::monotonic_now() >= limit) {
      return Status(Code::kRendezvous, "the other process did not come: there is no " + theirs);
    }
    nanosleep(&kBetweenLooks, nullptr);
  }
}

}  // namespace harp
