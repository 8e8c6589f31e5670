#include "support/shm_processes.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <new>

namespace taco::harp {

void ShmBoard::post(int rank, const ShmAddress& address) {
  entries[rank].address = address;
  entries[rank].pid = getpid();
  entries[rank].posted = true;
}

ShmAddress ShmBoard::await(int rank) const {
  while (!entries[rank].posted) usleep(100);
  return entries[rank].address;
}

void ShmBoard::await_stage(int at_least) const {
  while (stage < at_least) usleep(100);
}

ShmProcesses::ShmProcesses(int count, const std::function<void(int, ShmBoard&)>& run) {
  void* memory =
      mmap(nullptr, sizeof(ShmBoard), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  board_ = new (memory) ShmBoard;
  std::fflush(nullptr);
  for (int rank = 0; rank < count; rank++) {
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const rlimit no_core{0, 0};
      setrlimit(RLIMIT_CORE, &no_core);
      run(rank, *board_);
      std::fflush(nullptr);
      _exit(testing::Test::HasFailure() ? 1 : 0);
    }
    pids_.push_back(child);
    killed_.push_back(false);
  }
}

ShmProcesses::~ShmProcesses() {
  for (pid_t& pid : pids_) {
    if (pid <= 0) continue;
    ::kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  munmap(board_, sizeof(ShmBoard));
}

void ShmProcesses::kill(int rank) {
  killed_[rank] = true;
  ::kill(pids_[rank], SIGKILL);
}

bool ShmProcesses::await_death(int rank) {
  killed_[rank] = true;
  siginfo_t info{};
  return waitid(P_PID, static_cast<id_t>(pids_[rank]), &info, WEXITED | WNOWAIT) == 0 &&
         info.si_code == CLD_KILLED;
}

bool ShmProcesses::join(Duration within) {
  const Time deadline = monotonic_now() + within;
  bool good = true;
  for (std::size_t rank = 0; rank < pids_.size(); rank++) {
    int status = 0;
    while (waitpid(pids_[rank], &status, WNOHANG) == 0) {
      if (monotonic_now() > deadline) {
        ADD_FAILURE() << "rank " << rank << " has not ended";
        return false;
      }
      usleep(500);
    }
    pids_[rank] = 0;
    if (killed_[rank]) continue;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      ADD_FAILURE() << "rank " << rank << " ended with wait status " << status;
      good = false;
    }
  }
  return good;
}

}  // namespace taco::harp
