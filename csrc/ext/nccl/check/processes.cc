#include "ext/nccl/check/processes.h"

#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <thread>
#include <utility>

#include "base/file.h"
#include "base/parse_number.h"

extern char** environ;

namespace harp::nccl::check {
namespace {

// A folder that ends with this object.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "harp-nccl-XXXXXX").string();
    if (mkdtemp(name.data()) != nullptr) name_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    if (!name_.empty()) std::filesystem::remove_all(name_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& name() const { return name_; }

 private:
  std::string name_;
};

// -1: it could not be started.
pid_t start(const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  arguments.reserve(command.size() + 1);
  for (const std::string& each : command) arguments.push_back(const_cast<char*>(each.c_str()));
  arguments.push_back(nullptr);
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, arguments[0], nullptr, nullptr, arguments.data(), environ);
  return error == 0 ? pid : -1;
}

std::string why_of(const std::string& folder, int rank) {
  return folder + "/why." + std::to_string(rank);
}

struct Ended {
  int status = -1;  // -1: not yet
  bool by_the_deadline = false;
};

// "": as it should. One that is to be killed does it itself, by SIGKILL.
std::string how_it_ended(const Ended& ended, bool was_to_be_killed, const std::string& said) {
  const int status = ended.status;
  if (ended.by_the_deadline) return said.empty() ? "did not end in time" : said;
  if (was_to_be_killed && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return "";
  if (!said.empty()) return said;
  if (WIFSIGNALED(status)) return std::string("ended by signal ") + strsignal(WTERMSIG(status));
  if (WEXITSTATUS(status) == 0) return was_to_be_killed ? "went on living" : "";
  return "exit status " + std::to_string(WEXITSTATUS(status));
}

// Waits for all, and ends those that are left at `deadline`.
std::vector<Ended> await(const std::vector<pid_t>& pids, taco::Time deadline) {
  std::vector<Ended> all(pids.size());
  std::size_t left = pids.size();
  bool ended = false;
  while (left > 0) {
    for (std::size_t i = 0; i < pids.size(); ++i) {
      if (all[i].status == -1 && waitpid(pids[i], &all[i].status, WNOHANG) == pids[i]) --left;
    }
    if (!ended && taco::monotonic_now() > deadline) {
      for (std::size_t i = 0; i < pids.size(); ++i) {
        if (all[i].status != -1) continue;
        kill(pids[i], SIGKILL);
        all[i].by_the_deadline = true;
      }
      ended = true;
    }
    constexpr timespec kBetweenLooks{0, 5'000'000};
    if (left > 0) nanosleep(&kBetweenLooks, nullptr);
  }
  return all;
}

std::vector<std::string> command_of(const Check& check, const Part& part, const std::string& folder,
                                    int rank) {
  std::vector<std::string> command;
  if (!part.namespaces.empty()) {
    const auto at = static_cast<std::size_t>(rank) % part.namespaces.size();
    command = {"ip", "netns", "exec", part.namespaces[at]};
  }
  for (const std::string& each :
       {part.program, std::string("--rank"), std::to_string(rank), folder, std::string(check.name),
        std::to_string(part.table), std::to_string(part.limit / taco::kMillisecond), part.plugin}) {
    command.push_back(each);
  }
  return command;
}

}  // namespace

std::string run(const Check& check, const Part& part) {
  const Folder folder;
  if (folder.name().empty()) return std::string("no folder for its files: ") + strerror(errno);
  std::vector<pid_t> pids;
  pids.reserve(static_cast<std::size_t>(check.processes));
  for (int rank = 0; rank < check.processes; ++rank) {
    pids.push_back(start(command_of(check, part, folder.name(), rank)));
  }
  // The processes know when it is over, and have a moment to say what was missing.
  const auto all = await(pids, taco::monotonic_now() + part.limit + 5 * taco::kSecond);
  std::string why;
  for (int rank = 0; rank < check.processes; ++rank) {
    const std::string ended =
        how_it_ended(all[static_cast<std::size_t>(rank)], rank == check.killed,
                     taco::read_file(why_of(folder.name(), rank)));
    if (!ended.empty()) {
      why += (why.empty() ? "process " : "; process ") + std::to_string(rank) + ": " + ended;
    }
  }
  return why;
}

int play(const std::vector<std::string>& arguments) {
  constexpr std::size_t kArguments = 7;
  if (arguments.size() != kArguments) return 2;
  const int rank = taco::parse_number<int>(arguments[1]).value_or(0);
  const std::string& folder = arguments[2];
  const Check* const check = check_named(arguments[3]);
  const int table = taco::parse_number<int>(arguments[4]).value_or(0);
  const long limit = taco::parse_number<long>(arguments[5]).value_or(0);
  if (check == nullptr) return 2;
  Fellows fellows(folder, rank, check->processes,
                  taco::monotonic_now() + limit * taco::kMillisecond);
  Stage stage{arguments[6], table, fellows};
  const Status status = check->run(stage);
  if (status.ok()) return 0;
  taco::write_file(why_of(folder, rank), status.message());
  return 1;
}

}  // namespace harp::nccl::check
