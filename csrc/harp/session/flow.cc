#include "harp/session/flow.h"

#include <algorithm>

#include "base/assert.h"

namespace taco::harp {
namespace {

// Outstanding to every peer, whatever the others hold, unless all of these took more than half of
// the pool.
constexpr std::uint64_t kMin = 2;
constexpr std::uint64_t kFirst = 8;      // to one that begins, at most
constexpr std::uint64_t kFewPeers = 8;   // of which even the last may begin at once
constexpr std::uint64_t kStanding = 32;  // to every peer while the pool allows

}  // namespace

std::uint64_t CreditPool::standing() const { return capacity_ / (2 * accounts_ + 1); }

std::uint64_t CreditPool::share() const {
  const std::uint64_t standing = std::min(kStanding * packet_bytes_, accounts_ * this->standing());
  return (capacity_ - std::min(capacity_, standing)) / std::max<std::uint64_t>(active_, 1);
}

std::uint64_t CreditPool::least() const { return kMin * packet_bytes_ <= capacity_ / 2 ? kMin : 0; }

// All may begin in one moment, or one after the other, with others still to come of whom nobody
// knows: so it is no more than each could have, and of what is left, a quarter.
std::uint64_t CreditPool::first(std::uint64_t packet_bytes) const {
  const std::uint64_t room = queued_ == 0 ? this->room(packet_bytes) : 0;
  const std::uint64_t each = std::max<std::uint64_t>(capacity_ / packet_bytes_, 1);
  const std::uint64_t first = std::min({kFirst, each, (room + 3) / 4});
  return accounts_ <= kFewPeers ? std::max(first, least()) : first;
}

// A pool that holds less than a packet has room for one.
std::uint64_t CreditPool::room(std::uint64_t packet_bytes) const {
  const std::uint64_t room = free() / packet_bytes;
  return room == 0 && outstanding_ == 0 ? 1 : room;
}

void CreditPool::ask_everybody() {
  changed_ = false;
  asked_ms_ = now_ms_;
  while (head_ != nullptr && head_->take_turn()) {
  }
  to_give_way_ = queued_;
}

void CreditPool::append(CreditAccount& account) {
  account.next_ = nullptr;
  (head_ == nullptr ? head_ : tail_->next_) = &account;
  tail_ = &account;
  ++queued_;
  changed_ = true;
}

// Mostly the first.
void CreditPool::drop(CreditAccount& account) {
  CreditAccount* before = nullptr;
  for (CreditAccount* each = head_; each != &account; each = each->next_) before = each;
  (before == nullptr ? head_ : before->next_) = account.next_;
  if (tail_ == &account) tail_ = before;
  --queued_;
}

CreditAccount::CreditAccount(CreditPool& pool, std::uint64_t packet_bytes)
    : pool_(pool), packet_bytes_(static_cast<std::uint32_t>(packet_bytes)) {
  ++pool_.accounts_;
  pool_.packet_bytes_ += packet_bytes_;
  pool_.changed_ = true;
}

CreditAccount::~CreditAccount() { close(); }

void CreditAccount::open() {
  if (open_ || closed_) return;
  open_ = true;
  const std::uint64_t first = pool_.first(packet_bytes_);
  grant(first - std::min(first, offered()));
}

void CreditAccount::take_back() {
  set_queued(false);
  set_waiting(false);
  open_ = false;
  update_pool();
}

void CreditAccount::close() {
  if (closed_) return;
  set_active(false);
  take_back();
  if (!lowering_.is(Lowering::kNone)) lowering_.go(Lowering::kNone);
  limit_ = committed_ = largest_;
  closed_ = true;
  pool_.packet_bytes_ -= packet_bytes_;
  TACO_ASSERT(pool_.accounts_ > 0);
  --pool_.accounts_;
  TACO_ASSERT(pool_.accounts_ > 0 || pool_.is_unused(), "credit has leaked");
  pool_.changed_ = true;
}

std::uint64_t CreditAccount::target() const {
  const std::uint64_t least = std::max<std::uint64_t>(pool_.least(), 1);
  const std::uint64_t standing = std::clamp(pool_.standing() / packet_bytes_, least, kStanding);
  return active_ ? std::max(pool_.share() / packet_bytes_, standing) : standing;
}

std::uint64_t CreditAccount::outstanding() const {
  return promised() > largest_ ? promised() - largest_ : 0;
}

void CreditAccount::update_pool() {
  const std::uint64_t now = open_ ? outstanding() : 0;
  if (now < counted_) pool_.changed_ = true;
  const std::uint64_t before = std::uint64_t{counted_} * packet_bytes_;
  TACO_ASSERT(pool_.outstanding_ >= before);
  pool_.outstanding_ += now * packet_bytes_ - before;
  counted_ = static_cast<std::uint32_t>(now);
}

void CreditAccount::set_waiting(bool waiting) {
  if (waiting == waiting_) return;
  waiting_ = waiting;
  TACO_ASSERT(waiting || pool_.waiting_ > 0);
  pool_.waiting_ += waiting ? 1 : -1;
  if (waiting) pool_.changed_ = true;
}

void CreditAccount::set_queued(bool queued) {
  if (queued == queued_) return;
  queued_ = queued;
  if (queued) return pool_.append(*this);
  pool_.drop(*this);
}

void CreditAccount::set_active(bool active) {
  if (active == active_ || closed_) return;
  active_ = active;
  TACO_ASSERT(active || pool_.active_ > 0);
  pool_.active_ += active ? 1 : -1;
  pool_.changed_ = true;
  if (!active && !queued_) set_waiting(false);
}

void CreditAccount::on_received(std::uint64_t largest) {
  if (largest <= largest_ || closed_) return;
  largest_ = largest;
  stirred_ms_ = pool_.now_ms_;
  update_pool();
}

bool CreditAccount::may_take() const { return pool_.queued_ == 0 || pool_.head_ == this; }

bool CreditAccount::gives_way() const {
  return pool_.to_give_way_ > 0 && pool_.queued_ > 0 && lowering_.is(Lowering::kNone) &&
         counted_ > 0 && pool_.now_ms_ - stirred_ms_ >= CreditPool::kUseWithinMs;
}

bool CreditAccount::take_turn() {
  if (pool_.room(packet_bytes_) == 0) return false;
  grant(1);
  set_waiting(target() > offered());
  had_turn_ = true;
  return true;
}

void CreditAccount::lower(std::uint64_t offered) {
  limit_ = largest_ + offered;
  lowered_at_ = ++epoch_;
  lowering_.go(Lowering::kUntold);
}

void CreditAccount::grant(std::uint64_t more) {
  limit_ = largest_ + offered() + more;
  if (lowering_.is(Lowering::kNone)) committed_ = std::max(committed_, limit_);
  ++epoch_;
  stirred_ms_ = pool_.now_ms_;
  set_queued(false);
  update_pool();
}

bool CreditAccount::refresh() {
  if (closed_) return false;
  if (!open_) {  // room is made for what it will want once it has been heard
    set_waiting(active_ && pool_.room(packet_bytes_) < target());
    return false;
  }
  const bool had_turn = had_turn_;
  had_turn_ = false;
  return recompute() || had_turn;
}

bool CreditAccount::recompute() {
  const std::uint64_t target = this->target(), have = outstanding();
  if (have > target + target / 4 + kMin && pool_.waiting_ > (waiting_ ? 1u : 0u) &&
      lowering_.is(Lowering::kNone)) {
    lower(target);
    return true;
  }
  if (gives_way()) {
    --pool_.to_give_way_;
    lower(0);
    return true;
  }
  const std::uint64_t offered = this->offered();
  // Every grant costs a packet. Where bulk data is to come they are a quarter of the target, so
  // that its sender need not wait for one; small messages are told of half of it at once.
  if (offered + std::max<std::uint64_t>(1, target / (active_ ? 4 : 2)) > target) {
    set_waiting(false);
    return false;
  }
  // A limit that goes down for those that have nothing does not go up before they have had some.
  if (!lowering_.is(Lowering::kNone) && !may_take()) return false;
  const std::uint64_t least = pool_.least();
  const std::uint64_t room = pool_.room(packet_bytes_) + (have > offered ? have - offered : 0);
  std::uint64_t more = may_take() ? std::min(target - offered, room) : 0;
  set_waiting(more < target - offered);
  if (offered + more < least) more = least - offered;
  if (more == 0) {
    if (offered == 0) set_queued(true);
    return false;
  }
  // Crumbs of a contested pool would cost a packet each.
  if (offered >= kMin && more < target / 8) return false;
  grant(more);
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
