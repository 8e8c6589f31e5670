#include "harp/session/small_packets.h"

#include <algorithm>
#include <cstring>

#include "base/assert.h"

namespace taco::harp {

SmallSender::~SmallSender() { clear(); }

void SmallSender::clear() {
  for (std::uint32_t i = 0; i < count_; ++i) {
    if (at(i).block != nullptr) buffers_.give(at(i).block, at(i).capacity);
  }
  base_ += count_;
  head_ = count_ = unsent_ = lost_ = 0;
  answers_ = 0;
}

void SmallSender::push(std::byte* block, std::size_t capacity, std::size_t bytes,
                       std::size_t answers) {
  if (count_ == ring_.size()) {
    std::vector<Entry> larger(std::max<std::size_t>(8, 2 * ring_.size()));
    for (std::uint32_t i = 0; i < count_; ++i) larger[i] = at(i);
    ring_.swap(larger);
    head_ = 0;
  }
  ++count_;
  at(count_ - 1) = {block, static_cast<std::uint32_t>(capacity), static_cast<std::uint32_t>(bytes),
                    static_cast<std::uint32_t>(answers), State::kUnsent};
  answers_ += static_cast<std::uint32_t>(answers);
}

SmallSender::Packet SmallSender::front() const {
  std::uint32_t offset = unsent_;
  if (lost_ > 0) {
    for (offset = 0; at(offset).state != State::kLost; ++offset) {
    }
  }
  const Entry& entry = at(offset);
  return {base_ + offset, {entry.block, entry.bytes}, lost_ > 0};
}

void SmallSender::mark_sent(std::uint32_t serial) {
  const std::uint32_t offset = serial - base_;
  TACO_ASSERT(at(offset).state == (lost_ > 0 ? State::kLost : State::kUnsent));
  if (at(offset).state == State::kLost) {
    --lost_;
  } else {
    ++unsent_;
  }
  at(offset).state = State::kInFlight;
}

void SmallSender::on_acked(std::uint32_t serial) {
  const std::uint32_t offset = serial - base_;
  if (offset >= unsent_ || at(offset).state == State::kAcked) return;
  Entry& entry = at(offset);
  if (entry.state == State::kLost) {
    TACO_ASSERT(lost_ > 0);
    --lost_;
  }
  entry.state = State::kAcked;
  answers_ -= entry.answers;
  buffers_.give(entry.block, entry.capacity);
  entry.block = nullptr;
  pop_acked();
}

void SmallSender::on_lost(std::uint32_t serial) {
  const std::uint32_t offset = serial - base_;
  if (offset >= unsent_ || at(offset).state != State::kInFlight) return;
  at(offset).state = State::kLost;
  ++lost_;
}

void SmallSender::pop_acked() {
  while (unsent_ > 0 && at(0).state == State::kAcked) {
    head_ = (head_ + 1) & (static_cast<std::uint32_t>(ring_.size()) - 1);
    ++base_;
    --count_;
    --unsent_;
  }
  TACO_ASSERT(unsent_ <= count_ && lost_ <= unsent_);
}

void SmallSender::trim() {
  if (count_ == 0 && !ring_.empty()) {
    std::vector<Entry>().swap(ring_);
    head_ = 0;
  }
}

std::size_t SmallSender::memory_bytes() const {
  std::size_t bytes = ring_.capacity() * sizeof(Entry);
  for (std::uint32_t i = 0; i < count_; ++i) bytes += at(i).block != nullptr ? at(i).capacity : 0;
  return bytes;
}

SerialFilter::Verdict SerialFilter::add(std::uint32_t serial) {
  const std::uint32_t distance = serial - base_;
  if (distance >= std::uint32_t{1} << 31) return Verdict::kDuplicate;
  if (distance >= kEagerWindow) return Verdict::kBeyondWindow;
  std::uint64_t& word = bits_[serial % kEagerWindow / 64];
  const std::uint64_t bit = std::uint64_t{1} << (serial % 64);
  if (word & bit) return Verdict::kDuplicate;
  word |= bit;
  for (;;) {
    std::uint64_t& base_word = bits_[base_ % kEagerWindow / 64];
    const std::uint64_t base_bit = std::uint64_t{1} << (base_ % 64);
    if ((base_word & base_bit) == 0) return Verdict::kNew;
    base_word &= ~base_bit;
    ++base_;
  }
}

RecordOrder::Verdict RecordOrder::add(std::uint32_t serial, std::span<const std::byte> block) {
  const std::uint32_t distance = serial - expected_;
  if (distance == 0) {
    ++expected_;
    return Verdict::kInOrder;
  }
  if (distance >= std::uint32_t{1} << 31) return Verdict::kDuplicate;
  if (distance >= kRecordWindow) return Verdict::kBeyondWindow;
  for (const Early& early : early_) {
    if (early.serial == serial) return Verdict::kDuplicate;
  }
  std::byte* copy = buffers_.take(block.size());
  if (!block.empty()) std::memcpy(copy, block.data(), block.size());
  early_.push_back({serial, static_cast<std::uint32_t>(block.size()), copy});
  return Verdict::kStashed;
}

std::span<const std::byte> RecordOrder::pop() {
  if (popped_.block != nullptr) buffers_.give(popped_.block, popped_.bytes);
  popped_.block = nullptr;
  for (Early& early : early_) {
    if (early.serial != expected_) continue;
    popped_ = early;
    early = early_.back();
    early_.pop_back();
    ++expected_;
    return {popped_.block, popped_.bytes};
  }
  return {};
}

void RecordOrder::clear() {
  for (const Early& early : early_) buffers_.give(early.block, early.bytes);
  early_.clear();
  if (popped_.block != nullptr) buffers_.give(popped_.block, popped_.bytes);
  popped_.block = nullptr;
}

}  // namespace taco::harp
