#include "base/fault_note.h"

#include <errno.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace taco {
namespace {

constexpr std::size_t kNotes = 64, kLongestText = 1024;

// `taken` is set first, and `end` last: where that is 0 there is nothing to look at.
struct NotedRange {
  std::atomic<bool> taken{false};
  std::atomic<const void*> owner{nullptr};
  std::atomic<FaultNote::Describe> describe{nullptr};
  std::atomic<std::uintptr_t> begin{0}, end{0};
};

NotedRange noted[kNotes];
struct sigaction handled_before;

void say_what_lies_at(std::uintptr_t address) {
  for (const NotedRange& range : noted) {
    if (address >= range.end.load(std::memory_order_acquire) || address < range.begin) continue;
    char text[kLongestText + 1];
    const FaultNote::Describe describe = range.describe;
    const std::size_t length = describe(range.owner, address - range.begin, text, kLongestText);
    text[std::min(length, kLongestText)] = '\n';
    [[maybe_unused]] const auto written =
        write(STDERR_FILENO, text, std::min(length, kLongestText) + 1);
    return;
  }
}

void on_fault(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  const bool sent = info->si_code <= 0;  // by a process: no address was touched
  if (!sent) say_what_lies_at(reinterpret_cast<std::uintptr_t>(info->si_addr));
  if ((handled_before.sa_flags & SA_SIGINFO) != 0) {
    handled_before.sa_sigaction(signal, info, context);
  } else if (handled_before.sa_handler != SIG_DFL && handled_before.sa_handler != SIG_IGN) {
    handled_before.sa_handler(signal);
  } else {
    // It happens again as soon as this returns, and ends the process then.
    sigaction(signal, &handled_before, nullptr);
    if (sent) raise(signal);
  }
  errno = error;
}

bool install_fault_handler() {
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  // The handler before this one is known before the first fault can need it.
  return sigaction(SIGSEGV, nullptr, &handled_before) == 0 &&
         sigaction(SIGSEGV, &action, nullptr) == 0;
}

}  // namespace

FaultNote::FaultNote(const std::byte* begin, std::size_t bytes, const void* owner,
                     Describe describe) {
  static const bool installed = install_fault_handler();
  for (std::size_t i = 0; installed && i < kNotes; ++i) {
    NotedRange& range = noted[i];
    if (range.taken.exchange(true)) continue;
    range.owner = owner;
    range.describe = describe;
    range.begin = reinterpret_cast<std::uintptr_t>(begin);
    range.end.store(reinterpret_cast<std::uintptr_t>(begin) + bytes, std::memory_order_release);
    slot_ = static_cast<int>(i);
    return;
  }
}

FaultNote::~FaultNote() {
  if (slot_ < 0) return;
  noted[slot_].end = 0;
  noted[slot_].taken = false;
}

}  // namespace taco
