#include "harp/tools/stat_processes.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>
#include <utility>

#include "base/file.h"
#include "base/names.h"
#include "base/parse_number.h"

namespace taco::harp::statistics {
namespace {

// An error that only says that there is no engine, which most processes have not.
constexpr Code kNone = Code::kUnsupported;
// A process has far fewer: whoever makes more must not have this one take a gigabyte.
constexpr std::size_t kMostEngines = 256;

// A page by its device and inode, which all its descriptors share.
using PageName = std::pair<dev_t, ino_t>;

std::string folder_of(pid_t pid) { return "/proc/" + std::to_string(pid); }

std::string program_of(pid_t pid) {
  std::string name = read_file(folder_of(pid) + "/comm");
  while (!name.empty() && name.back() == '\n') name.pop_back();
  return printable(name);
}

std::string called(pid_t pid) {
  return "process " + std::to_string(pid) + " (" + program_of(pid) + ")";
}

std::string owner_of(pid_t pid) {
  struct stat folder {};
  if (::stat(folder_of(pid).c_str(), &folder) != 0) return "another user";
  const passwd* entry = getpwuid(folder.st_uid);
  return entry != nullptr ? entry->pw_name : "user " + std::to_string(folder.st_uid);
}

Status refusal_of(pid_t pid, int error) {
  if (error == ENOENT || error == ESRCH) {
    return Status(Code::kInvalidArgument, "there is no process " + std::to_string(pid) +
                                              ": it has ended, or lives in another container");
  }
  if (error == EACCES || error == EPERM) {
    return Status(Code::kInvalidArgument, "this user may not look into " + called(pid) +
                                              ", which runs as " + owner_of(pid) +
                                              ": run harp-stat as that user, or as root");
  }
  return Status(Code::kResource, called(pid) + " cannot be looked into: " + strerror(error));
}

// The numbers of those descriptors that are pages of statistics, by their name.
Result<std::vector<int>> pages_of(pid_t pid) {
  std::vector<int> found;
  std::error_code error;
  const std::filesystem::path folder = folder_of(pid) + "/fd";
  const std::string name = std::string("/memfd:") + kMemoryName + " (deleted)";
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    char target[64];
    const ssize_t bytes = readlink(entry->path().c_str(), target, sizeof target);
    if (bytes < 0 && (errno == EACCES || errno == EPERM)) return refusal_of(pid, errno);
    if (bytes < 0 || std::string_view(target, static_cast<std::size_t>(bytes)) != name) continue;
    if (const auto fd = parse_number<int>(entry->path().filename().native())) found.push_back(*fd);
  }
  if (error) return refusal_of(pid, error.value());
  std::ranges::sort(found);
  return found;
}

struct Opened {
  std::uint64_t identity = 0;
  View view;
};

// kNone also where it is one of those `seen`, to which it is added.
Result<Opened> open_page(pid_t pid, int number, std::set<PageName>& seen) {
  const std::string place = folder_of(pid) + "/fd/" + std::to_string(number);
  // The file may be of any kind: an open that waits, as for a pipe's writer, might never end.
  const OwnFd fd(open(place.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd) return errno == ENOENT ? Status(kNone, "") : refusal_of(pid, errno);
  struct stat file {};
  fstat(fd.get(), &file);
  if (!seen.emplace(file.st_dev, file.st_ino).second) return Status(kNone, "");
  auto view = View::open(fd.get());
  if (view.ok()) return Opened{file.st_ino, std::move(view).value()};
  // One that is only just being made is none yet.
  if (view.status().code() == Code::kInvalidArgument) return Status(kNone, "");
  return view.status().with_prefix(called(pid) + " ");
}

Status no_engine(pid_t pid) {
  return Status(kNone, called(pid) +
                           " has no engine of HARP: it does not use taco_torch, has not made its "
                           "first process group yet, or has closed the last one");
}

}  // namespace

Result<Everything> look_at(pid_t pid) {
  const auto numbers = pages_of(pid);
  if (!numbers.ok()) return numbers.status();
  Everything all;
  std::set<PageName> seen;
  for (const int number : numbers.value()) {
    auto page = open_page(pid, number, seen);
    if (!page.ok() && page.status().code() == kNone) continue;
    if (!page.ok()) return page.status();
    if (all.looks.size() == kMostEngines) {
      all.problems.push_back(called(pid) + " has more than " + std::to_string(kMostEngines) +
                             " engines, and the others are not shown: ask " + owner_of(pid) +
                             ", who runs it, what they are for");
      break;
    }
    auto state = page->view.read();
    if (!state.ok()) return state.status().with_prefix(called(pid) + " ");
    Look& look = all.looks.emplace_back();
    look.pid = pid;
    look.program = program_of(pid);
    look.engine = static_cast<int>(page->view.about().engine);
    look.identity = page->identity;
    look.seen = monotonic_now();
    look.about = page->view.about();
    look.state = std::move(state).value();
  }
  if (all.looks.empty()) return no_engine(pid);
  std::ranges::sort(all.looks, {}, &Look::engine);
  return all;
}

void Everything::add(Everything&& more) {
  std::ranges::move(more.looks, std::back_inserter(looks));
  std::ranges::move(more.problems, std::back_inserter(problems));
}

Everything look_at_all() {
  Everything all;
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc", error), end; !error && entry != end;
       entry.increment(error)) {
    const auto pid = parse_number<pid_t>(entry->path().filename().native());
    if (!pid) continue;
    auto looks = look_at(*pid);
    if (looks.ok()) {
      all.add(std::move(looks).value());
    } else if (looks.status().code() != kNone && looks.status().code() != Code::kInvalidArgument) {
      all.problems.push_back(looks.status().message());
    }
  }
  std::ranges::sort(all.looks, {},
                    [](const Look& look) { return std::pair(look.pid, look.engine); });
  return all;
}

}  // namespace taco::harp::statistics
