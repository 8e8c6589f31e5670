#include "harp/session/flow.h"

#include <algorithm>

#include "base/assert.h"

namespace taco::harp {
namespace {

constexpr std::uint64_t kLeast = 2;      // outstanding to every peer, whatever the pool says
constexpr std::uint64_t kStanding = 32;  // to every peer while the pool allows

}  // namespace

std::uint64_t CreditPool::standing() const { return capacity_ / (2 * accounts_ + 1); }

std::uint64_t CreditPool::share() const {
  const std::uint64_t standing = std::min(kStanding * packet_bytes_, accounts_ * this->standing());
  return (capacity_ - std::min(capacity_, standing)) / std::max<std::uint64_t>(active_, 1);
}

CreditAccount::CreditAccount(CreditPool& pool, std::uint64_t packet_bytes)
    : pool_(pool), packet_bytes_(packet_bytes) {
  ++pool_.accounts_;
  pool_.packet_bytes_ += packet_bytes_;
  pool_.changed_ = true;
  update_pool();
}

CreditAccount::~CreditAccount() { close(); }

void CreditAccount::close() {
  if (closed_) return;
  set_active(false);
  set_waiting(false);
  if (!lowering_.is(Lowering::kNone)) lowering_.go(Lowering::kNone);
  limit_ = committed_ = largest_;
  update_pool();
  closed_ = true;
  pool_.packet_bytes_ -= packet_bytes_;
  TACO_ASSERT(pool_.accounts_ > 0);
  --pool_.accounts_;
  TACO_ASSERT(pool_.accounts_ > 0 || pool_.is_unused(), "credit has leaked");
  pool_.changed_ = true;
}

std::uint64_t CreditAccount::target() const {
  const std::uint64_t standing = std::clamp(pool_.standing() / packet_bytes_, kLeast, kStanding);
  return active_ ? std::max(pool_.share() / packet_bytes_, standing) : standing;
}

std::uint64_t CreditAccount::outstanding() const {
  return promised() > largest_ ? promised() - largest_ : 0;
}

void CreditAccount::update_pool() {
  const std::uint64_t now = outstanding();
  if (now < counted_) pool_.changed_ = true;
  TACO_ASSERT(pool_.outstanding_ >= counted_ * packet_bytes_);
  pool_.outstanding_ += (now - counted_) * packet_bytes_;
  counted_ = now;
}

void CreditAccount::set_waiting(bool waiting) {
  if (waiting == waiting_) return;
  waiting_ = waiting;
  TACO_ASSERT(waiting || pool_.waiting_ > 0);
  pool_.waiting_ += waiting ? 1 : -1;
  if (waiting) pool_.changed_ = true;
}

void CreditAccount::set_active(bool active) {
  if (active == active_ || closed_) return;
  active_ = active;
  TACO_ASSERT(active || pool_.active_ > 0);
  pool_.active_ += active ? 1 : -1;
  pool_.changed_ = true;
  if (!active) set_waiting(false);
}

void CreditAccount::on_received(std::uint64_t largest) {
  if (largest <= largest_ || closed_) return;
  largest_ = largest;
  update_pool();
}

bool CreditAccount::refresh() {
  if (closed_) return false;
  const std::uint64_t target = this->target(), have = outstanding();
  if (have > target + target / 4 + kLeast && pool_.waiting_ > (waiting_ ? 1u : 0u) &&
      lowering_.is(Lowering::kNone)) {
    limit_ = std::max(largest_ + target, std::uint64_t{1});
    lowered_at_ = ++epoch_;
    lowering_.go(Lowering::kUntold);
    return true;
  }
  const std::uint64_t offered = limit_ > largest_ ? limit_ - largest_ : 0;
  // Grants go out in quarters of the target: every one costs a packet.
  if (offered + std::max<std::uint64_t>(1, target / 4) > target) {
    set_waiting(false);
    return false;
  }
  const std::uint64_t room = pool_.free() / packet_bytes_ + (have > offered ? have - offered : 0);
  std::uint64_t more = std::min(target - offered, room);
  set_waiting(more < target - offered);
  if (offered + more < kLeast) more = kLeast - offered;
  // Crumbs of a contested pool would cost a packet each.
  if (more == 0 || (offered >= kLeast && more < target / 8)) return false;
  limit_ = largest_ + offered + more;
  if (lowering_.is(Lowering::kNone)) committed_ = std::max(committed_, limit_);
  ++epoch_;
  update_pool();
  return true;
}

void CreditAccount::on_confirmed(std::uint32_t epoch) {
  if (lowering_.is(Lowering::kNone)) return;
  if (static_cast<std::int32_t>(epoch - lowered_at_) < 0) return on_lost();
  lowering_.go(Lowering::kNone);
  committed_ = limit_;
  pool_.changed_ = true;
  update_pool();
}

}  // namespace taco::harp
