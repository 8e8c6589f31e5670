#include "base/fork.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>

#include "base/log.h"

namespace taco {

namespace {

constexpr int kSlots = 4096;
constexpr int kFree = -1;

// Slots hold fd + 1, so that zero-initialised memory is an empty table.
std::atomic<int> slots[kSlots];
std::atomic<int> slots_used{0};  // all slots in use lie below
std::atomic<std::uint32_t> generation{0};
pthread_mutex_t forking = PTHREAD_MUTEX_INITIALIZER;

void before_fork() { pthread_mutex_lock(&forking); }

void in_parent() { pthread_mutex_unlock(&forking); }

void in_child() {
  pthread_mutex_unlock(&forking);
  generation.fetch_add(1, std::memory_order_relaxed);
  const int used = slots_used.load(std::memory_order_relaxed);
  for (int i = 0; i < used; ++i) {
    const int fd = slots[i].exchange(0, std::memory_order_relaxed) + kFree;
    if (fd >= 0) close(fd);
  }
}

// Asked for twice by every operation: a static costs one look at a byte, std::call_once 40 times
// that.
void install_handler() {
  [[maybe_unused]] static const int installed = pthread_atfork(before_fork, in_parent, in_child);
}

}  // namespace

void close_on_fork(int fd) {
  install_handler();
  for (int i = 0; i < kSlots; ++i) {
    int expected = 0;
    if (slots[i].load(std::memory_order_relaxed) != 0) continue;
    if (!slots[i].compare_exchange_strong(expected, fd + 1)) continue;
    int used = slots_used.load();
    while (used < i + 1 && !slots_used.compare_exchange_weak(used, i + 1)) {
    }
    return;
  }
  TACO_LOG_WARNING("base", "descriptor %d will be inherited by forked children: table full", fd);
}

void close_now(int fd) {
  // Out of the table first: a child forked in between inherits one descriptor too many, which is
  // better than closing whatever takes the number next.
  const int used = slots_used.load();
  for (int i = 0; i < used; ++i) {
    int expected = fd + 1;
    if (slots[i].compare_exchange_strong(expected, 0)) break;
  }
  close(fd);
}

NoForkMeanwhile::NoForkMeanwhile() {
  install_handler();
  pthread_mutex_lock(&forking);
}

NoForkMeanwhile::~NoForkMeanwhile() { pthread_mutex_unlock(&forking); }

std::uint32_t fork_generation() {
  install_handler();
  return generation.load(std::memory_order_relaxed);
}

}  // namespace taco
