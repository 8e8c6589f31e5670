#include "pg/c10d/hang_dump.h"

#include <semaphore.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/per_process.h"
#include "base/thread.h"
#include "pg/communicator.h"

namespace taco::pg {
namespace {

// Outlives every HangDump: a late signal may still be on its way.
sem_t* wake_up() {
  static sem_t* semaphore = [] {
    auto* made = new sem_t;
    sem_init(made, 0, 0);
    return made;
  }();
  return semaphore;
}

void on_signal(int) {
  const int saved = errno;
  sem_post(wake_up());
  errno = saved;
}

struct Shared {
  std::mutex mutex;
  std::weak_ptr<HangDump> dump;
};

constinit PerProcess<Shared> shared;

}  // namespace

std::shared_ptr<HangDump> HangDump::acquire() {
  std::lock_guard lock(shared().mutex);
  std::shared_ptr<HangDump> instance = shared().dump.lock();
  if (!instance) {
    instance = std::make_shared<HangDump>();
    shared().dump = instance;
  }
  return instance;
}

HangDump::HangDump() : owner_(getpid()) {
  wake_up();
  struct sigaction before;
  if (sigaction(SIGUSR2, nullptr, &before) != 0) return;
  const bool is_inherited = before.sa_handler == on_signal;  // by a forked child, without a thread
  if (before.sa_handler != SIG_DFL && !is_inherited) return;
  struct sigaction ours {};
  ours.sa_handler = on_signal;
  ours.sa_flags = SA_RESTART;
  sigemptyset(&ours.sa_mask);
  installed_ = sigaction(SIGUSR2, &ours, nullptr) == 0;
  if (!installed_) return;
  // The thread must not become the one that runs the program's other handlers.
  auto thread = start_thread("taco-dump", [this] { run(); });
  if (!thread.ok()) {
    TACO_LOG_WARNING("pg", "%s; SIGUSR2 shows nothing", thread.status().message().c_str());
    sigaction(SIGUSR2, &before, nullptr);
    installed_ = false;
    return;
  }
  thread_ = std::move(thread).value();
}

HangDump::~HangDump() {
  if (!installed_) return;
  if (getpid() != owner_) {
    thread_.detach();
    return;
  }
  struct sigaction now;
  if (sigaction(SIGUSR2, nullptr, &now) == 0 && now.sa_handler == on_signal) {
    struct sigaction none {};
    none.sa_handler = SIG_DFL;
    sigaction(SIGUSR2, &none, nullptr);
  }
  stop_.store(true);
  sem_post(wake_up());
  thread_.join();
}

void HangDump::run() {
  while (true) {
    while (sem_wait(wake_up()) != 0 && errno == EINTR) {
    }
    if (stop_.load()) return;
    log(LogLevel::kError, "pg", "SIGUSR2: what every group is doing");
    std::istringstream lines(dump_all_groups());
    for (std::string line; std::getline(lines, line);) {
      log(LogLevel::kError, "pg", "%s", line.c_str());
    }
  }
}

}  // namespace taco::pg
