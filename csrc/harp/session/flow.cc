#include "harp/session/flow.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace taco::harp {
namespace {

constexpr std::uint64_t kStanding = 32;  // to every peer while the pool allows
constexpr std::uint64_t kFirst = 8;  // to one that has not asked yet: others may be about to come
constexpr std::uint64_t kSlack = 2;  // for so much beyond its share nobody is bothered
// So long a peer may take to use what it was granted before others get it.
constexpr std::uint32_t kUseWithinMs = 20;

}  // namespace

std::uint64_t CreditPool::standing() const { return capacity_ / (2 * accounts_ + 1); }

// Those that are active have no need of an allowance beside it.
std::uint64_t CreditPool::share() const {
  const std::uint64_t idle = accounts_ - active_;
  const std::uint64_t each = packet_bytes_ / std::max<std::uint64_t>(accounts_, 1);
  const std::uint64_t standing = idle * std::min(kStanding * each, this->standing());
  return (capacity_ - std::min(capacity_, standing)) / std::max<std::uint64_t>(active_, 1);
}

std::span<CreditAccount* const> CreditPool::share_out() {
  told_.clear();
  while (!queue_.empty() && free() > 0) {
    CreditAccount& first = *queue_.front();
    if (first.is_needy_ && free() < first.packet_bytes_) break;
    queue_.pop_front();
    first.is_queued_ = false;
    if (first.is_needy_ && first.grant(first.target())) told_.push_back(&first);
  }
  std::uint64_t coming = free();
  for (const CreditAccount* holder : holders_) {
    if (holder->lowering_.is(CreditAccount::Lowering::kNone)) continue;
    coming += (holder->counted_ - holder->offered()) * holder->packet_bytes_;
  }
  next_holder_ = holders_.empty() ? 0 : (next_holder_ + 1) % holders_.size();
  for (std::size_t i = 0; i < holders_.size(); ++i) {
    CreditAccount& holder = *holders_[(next_holder_ + i) % holders_.size()];
    const std::uint64_t has = holder.counted_, target = holder.target();
    const bool in_use = now_ms_ - holder.granted_ms_ < kUseWithinMs;
    if (coming < needy_bytes_ && !in_use && holder.lower(target)) {
      coming += (has - holder.offered()) * holder.packet_bytes_;
    } else if (holder.waiting_ ? !holder.refresh() : !holder.lower(target + target / 4 + kSlack)) {
      continue;
    }
    told_.push_back(&holder);
  }
  changed_ = false;  // everybody has just been asked
  return told_;
}

CreditAccount::CreditAccount(CreditPool& pool, std::uint64_t packet_bytes, Session* session)
    : pool_(pool), session_(session), packet_bytes_(static_cast<std::uint32_t>(packet_bytes)) {}

CreditAccount::~CreditAccount() { close(); }

void CreditAccount::open() {
  if (is_open_ || closed_) return;
  is_open_ = true;
  ++pool_.accounts_;
  pool_.active_ += active_ ? 1u : 0u;
  pool_.packet_bytes_ += packet_bytes_;
  pool_.changed_ = true;
}

void CreditAccount::close() {
  if (closed_) return;
  set_active(false);
  set_waiting(false);
  if (!lowering_.is(Lowering::kNone)) lowering_.go(Lowering::kNone);
  limit_ = committed_ = largest_;
  update_pool();
  closed_ = true;
  if (!is_open_) return;
  if (is_queued_) std::erase(pool_.queue_, this);
  pool_.packet_bytes_ -= packet_bytes_;
  TACO_ASSERT(pool_.accounts_ > 0);
  --pool_.accounts_;
  TACO_ASSERT(pool_.accounts_ > 0 || pool_.is_unused(), "credit has leaked");
  pool_.changed_ = true;
}

std::uint64_t CreditAccount::standing() const {
  return std::min(pool_.standing() / packet_bytes_, kStanding);
}

std::uint64_t CreditAccount::target() const {
  return active_ ? std::max(pool_.share() / packet_bytes_, standing()) : standing();
}

std::uint64_t CreditAccount::outstanding() const {
  const std::uint64_t most = is_written_off_ ? limit_ : promised();
  return most > largest_ ? most - largest_ : 0;
}

void CreditAccount::update_pool() {
  const std::uint64_t now = outstanding();
  if (now < counted_) pool_.changed_ = true;
  TACO_ASSERT(pool_.outstanding_ >= std::uint64_t{counted_} * packet_bytes_);
  pool_.outstanding_ += now * packet_bytes_ - std::uint64_t{counted_} * packet_bytes_;
  std::vector<CreditAccount*>& holders = pool_.holders_;
  if (counted_ == 0 && now > 0) {
    place_ = static_cast<std::uint32_t>(holders.size());
    holders.push_back(this);
  } else if (counted_ > 0 && now == 0) {
    holders[place_] = holders.back();
    holders[place_]->place_ = place_;
    holders.pop_back();
  }
  counted_ = static_cast<std::uint32_t>(now);
  update_needy();
}

void CreditAccount::update_needy() {
  const bool needy = waiting_ && offered() == 0;
  if (needy == is_needy_) return;
  is_needy_ = needy;
  TACO_ASSERT(needy || pool_.needy_bytes_ >= packet_bytes_);
  if (!needy) {
    pool_.needy_bytes_ -= packet_bytes_;
    return;
  }
  pool_.needy_bytes_ += packet_bytes_;
  if (!std::exchange(is_queued_, true)) pool_.queue_.push_back(this);
}

void CreditAccount::set_waiting(bool waiting) {
  if (waiting == waiting_) return;
  waiting_ = waiting;
  TACO_ASSERT(waiting || pool_.waiting_ > 0);
  if (waiting) {
    ++pool_.waiting_;
    pool_.changed_ = true;
  } else {
    --pool_.waiting_;
  }
  update_needy();
}

void CreditAccount::set_active(bool active) {
  if (active == active_ || closed_) return;
  active_ = active;
  if (!is_open_) return;
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

bool CreditAccount::lower(std::uint64_t most) {
  if (!lowering_.is(Lowering::kNone) || outstanding() <= most) return false;
  limit_ = std::min(limit_, largest_ + target());
  lowered_at_ = ++epoch_;
  lowering_.go(Lowering::kUntold);
  update_pool();
  return true;
}

bool CreditAccount::refresh(bool asks) {
  if (closed_ || !is_open_) return false;
  const std::uint64_t target = asks ? this->target() : std::min(standing(), kFirst);
  const std::uint64_t offered = this->offered();
  if (asks && others_wait() && lower(target + target / 4 + kSlack)) return true;
  // Grants go out in quarters of the target: every one costs a packet.
  if (offered > 0 && offered + std::max<std::uint64_t>(1, target / 4) > target) {
    set_waiting(false);
    return false;
  }
  if (others_have_nothing()) {
    set_waiting(waiting_ || asks);
    pool_.changed_ |= asks;  // it may be time for others to give up some
    return false;
  }
  const bool granted = grant(target);
  if (!asks) set_waiting(false);
  return granted;
}

// A peer that waits gets one packet at least, if there is room for it.
bool CreditAccount::grant(std::uint64_t target) {
  const std::uint64_t offered = this->offered(), have = outstanding();
  const std::uint64_t wanted = std::max<std::uint64_t>(target, 1) - offered;
  const std::uint64_t room = pool_.free() / packet_bytes_ + (have > offered ? have - offered : 0);
  const std::uint64_t more = std::min(wanted, room);
  // Crumbs of a contested pool would cost a packet each.
  const bool worth_it = more > 0 && (offered == 0 || more >= target / 8);
  if (worth_it) {
    limit_ = largest_ + offered + more;
    if (lowering_.is(Lowering::kNone)) committed_ = std::max(committed_, limit_);
    ++epoch_;
    granted_ms_ = pool_.now_ms_;
    update_pool();
  }
  set_waiting(more < wanted);
  return worth_it;
}

void CreditAccount::on_confirmed(std::uint32_t epoch) {
  if (lowering_.is(Lowering::kNone)) return;
  if (static_cast<std::int32_t>(epoch - lowered_at_) < 0) return on_lost();
  lowering_.go(Lowering::kNone);
  is_written_off_ = false;
  committed_ = limit_;
  pool_.changed_ = true;
  update_pool();
}

void CreditAccount::stop_waiting_for_word() {
  if (lowering_.is(Lowering::kNone) || closed_) return;
  is_written_off_ = true;
  update_pool();
}

}  // namespace taco::harp
