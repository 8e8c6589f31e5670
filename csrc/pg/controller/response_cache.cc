#include "pg/controller/response_cache.h"

#include <utility>

#include "base/assert.h"

namespace taco::pg::controller {

ResponseCache::Slot* ResponseCache::find(std::string_view name) {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

bool ResponseCache::is_used(std::uint32_t number) const {
  const std::size_t bit = first_bit_ + number;
  return number < slots_.size() && (used_row_[bit / 64] >> bit % 64 & 1) != 0;
}

void ResponseCache::note(const Slot& slot, bool is_used) {
  const std::uint64_t name = Digest().add_text(slot.request.name).value();
  digest_ = folded(folded(digest_, std::uint64_t{slot.number} << 1 | (is_used ? 1 : 0)), name);
}

ResponseCache::Slot* ResponseCache::room(std::optional<Pending>& displaced) {
  if (capacity_ == 0) return nullptr;
  if (free_.empty() && slots_.size() >= capacity_) displaced = erase(*used_.front());
  if (!free_.empty()) {
    const std::uint32_t number = free_.back();
    free_.pop_back();
    return &slots_[number];
  }
  Slot& slot = slots_.emplace_back();
  slot.number = static_cast<std::uint32_t>(slots_.size() - 1);
  waiting_row_.resize(words_of(slots_.size()));
  used_row_.resize(words_of(slots_.size()));
  return &slot;
}

ResponseCache::Slot* ResponseCache::insert(Request request,
                                           std::vector<std::vector<std::int64_t>> rows,
                                           std::optional<Pending>& displaced) {
  Slot* const slot = room(displaced);
  if (slot == nullptr) return nullptr;
  slot->bytes = bytes_of(request);
  slot->request = std::move(request);
  slot->rows = std::move(rows);
  const bool is_new = by_name_.emplace(slot->request.name, slot).second;
  TACO_ASSERT(is_new, "'%s' has a slot already", slot->request.name.c_str());
  used_.push_back(*slot);
  set(used_row_, bit_of(*slot));
  note(*slot, true);
  return slot;
}

std::optional<Pending> ResponseCache::erase(Slot& slot) {
  note(slot, false);
  std::optional<Pending> waiting = take_waiting(slot);
  clear(used_row_, bit_of(slot));
  used_.erase(slot);
  by_name_.erase(slot.request.name);
  slot.request = {};
  slot.rows = {};
  free_.push_back(slot.number);
  return waiting;
}

void ResponseCache::wait_in(Slot& slot, Request&& request, std::uint64_t since_round,
                            std::uint64_t order) {
  TACO_ASSERT(!slot.waiting, "'%s' waits already", slot.request.name.c_str());
  Pending& pending = slot.waiting.emplace();
  pending.request = std::move(request);
  pending.since_round = since_round;
  pending.order = order;
  set(waiting_row_, bit_of(slot));
  ++waiting_;
}

void ResponseCache::run(Slot& slot) {
  used_.erase(slot);
  used_.push_back(slot);
  digest_ = folded(digest_, slot.number);
  if (!slot.waiting) return;
  slot.waiting.reset();
  clear(waiting_row_, bit_of(slot));
  --waiting_;
}

std::optional<Pending> ResponseCache::take_waiting(Slot& slot) {
  if (!slot.waiting) return std::nullopt;
  clear(waiting_row_, bit_of(slot));
  --waiting_;
  return std::exchange(slot.waiting, std::nullopt);
}

}  // namespace taco::pg::controller
