#include "base/thread.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>
#include <system_error>
#include <utility>

namespace taco {
namespace {

constexpr std::uint64_t kShortTurn = 100'000;  // ns, the least that there is

// As <linux/sched/types.h> has it, which cannot be included beside <sched.h>.
struct Scheduling {
  std::uint32_t size = sizeof(Scheduling);
  std::uint32_t policy = 0;
  std::uint64_t flags = 0;
  std::int32_t nice = 0;
  std::uint32_t priority = 0;
  std::uint64_t runtime = 0;  // of an ordinary thread: its turn; 0: the kernel's choice
  std::uint64_t deadline = 0, period = 0;
};

bool get(Scheduling* now) { return syscall(SYS_sched_getattr, 0, now, sizeof *now, 0) == 0; }
bool set(Scheduling wanted) { return syscall(SYS_sched_setattr, 0, &wanted, 0) == 0; }

}  // namespace

Result<std::thread> start_thread(const char* name, std::function<void()> body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread;
  int error = 0;
  try {
    thread = std::thread(std::move(body));
  } catch (const std::system_error& failure) {
    error = failure.code().value();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) {
    return Status(Code::kResource, std::string("no thread ") + name + ": " + strerror(error));
  }
  pthread_setname_np(thread.native_handle(), std::string(name).substr(0, 15).c_str());
  return thread;
}

// A turn that cannot be had is no error: all works without, though more slowly beside others on the
// core.
ShortTurns::ShortTurns() {
  Scheduling now;
  if (!get(&now) || now.policy != SCHED_OTHER) return;
  before_ = std::exchange(now.runtime, kShortTurn);
  changed_ = set(now);
}

ShortTurns::~ShortTurns() {
  Scheduling now;
  if (!changed_ || !get(&now) || now.policy != SCHED_OTHER) return;
  now.runtime = before_;
  set(now);
}

}  // namespace taco
