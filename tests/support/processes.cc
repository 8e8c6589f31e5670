#include "support/processes.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <thread>

namespace taco::testing {

namespace {

// A sanitized program takes several times as long, and a deadline must mean a hang.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kPatience = 4;
#else
constexpr int kPatience = 1;
#endif

bool write_all(int fd, const void* data, std::size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = send(fd, at, bytes, MSG_NOSIGNAL);
    if (written <= 0) return false;
    at += written;
    bytes -= static_cast<std::size_t>(written);
  }
  return true;
}

bool read_all(int fd, void* data, std::size_t bytes) {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = read(fd, at, bytes);
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

bool write_message(int fd, const std::string& message) {
  const auto length = static_cast<std::uint32_t>(message.size());
  return write_all(fd, &length, sizeof length) && write_all(fd, message.data(), length);
}

bool read_message(int fd, std::string* message) {
  std::uint32_t length = 0;
  if (!read_all(fd, &length, sizeof length)) return false;
  message->resize(length);
  return read_all(fd, message->data(), length);
}

struct Child {
  pid_t pid = -1;
  int fd = -1;
  bool alive = true, arrived = false;
  int status = -1;
  std::string message;
};

[[noreturn]] void run_child(const ProcessOptions& options, int rank, int fd,
                            const std::function<void(Fellowship&)>& body) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (!options.namespaces.empty()) {
    const std::string path = "/var/run/netns/" + options.namespaces[rank];
    const int space = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (space < 0 || setns(space, CLONE_NEWNET) != 0) {
      fprintf(stderr, "rank %d cannot enter %s\n", rank, path.c_str());
      _exit(3);
    }
    close(space);
  }
  Fellowship fellowship(rank, options.count, fd);
  body(fellowship);
  fflush(nullptr);
  _exit(::testing::Test::HasFailure() ? 1 : 0);
}

// Hands everybody's words to everybody once all that live have spoken.
void relay(std::vector<Child>& children) {
  bool any = false;
  for (const Child& child : children) {
    if (child.alive && !child.arrived) return;
    any |= child.alive;
  }
  if (!any) return;
  for (Child& to : children) {
    if (!to.alive) continue;
    for (const Child& from : children) write_message(to.fd, from.message);
  }
  for (Child& child : children) {
    child.arrived = false;
    child.message.clear();
  }
}

}  // namespace

std::vector<std::string> Fellowship::all_gather(const std::string& own) {
  std::vector<std::string> all(world_);
  bool good = write_message(fd_, own);
  for (std::string& each : all) good = good && read_message(fd_, &each);
  EXPECT_TRUE(good) << "the parent is gone";
  return all;
}

std::vector<int> run_processes(const ProcessOptions& options,
                               const std::function<void(Fellowship&)>& body) {
  fflush(nullptr);
  std::vector<Child> children(options.count);
  for (int rank = 0; rank < options.count; ++rank) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) abort();
    const pid_t pid = fork();
    if (pid == 0) {
      close(pair[0]);
      for (const Child& other : children) {
        if (other.fd >= 0) close(other.fd);
      }
      run_child(options, rank, pair[1], body);
    }
    close(pair[1]);
    children[rank].pid = pid;
    children[rank].fd = pair[0];
  }

  const Time limit = monotonic_now() + kPatience * options.deadline;
  for (int alive = options.count; alive > 0;) {
    std::vector<pollfd> wait;
    for (const Child& child : children) {
      wait.push_back({child.alive && !child.arrived ? child.fd : -1, POLLIN, 0});
    }
    poll(wait.data(), wait.size(), 20);
    for (std::size_t i = 0; i < children.size(); ++i) {
      Child& child = children[i];
      if (child.alive && (wait[i].revents & POLLIN) != 0) {
        child.arrived = read_message(child.fd, &child.message);
      }
      if (child.alive && waitpid(child.pid, &child.status, WNOHANG) == child.pid) {
        child.alive = false;
        child.arrived = false;
        child.message.clear();
        --alive;
      }
    }
    relay(children);
    if (alive > 0 && monotonic_now() > limit) {
      for (Child& child : children) {
        if (!child.alive) continue;
        ADD_FAILURE() << "rank " << &child - children.data() << " did not end in time";
        kill(child.pid, SIGKILL);
        waitpid(child.pid, &child.status, 0);
        child.alive = false;
      }
      break;
    }
  }
  std::vector<int> statuses;
  for (Child& child : children) {
    close(child.fd);
    statuses.push_back(child.status);
  }
  return statuses;
}

int count_descriptors() {
  int count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (folder != nullptr && readdir(folder) != nullptr) ++count;
  if (folder != nullptr) closedir(folder);
  return count - 3;  // ".", ".." and the folder itself
}

namespace {
template <class Visit>
void for_each_thread(const Visit& visit) {
  DIR* folder = opendir("/proc/self/task");
  while (const dirent* entry = folder != nullptr ? readdir(folder) : nullptr) {
    if (entry->d_name[0] != '.') visit(std::string(entry->d_name));
  }
  if (folder != nullptr) closedir(folder);
}
}  // namespace

int count_threads() {
  // ThreadSanitizer keeps a thread of its own from the first one on.
  static const bool begun = (std::thread([] {}).join(), true);
  static_cast<void>(begun);
  int count = 0;
  for_each_thread([&](const std::string&) { ++count; });
  return count;
}

std::string thread_names() {
  std::string names;
  for_each_thread([&](const std::string& id) {
    std::string name;
    std::getline(std::ifstream("/proc/self/task/" + id + "/comm"), name);
    names += name + " ";
  });
  return names;
}

double processor_seconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

}  // namespace taco::testing
