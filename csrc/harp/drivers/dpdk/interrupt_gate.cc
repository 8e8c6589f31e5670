#include "harp/drivers/dpdk/interrupt_gate.h"

#include <errno.h>
#include <rte_interrupts.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>

#include <algorithm>
#include <string>
#include <utility>

namespace taco::harp {

InterruptGate::User::User(InterruptGate& gate) : gate_(gate) {
  std::lock_guard lock(gate_.turns_);
  gate_.users_.push_back(this);
}

InterruptGate::User::~User() {
  std::lock_guard lock(gate_.turns_);
  std::erase(gate_.users_, this);
}

bool InterruptGate::User::enter_in_time() {
  constexpr timespec kPause{0, 1'000'000};
  const Time limit = monotonic_now() + kToStandStill;
  while (!enter()) {
    if (monotonic_now() > limit) return false;
    nanosleep(&kPause, nullptr);
  }
  return true;
}

// The devices are opened one after another.
Result<InterruptGate*> InterruptGate::get() {
  static InterruptGate* started = nullptr;
  if (started != nullptr) return started;
  auto* const gate = new InterruptGate;
  const Status status = gate->start();
  if (!status.ok()) return status;
  started = gate;
  return started;
}

Status InterruptGate::start() {
  const int always_readable = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK);
  rte_intr_handle* const handle = rte_intr_instance_alloc(RTE_INTR_INSTANCE_F_PRIVATE);
  const bool done = always_readable >= 0 && handle != nullptr &&
                    rte_intr_fd_set(handle, always_readable) == 0 &&
                    rte_intr_type_set(handle, RTE_INTR_HANDLE_EXT) == 0 &&
                    rte_intr_callback_register(handle, on_interrupt, this) == 0;
  if (done) return {};
  return Status(Code::kResource,
                std::string("DPDK's interrupt thread cannot be had: ") + strerror(errno));
}

void InterruptGate::on_interrupt(void* gate) { static_cast<InterruptGate*>(gate)->stand_still(); }

void InterruptGate::stand_still() {
  std::unique_lock lock(mutex_);
  stands_still_.store(true, std::memory_order_release);
  turn_.wait(lock, [this] { return std::exchange(may_run_, false); });
}

// A user that has entered leaves soon, unless its thread is kept from running.
bool InterruptGate::all_have_left() const {
  const Time limit = monotonic_now() + kToLeave;
  return std::ranges::all_of(users_, [&](const User* user) {
    while (user->is_inside()) {
      if (monotonic_now() > limit) return false;
    }
    return true;
  });
}

// Another user that is about to do the same does it for both.
void InterruptGate::let_run(Time now, bool is_awaited) {
  std::unique_lock own_turn(turns_, std::try_to_lock);
  if (!own_turn.owns_lock() || !stands_still_.load(std::memory_order_acquire)) return;
  if (now - last_turn_ < (is_awaited ? kWhenAwaited : kBetweenTurns)) return;
  stands_still_.store(false, std::memory_order_seq_cst);
  if (!all_have_left()) {
    stands_still_.store(true, std::memory_order_release);
    return;
  }
  last_turn_ = now;
  {
    std::lock_guard lock(mutex_);
    may_run_ = true;
  }
  turn_.notify_one();
}

}  // namespace taco::harp
